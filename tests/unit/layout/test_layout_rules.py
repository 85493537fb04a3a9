"""The rules together: all faults at once, a row of many as one layout alone.

Test names carry the rows of the reference reports (r…) and bad inputs (b…) that they answer.
"""

from __future__ import annotations

from rule_faults import faults_of
from strategies import cluster_of, dense_model, layout_of, training_of

from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.rules import RULES, check_layout, refusal_codes
from tpdpdash.text import FAULT_TEXTS


def test_a_legal_layout_has_no_fault() -> None:
    assert faults_of(layout_of(8, tp=2, pp=2, dp=4), cluster=cluster_of()) == {}


def test_every_rule_has_a_sentence_and_a_field() -> None:
    assert all(rule.code in FAULT_TEXTS for rule in RULES)
    assert all(rule.field.split(".")[0] in ("layout", "training", "model", "cluster") for rule in RULES)


def test_all_faults_come_at_once() -> None:
    layout = layout_of(8, tp=3, dp=5, zero_stage=4, dp_shard_size=2, rank_order="tp-cp-ep-dp-pp")
    found = faults_of(layout, seq_len=1000, cluster=cluster_of())
    assert set(found) == {
        "dp_not_world",
        "heads_not_divisible",
        "kv_heads_not_replicable",
        "ffn_not_divisible",
        "shard_size_not_divisor",
        "out_of_range",
        "batch_not_divisible",
        "sequence_not_divisible",
    }


def test_degrees_below_one_are_told_before_any_rule_divides_by_them() -> None:
    found = check_layout(dense_model(), training_of(), None, Layout(tp=0, dp=-2))
    assert [(f.code, f.field) for f in found] == [("out_of_range", "layout.tp"), ("out_of_range", "layout.dp")]


def test_a_row_of_many_has_the_first_fault_of_the_same_layout_alone() -> None:
    rows = [
        layout_of(8, tp=2, pp=2, dp=4),
        layout_of(8, tp=3),
        layout_of(8, pp=3, num_model_chunks=2),
        layout_of(8, dp=5, cp=3),
        layout_of(8, ep=2, dp=2),
    ]
    training = training_of()
    codes = refusal_codes(dense_model(), training, None, LayoutColumns.from_layouts(rows))
    for code, layout in zip(codes.tolist(), rows, strict=True):
        found = check_layout(dense_model(), training, None, layout)
        assert (RULES[code - 1].code if code else None) == (found[0].code if found else None)
    assert codes.tolist().count(0) == 1
