"""Rules that say which columns they read are asked once for many rows that agree in them."""

from __future__ import annotations

import numpy as np
from strategies import cluster_of, dense_model, layout_of, moe_model, training_of

from tpdpdash.layout.columns import SHARDING, LayoutColumns
from tpdpdash.layout.rule import Facts
from tpdpdash.layout.rules import DEGREES, RULES, check_layout, refusal_codes

OTHERS = {
    "rank_order": "tp-cp-ep-pp-dp", "micro_batch_size": 3, "schedule": "gpipe", "num_model_chunks": 3, "zero_stage": 3,
    "dp_shard_size": 3, "sequence_parallel": True, "recompute": "full", "recompute_num_layers": 99,
    "microbatch_group_size_per_vp_stage": 7, "layers_per_stage": (1, 2), "offload_optimizer": True, "overlap_tp": True,
}  # fmt: skip


def test_a_rule_of_degrees_does_not_read_other_columns():
    degrees = [{"tp": tp, "pp": pp, "dp": dp, "ep": ep} for tp in (1, 3, 8) for pp in (1, 4, 16) for dp in (1, 2)
               for ep in (1, 3)]  # fmt: skip
    plain = LayoutColumns.from_layouts([layout_of(8, **each) for each in degrees])
    other = LayoutColumns.from_layouts([layout_of(8, **each | OTHERS) for each in degrees])
    for model in (dense_model(), moe_model(shared_expert_ffn_hidden_size=100)):
        facts = Facts(model=model, training=training_of(), cluster=cluster_of())
        for rule in RULES:
            if rule.of_degrees:
                np.testing.assert_array_equal(rule.violated(facts, plain), rule.violated(facts, other))


def test_only_a_rule_about_states_reads_where_they_live():
    elsewhere = {"zero_stage": 3, "dp_shard_size": 3, "offload_optimizer": True, "overlap_grad_reduce": True,
                 "overlap_param_gather": True}  # fmt: skip
    assert set(elsewhere) == SHARDING
    keys = [{}, OTHERS, {"pp": 4, "schedule": "zb-1p"}, {"dp": 2, "micro_batch_size": 3}, {"tp": 3, "ep": 3}]
    plain = LayoutColumns.from_layouts([layout_of(8, **each) for each in keys])
    other = LayoutColumns.from_layouts([layout_of(8, **each | elsewhere) for each in keys])
    facts = Facts(model=moe_model(), training=training_of(), cluster=cluster_of())
    read = set()
    for rule in RULES:
        if (rule.violated(facts, plain) != rule.violated(facts, other)).any():
            read.add(rule.of_states)
    assert read == {True}


def test_each_row_is_refused_by_the_first_rule_that_it_breaks():
    layouts = [layout_of(8, tp=tp, pp=pp, dp=3, **keys) for tp in (2, 3) for pp in (1, 16) for keys in ({}, OTHERS)]
    model, training, cluster = dense_model(), training_of(), None
    codes = refusal_codes(model, training, cluster, LayoutColumns.from_layouts(layouts))
    for layout, code in zip(layouts, codes, strict=True):
        faults = check_layout(model, training, cluster, layout)
        assert (RULES[code - 1].code if code else None) == (faults[0].code if faults else None)
    assert len(set(codes.tolist())) > 1
    assert set(DEGREES) == {"tp", "cp", "pp", "dp", "ep", "etp"}
