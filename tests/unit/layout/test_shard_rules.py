"""Rules of what is sharded: heads, widths, experts, the world, devices.

Test names carry the rows of the reference reports (r…) and bad inputs (b…) that they answer.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from rule_faults import faults_of
from strategies import cluster_of, dense_model, device, layout_of, moe_model, training_of

from tpdpdash.faults import InvalidInputError
from tpdpdash.layout.groups import groups_of
from tpdpdash.layout.rules import check_layout
from tpdpdash.model.presets import preset

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


@pytest.mark.parametrize("framework", ["deepspeed", "megatron-deepspeed", "builtin"])
@pytest.mark.parametrize("zero_stage", [2, 3])
def test_deepspeed_and_the_built_in_worker_run_a_pipeline_with_zero_1_at_most(framework: str, zero_stage: int) -> None:
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


@pytest.mark.parametrize("cp", [1, 2, 4, 8, 16, 40])
def test_r060_ulysses_divides_heads_of_which_keys_and_values_are_whole_or_copies(cp: int) -> None:
    """ms-swift, Qwen2.5-14B with 40 heads and 8 for keys and values: 8 and 40 ranks are valid, 16 is not."""
    layout, model = layout_of(48, cp=cp), preset("qwen2.5-14b")
    asked = {"cp_comm_type": "a2a", "seq_len": 2 * 40 * 16 * 8}
    fault = faults_of(layout, model, **asked).get("context_heads_not_divisible")
    assert (fault is None) is (cp != 16)
    if fault is not None:
        assert fault.values["legal"] == (1, 2, 4, 8, 40)
        assert fault.values["nearest"] == (8, 40)
    assert "context_heads_not_divisible" not in faults_of(layout, model, seq_len=asked["seq_len"])


def test_deepspeeds_context_parallelism_is_ulysses_and_shares_heads_with_tp() -> None:
    layout = layout_of(8, tp=4, cp=8)
    keys = {"framework": "deepspeed", "seq_len": 4096}
    assert "context_heads_not_divisible" in faults_of(layout, **keys)
    assert "context_heads_not_divisible" not in faults_of(replace(layout, cp=4), **keys)
