"""Validity rules: whose they are, all faults at once, the nearest legal values.

Test names carry the rows of the reference reports (r…) and bad inputs (b…) that they answer.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from strategies import cluster_of, dense_model, device, layout_of, moe_model, training_of

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.layout.batch_rules import MAX_SEQ_LEN, sequence_multiple
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.groups import groups_of
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.rules import RULES, check_layout, refusal_codes
from tpdpdash.layout.vocabulary import padded_vocab_size
from tpdpdash.model.spec import ModelSpec
from tpdpdash.text import FAULT_TEXTS, fault_lines


def faults_of(layout: Layout, model: ModelSpec | None = None, cluster: Any = None, **training: Any) -> dict[str, Fault]:
    """The faults of a layout by code; every one of them has a sentence."""
    found = check_layout(model or dense_model(), training_of(**training), cluster, layout)
    assert len(fault_lines(found)) == len(found)
    return {fault.code: fault for fault in found}


def test_a_legal_layout_has_no_fault() -> None:
    assert faults_of(layout_of(8, tp=2, pp=2, dp=4), cluster=cluster_of()) == {}


def test_every_rule_has_a_sentence_and_a_field() -> None:
    assert all(rule.code in FAULT_TEXTS for rule in RULES)
    assert all(rule.field.split(".")[0] in ("layout", "training", "model", "cluster") for rule in RULES)


# ------------------------------------------------------------------------------------------------ heads


QWEN2_7B = dense_model(num_layers=28, num_attention_heads=28, num_kv_heads=4, head_dim=128, ffn_hidden_size=18944)


def test_r038_28_heads_on_tp_8_name_the_legal_degrees() -> None:
    fault = faults_of(layout_of(28, tp=8), QWEN2_7B)["heads_not_divisible"]
    assert (fault.field, fault.value, fault.values["heads"]) == ("layout.tp", 8, 28)
    legal = fault.values["legal"]
    assert isinstance(legal, tuple)
    assert [tp for tp in legal if tp <= 8] == [1, 2, 4]
    assert fault.values["nearest"] == (4,)


@pytest.mark.parametrize("tp", [7, 14])
def test_r038_degrees_that_divide_the_heads_but_not_the_kv_heads_are_refused(tp: int) -> None:
    assert "kv_heads_not_replicable" in faults_of(layout_of(28, tp=tp), QWEN2_7B)


def test_r039_52_heads_on_tp_3_offer_three_stages_instead() -> None:
    model = dense_model(num_layers=60, num_attention_heads=52, num_kv_heads=52, head_dim=128, ffn_hidden_size=17888)
    fault = faults_of(layout_of(60, tp=3), model, cluster_of(1, 3))["heads_not_divisible"]
    assert fault.values["legal"] == (1, 2, 4, 13, 26, 52)
    assert fault.values["pp_instead"] == (3,)
    assert faults_of(layout_of(60, pp=3), model, cluster_of(1, 3)) == {}


QWEN3_30B = moe_model(
    num_layers=48, num_attention_heads=32, num_kv_heads=4, head_dim=128, num_experts=128, moe_ffn_hidden_size=768
)


@pytest.mark.parametrize("framework", ["fsdp2", "fsdp1", "deepspeed", "nanotron", "internevo"])
def test_r042_frameworks_without_copies_of_kv_heads_refuse_tp_8_on_4(framework: str) -> None:
    fault = faults_of(layout_of(48, tp=8), QWEN3_30B, framework=framework)["kv_heads_not_divisible"]
    assert fault.values["kv_heads"] == 4
    assert fault.values["nearest"] == (4,)


def test_r042_megatron_copies_the_kv_heads() -> None:
    assert faults_of(layout_of(48, tp=8), QWEN3_30B) == {}


def test_r043_two_kv_heads_on_tp_4_are_refused_by_torch() -> None:
    model = dense_model(num_layers=40, num_attention_heads=32, num_kv_heads=2, ffn_hidden_size=13696)
    assert set(faults_of(layout_of(40, tp=4), model, framework="fsdp2")) == {"kv_heads_not_divisible"}


def test_r043_latent_attention_has_no_kv_heads_to_divide() -> None:
    model = dense_model(num_attention_heads=32, num_kv_heads=2, kv_lora_rank=512, qk_nope_head_dim=128, v_head_dim=128)
    assert faults_of(layout_of(8, tp=4), model, framework="fsdp2") == {}


@pytest.mark.parametrize("tp", [4, 8])
def test_r044_megatron_takes_tp_4_and_8_on_two_kv_heads(tp: int) -> None:
    model = dense_model(num_layers=40, num_attention_heads=32, num_kv_heads=2, ffn_hidden_size=13696)
    assert faults_of(layout_of(40, tp=tp), model) == {}


def test_megatron_refuses_kv_heads_and_tp_of_which_neither_is_a_multiple() -> None:
    model = dense_model(num_attention_heads=24, num_kv_heads=6, ffn_hidden_size=4104)
    fault = faults_of(layout_of(8, tp=4), model)["kv_heads_not_replicable"]
    assert fault.values["nearest"] == (3, 6)


def test_an_unknown_framework_follows_the_rules_of_the_nearest() -> None:
    model = dense_model(num_kv_heads=2)
    assert "kv_heads_not_divisible" in faults_of(layout_of(8, tp=4), model, framework="fsdp-2")
    assert faults_of(layout_of(8, tp=4), model, framework="megatron_core") == {}


# ------------------------------------------------------------------------------------------------ MLP and experts


def test_mlp_widths_divide_over_tp() -> None:
    fault = faults_of(layout_of(8, tp=8), dense_model(ffn_hidden_size=4100))["ffn_not_divisible"]
    assert fault.values["nearest"] == (4,)
    model = moe_model(ffn_hidden_size=4100, shared_expert_ffn_hidden_size=1028)
    assert set(faults_of(layout_of(8, tp=8, etp=1), model)) == {"shared_ffn_not_divisible"}


def test_a_dense_layer_among_experts_keeps_its_rule() -> None:
    assert "ffn_not_divisible" in faults_of(layout_of(8, tp=8), moe_model(ffn_hidden_size=4100, first_k_dense_layers=1))
    assert faults_of(layout_of(8, tp=8), moe_model(ffn_hidden_size=4100)) == {}


def test_experts_divide_over_ep_and_their_width_over_etp() -> None:
    found = faults_of(layout_of(8, dp=6, ep=6), moe_model(), global_batch_size=60)
    assert found["experts_not_divisible"].values["nearest"] == (4, 8)
    found = faults_of(layout_of(8, tp=8, etp=8), moe_model(moe_ffn_hidden_size=500))
    assert found["expert_ffn_not_divisible"].values["nearest"] == (5, 10)


def test_a_dense_model_has_nothing_to_divide_over_ep() -> None:
    assert set(faults_of(layout_of(8, dp=4, ep=2))) == {"no_experts"}


def test_the_expert_grid_covers_the_world() -> None:
    fault = faults_of(layout_of(8, tp=4, dp=2, ep=8), moe_model())["expert_grid_not_divisible"]
    assert fault.values["product"] == 32
    assert fault.values["nearest"] == (2,)


def test_an_expert_tensor_degree_that_breaks_the_grid_is_named_itself() -> None:
    fault = faults_of(layout_of(8, tp=2, dp=8, etp=3), dense_model())["expert_grid_not_divisible"]
    assert (fault.field, fault.value, fault.values["nearest"]) == ("layout.etp", 3, (2, 4))


def test_the_nearest_degree_of_ep_is_legal() -> None:
    layout = layout_of(8, tp=4, dp=2, ep=2)
    assert faults_of(layout, moe_model()) == {}


def test_an_order_is_not_judged_by_an_expert_grid_that_does_not_divide() -> None:
    layout = layout_of(8, pp=2, cp=3, ep=2, etp=1, rank_order="tp-pp-ep-dp-cp")
    assert set(faults_of(layout, moe_model(), cluster_of(1, 6), seq_len=6144)) == {"expert_grid_not_divisible"}


def test_an_order_with_pp_not_last_needs_equal_data_parallel_sizes() -> None:
    layout = layout_of(8, tp=2, pp=2, dp=4, ep=4, etp=1, rank_order="tp-cp-ep-pp-dp")
    fault = faults_of(layout, moe_model())["rank_order_pp_not_last"]
    assert fault.values["nearest"] == "tp-cp-ep-dp-pp"
    assert faults_of(replace(layout, rank_order="tp-cp-ep-dp-pp"), moe_model()) == {}
    assert faults_of(replace(layout, ep=2, etp=2, sequence_parallel=True), moe_model(), framework="jax") != {}


def test_an_order_that_gives_dense_and_expert_layers_other_pipelines_is_refused() -> None:
    layout = layout_of(8, tp=2, cp=2, pp=2, etp=4, rank_order="tp-dp-ep-pp-cp")
    fault = faults_of(layout, moe_model())["rank_order_splits_pipelines"]
    assert (fault.values["stride"], fault.values["expert_stride"]) == (2, 4)
    with pytest.raises(InvalidInputError):
        groups_of(layout)


def test_megatron_experts_over_tp_and_ep_need_sequence_parallelism() -> None:
    layout = layout_of(8, tp=2, dp=4, ep=4, etp=1, sequence_parallel=False)
    assert set(faults_of(layout, moe_model())) == {"experts_need_sequence_parallel"}
    assert faults_of(layout, moe_model(), framework="fsdp2") == {}


def test_the_megatron_of_2022_has_neither_cp_nor_ep_nor_zero_2() -> None:
    found = check_layout(
        moe_model(), training_of(framework="megatron-2022"), None, layout_of(8, cp=2, dp=2, ep=2, zero_stage=2)
    )
    assert {(f.code, f.field) for f in found} == {
        ("degree_not_in_framework", "layout.cp"),
        ("degree_not_in_framework", "layout.ep"),
        ("zero_not_in_framework", "layout.zero_stage"),
    }


# ------------------------------------------------------------------------------------------------ world, shards, device


def test_degrees_multiply_to_the_world() -> None:
    fault = faults_of(layout_of(8, tp=2, dp=4), cluster=cluster_of(2, 8))["dp_not_world"]
    assert (fault.value, fault.values["nearest"]) == (4, 8)


def test_on_local_cpu_ranks_the_world_is_what_the_layout_multiplies_to() -> None:
    cluster = cluster_of(1, 2, device=device(is_cpu=True), asked_device="local")
    assert faults_of(layout_of(8, tp=2, dp=4), cluster=cluster) == {}


def test_b57_a_world_of_21_has_layouts() -> None:
    model = dense_model(num_attention_heads=21, num_kv_heads=21, ffn_hidden_size=4200, num_layers=21)
    for degrees in ({"tp": 3, "dp": 7}, {"tp": 7, "pp": 3}, {"pp": 21}):
        assert faults_of(layout_of(21, **degrees), model, cluster_of(3, 7), seq_len=1050, global_batch_size=21) == {}
    assert "heads_not_divisible" in faults_of(layout_of(21, tp=2, dp=7), model, seq_len=1050, global_batch_size=21)


def test_a_shard_size_divides_dp() -> None:
    fault = faults_of(layout_of(8, dp=8, dp_shard_size=3))["shard_size_not_divisor"]
    assert fault.values["nearest"] == (2, 4)


@pytest.mark.parametrize("framework", ["deepspeed", "megatron-deepspeed"])
@pytest.mark.parametrize("zero_stage", [2, 3])
def test_deepspeed_runs_a_pipeline_with_zero_1_at_most(framework: str, zero_stage: int) -> None:
    layout = layout_of(8, pp=2, dp=2, zero_stage=zero_stage)
    assert set(faults_of(layout, framework=framework)) == {"zero_with_pipeline"}
    assert faults_of(replace(layout, zero_stage=1), framework=framework) == {}
    assert faults_of(layout, framework="fsdp2") == {}


@pytest.mark.parametrize(
    ("peaks", "precision", "nearest"),
    [
        (("fp32", "fp16"), "bf16", ("fp16",)),
        (("fp32", "fp16", "bf16"), "fp8", ("bf16",)),
        (("fp32", "fp16", "bf16", "fp8"), "nvfp4", "fp8"),
        (("fp32", "fp16", "bf16", "fp8"), "mxfp8", "fp8"),
    ],
)
def test_a_precision_that_the_device_lacks_is_refused(peaks: tuple[str, ...], precision: str, nearest: object) -> None:
    cluster = cluster_of(1, 8, device=device(peak_flops_per_s=MappingProxyType(dict.fromkeys(peaks, 1e14))))
    fault = faults_of(layout_of(8, dp=8), cluster=cluster, precision=precision)["precision_not_on_device"]
    assert fault.values["nearest"] == nearest


# ------------------------------------------------------------------------------------------------ stages and schedules


@pytest.mark.parametrize(
    ("split", "code"),
    [
        pytest.param((8, 8, 8, 4), "stage_layers_do_not_sum", id="r048"),
        pytest.param((8, 8, 14), "stage_entries_not_pp", id="three-entries"),
        pytest.param((15, 0, 8, 7), "stage_without_layers", id="an-empty-stage"),
        pytest.param((1,), "stage_layers_do_not_sum", id="r052"),
    ],
)
def test_stage_lists_have_pp_entries_that_sum_to_the_layers(split: tuple[int, ...], code: str) -> None:
    fault = faults_of(layout_of(30, pp=4, layers_per_stage=split), dense_model(num_layers=30))[code]
    assert fault.values["nearest"] == (7, 8, 8, 7)


def test_more_stages_than_layers_is_refused() -> None:
    assert faults_of(layout_of(4, pp=8), dense_model(num_layers=4))["more_stages_than_layers"].values["nearest"] == 4


def test_r050_five_layers_a_stage_do_not_divide_into_two_chunks() -> None:
    fault = faults_of(layout_of(40, pp=8, num_model_chunks=2), dense_model(num_layers=40))["chunks_not_divisible"]
    assert (fault.values["layers"], fault.values["nearest"]) == (5, (1, 5))


def test_r051_40_layers_on_16_stages_run_with_a_named_uneven_split() -> None:
    layout = layout_of(40, pp=16)
    assert sum(layout.layers_per_stage) == 40
    assert faults_of(layout, dense_model(num_layers=40)) == {}


def test_r053_interleaving_needs_a_pipeline_and_two_stages_are_enough() -> None:
    alone = layout_of(8, num_model_chunks=2, schedule="interleaved")
    assert "interleaved_without_pipeline" in faults_of(alone)
    assert faults_of(layout_of(8, pp=2, num_model_chunks=2)) == {}


@pytest.mark.parametrize("framework", ["fsdp2", "fsdp1", "builtin"])
def test_r054_torch_pipelines_need_as_many_microbatches_as_stages(framework: str) -> None:
    layout = layout_of(8, pp=8, overlap_grad_reduce=False, overlap_param_gather=False)
    found = faults_of(layout, global_batch_size=4, framework=framework)
    fault = found["fewer_microbatches_than_stages"]
    assert (fault.values["microbatches"], fault.values["nearest"]) == (4, (4,))
    assert fault.values["nearest_batch"] == 8
    assert "fewer_microbatches_than_stages" not in faults_of(layout, global_batch_size=8, framework=framework)


def test_megatron_runs_fewer_microbatches_than_stages_and_gpipe_does_everywhere() -> None:
    assert faults_of(layout_of(8, pp=8), global_batch_size=4) == {}
    assert faults_of(layout_of(8, pp=8, schedule="gpipe"), global_batch_size=4, framework="fsdp2") == {}


@pytest.mark.parametrize(
    ("microbatches", "group", "code"),
    [
        (10, 4, "group_remainder"),
        (2, 4, "interleaved_few_microbatches"),
        (8, 3, "group_size_out_of_range"),
        (8, 9, "group_size_out_of_range"),
    ],
)
def test_interleaved_groups_follow_megatron(microbatches: int, group: int, code: str) -> None:
    layout = layout_of(8, pp=4, num_model_chunks=2, microbatch_group_size_per_vp_stage=group)
    assert set(faults_of(layout, global_batch_size=microbatches)) == {code}


def test_fewer_microbatches_than_interleaved_stages_offer_1f1b_or_a_larger_batch() -> None:
    layout = layout_of(8, pp=4, num_model_chunks=2, dp=2)
    fault = faults_of(layout, global_batch_size=4)["interleaved_few_microbatches"]
    assert (fault.values["microbatches"], fault.values["nearest_batch"]) == (2, 8)
    assert faults_of(layout, global_batch_size=8) == {}


def test_the_nearest_group_and_the_nearest_batch_are_legal() -> None:
    layout = layout_of(8, pp=4, num_model_chunks=2)
    fault = faults_of(layout, global_batch_size=10)["group_remainder"]
    assert fault.values["nearest"] == (5,)
    assert fault.values["nearest_batch"] == (8, 12)
    assert faults_of(replace(layout, microbatch_group_size_per_vp_stage=5), global_batch_size=10) == {}
    assert faults_of(layout, global_batch_size=8) == faults_of(layout, global_batch_size=12) == {}


@pytest.mark.parametrize("schedule", ["zb-1p", "zb-2p", "zb-v", "dualpipe", "dualpipe-v"])
def test_schedules_that_are_not_built_are_refused_by_name(schedule: Any) -> None:
    fault = faults_of(layout_of(8, pp=2, schedule=schedule))["schedule_not_priced"]
    assert (fault.value, fault.values["nearest"]) == (schedule, "1f1b")


def test_schedule_and_chunks_agree() -> None:
    assert "pipeline_without_schedule" in faults_of(layout_of(8, pp=2, schedule="none"))
    assert "chunks_without_interleaving" in faults_of(layout_of(8, pp=2, schedule="1f1b", num_model_chunks=2))
    assert "interleaved_needs_chunks" in faults_of(layout_of(8, pp=2, schedule="interleaved"))


# ------------------------------------------------------------------------------------------------ batch and sequence


def test_b63_a_batch_of_10_offers_12() -> None:
    fault = faults_of(layout_of(8, dp=4, micro_batch_size=3), global_batch_size=10)["batch_not_divisible"]
    assert (fault.field, fault.values["nearest"]) == ("training.global_batch_size", (12,))


def test_r065_a_batch_of_256_over_7_replicas_offers_252_and_266_or_dp_8() -> None:
    fault = faults_of(layout_of(8, dp=7, micro_batch_size=2), global_batch_size=256)["batch_not_divisible"]
    assert fault.values["nearest"] == (252, 266)
    assert fault.values["nearest_dp"] == (4, 8)


@pytest.mark.parametrize(
    ("training", "field"),
    [
        pytest.param({"global_batch_size": 0}, "training.global_batch_size", id="b64-batch-0"),
        pytest.param({"seq_len": 0}, "training.seq_len", id="b64-seq-0"),
        pytest.param({"seq_len": 10**9}, "training.seq_len", id="b64-seq-1e9"),
        pytest.param({"global_batch_size": -4}, "training.global_batch_size", id="negative-batch"),
        pytest.param({"global_batch_size": 10**12}, "training.global_batch_size", id="huge-batch"),
    ],
)
def test_a_batch_or_sequence_of_zero_or_beyond_reason_is_refused(training: dict[str, int], field: str) -> None:
    found = check_layout(dense_model(), training_of(**training), None, layout_of(8, pp=2, num_model_chunks=2))
    assert (found_ranges := [f for f in found if f.code == "out_of_range"])
    assert [f.field for f in found_ranges] == [field]
    assert fault_lines(found)


def test_the_limit_of_the_sequence_is_the_nearest_value() -> None:
    found = check_layout(dense_model(), training_of(seq_len=10**9), None, layout_of(8))
    assert [f.values["nearest"] for f in found if f.field == "training.seq_len"] == [MAX_SEQ_LEN]


@pytest.mark.parametrize(
    ("cp", "tp", "sequence_parallel", "multiple"),
    [(2, 8, True, 16), (4, 3, True, 24), (1, 8, True, 8), (1, 8, False, 1), (4, 8, False, 8)],
)
def test_r058_the_sequence_is_a_multiple_of_cp_times_lcm_of_2_and_tp(
    cp: int, tp: int, sequence_parallel: bool, multiple: int
) -> None:
    assert sequence_multiple(cp, tp, sequence_parallel) == multiple
    model = dense_model(num_attention_heads=24, num_kv_heads=24, ffn_hidden_size=6144)
    layout = layout_of(8, cp=cp, tp=tp, sequence_parallel=sequence_parallel)
    assert faults_of(layout, model, seq_len=171 * multiple) == {}
    if multiple > 1:
        fault = faults_of(layout, model, seq_len=171 * multiple + 1)["sequence_not_divisible"]
        assert fault.values["multiple"] == multiple
        assert fault.values["nearest"] == (171 * multiple, 172 * multiple)


def test_r058_4104_tokens_suit_cp_4_and_tp_3() -> None:
    model = dense_model(num_layers=12, num_attention_heads=12, num_kv_heads=12, ffn_hidden_size=6144)
    assert faults_of(layout_of(12, cp=4, tp=3), model, seq_len=4104) == {}


def test_r059_8190_tokens_do_not_divide_over_tp_4() -> None:
    fault = faults_of(layout_of(8, tp=4, dp=2), seq_len=8190, framework="fsdp2")["sequence_not_divisible"]
    assert fault.values["nearest"] == (8188, 8192)


def test_a_sequence_longer_than_the_position_table_is_refused() -> None:
    fault = faults_of(layout_of(8), dense_model(position_embedding_size=512))["sequence_beyond_positions"]
    assert fault.values["nearest"] == 512


@pytest.mark.parametrize(
    ("tp", "framework", "rows"),
    [
        pytest.param(4, "megatron-core", 152064, id="r061"),
        pytest.param(4, "fsdp2", 151669, id="torch-shards-unevenly"),
        pytest.param(4, "nanotron", 151672, id="nanotron"),
        pytest.param(1, "megatron-deepspeed", 151680, id="tp-1"),
    ],
)
def test_the_vocabulary_is_padded_and_never_refused(tp: int, framework: str, rows: int) -> None:
    assert padded_vocab_size(151669, tp, framework) == rows
    found = check_layout(dense_model(vocab_size=151669), training_of(framework=framework), None, layout_of(8, tp=tp))
    assert found == []


def test_padding_is_the_same_over_an_array() -> None:
    assert np.array_equal(padded_vocab_size(50257, np.array([1.0, 8.0]), "megatron-core"), [50304, 51200])


def test_recomputed_layers_lie_within_a_stage_and_go_with_full_recomputation() -> None:
    layout = layout_of(8, pp=2, recompute="full", recompute_num_layers=5)
    assert faults_of(layout)["out_of_range"].values["nearest"] == 4
    assert faults_of(replace(layout, recompute_num_layers=4)) == {}
    assert set(faults_of(replace(layout, recompute_num_layers=1, recompute="none"))) == {"recompute_layers_unused"}


# ------------------------------------------------------------------------------------------------ all together


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
