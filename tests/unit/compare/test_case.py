"""One row as a case: what is inferred, what contradicts, and which rows cannot be predicted."""

import pytest

from tpdpdash.compare.case import read_case, read_cases, source_of
from tpdpdash.units import GIB

ROW = {
    "source_id": "mine", "hardware": "A100-SXM4-80GB", "gpus_per_node": "8", "num_gpus": "16", "model_name": "GPT 22B",
    "num_layers": "48", "hidden": "6144", "num_heads": "64", "num_kv_heads": "64", "head_dim": "96",
    "ffn_hidden": "24576", "gated_ffn": "0", "vocab": "51200", "tied_embeddings": "1", "seq_len": "2048", "tp": "8",
    "pp": "1", "vpp": "1", "dp": "2", "cp": "1", "zero_stage_or_fsdp": "0", "sequence_parallel": "1",
    "recompute": "full", "micro_batch": "4", "global_batch": "8", "precision": "bf16", "attention_impl": "naive",
    "framework": "Megatron-LM (2022)", "framework_family": "megatron-2022", "schedule": "none", "step_time_s": "1.4",
}  # fmt: skip


def case(**changes):
    return read_case(0, {**ROW, **changes})


def skipped(**changes):
    _, found = read_cases([{**ROW, **changes}])
    return (found[0].reason, found[0].column) if found else None


def test_a_complete_row_infers_nothing():
    found = case()
    assert found.inferred == ()
    assert (found.layout.tp, found.layout.dp, found.layout.world_size) == (8, 2, 16)
    assert found.training.tokens_per_step == 8 * 2048
    assert found.measured_step_s == 1.4


def test_step_time_follows_from_tokens_per_second():
    found = case(step_time_s="", tokens_per_sec_per_gpu="512")
    assert found.measured_step_s == pytest.approx(8 * 2048 / 512 / 16)


def test_a_step_time_of_an_unknown_batch_is_not_compared_but_its_speed_is():
    assert case(global_batch="").measured_step_s is None
    assert case(global_batch="", tokens_per_sec_per_gpu="512").measured_step_s == pytest.approx(8 * 2048 / 512 / 16)


@pytest.mark.parametrize(
    ("changes", "inferred", "expected"),
    [
        ({"dp": ""}, ("dp",), {"dp": 2}),
        ({"dp": "4"}, ("dp",), {"dp": 2}),
        ({"num_gpus": "12", "dp": "1"}, ("num_gpus",), {"dp": 1}),
        ({"num_gpus": ""}, ("num_gpus",), {"dp": 2}),
        ({"micro_batch": ""}, ("micro_batch",), {"micro_batch_size": 1}),
        ({"micro_batch": "8"}, ("micro_batch",), {"micro_batch_size": 4}),
        ({"pp": "2", "dp": "1", "schedule": ""}, ("schedule",), {"schedule": "1f1b"}),
        ({"pp": "2", "dp": "1", "schedule": "interleaved"}, ("vpp",), {"num_model_chunks": 2}),
        ({"recompute": ""}, ("recompute",), {"recompute": "none"}),
        ({"zero_stage_or_fsdp": ""}, ("zero_stage_or_fsdp",), {"zero_stage": 1}),
    ],
)
def test_what_a_row_does_not_state_or_contradicts_is_inferred_and_listed(changes, inferred, expected):
    found = case(**changes)
    assert found.inferred == inferred
    assert {name: getattr(found.layout, name) for name in expected} == expected


def test_layers_that_divide_only_with_embedding_and_loss_are_split_so():
    found = case(num_layers="22", pp="8", tp="1", dp="2", schedule="1f1b")
    assert found.layout.layers_per_stage == (2, 3, 3, 3, 3, 3, 3, 2)
    assert "layers_per_stage" in found.inferred


def test_experts_that_do_not_divide_are_spread_as_far_as_they_do():
    moe = {"num_experts": "8", "top_k": "2", "moe_ffn_hidden": "1024", "tp": "1", "dp": "16", "global_batch": "64"}
    found = case(**moe, ep="32")
    assert (found.layout.ep, found.layout.etp) == (8, 1)
    assert "ep" in found.inferred


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_layers": ""}, ("no_architecture", "num_layers")),
        ({"hidden": "0"}, ("no_architecture", "hidden")),
        ({"tp": "-8"}, ("bad_value", "tp")),
        ({"tp": "NaN"}, ("bad_value", "tp")),
        ({"tp": "1e400"}, ("bad_value", "tp")),
        ({"tp": "2.5"}, ("bad_value", "tp")),
        ({"pp": "1000000"}, ("bad_value", "pp")),
        ({"step_time_s": "0"}, ("bad_value", "step_time_s")),
        ({"step_time_s": "-1"}, ("bad_value", "step_time_s")),
        ({"step_time_s": "fast"}, ("bad_value", "step_time_s")),
        ({"gated_ffn": "perhaps"}, ("bad_value", "gated_ffn")),
        ({"precision": "int7"}, ("unknown_precision", "precision")),
        ({"recompute": "some"}, ("bad_value", "recompute")),
        ({"\0overflow": "9"}, ("ragged_row", "")),
    ],
)
def test_a_row_that_cannot_be_read_is_skipped_with_a_reason(changes, reason):
    assert skipped(**changes) == reason


def test_unknown_hardware_leaves_the_cluster_open():
    assert case(hardware="TPU-v9").cluster is None
    assert case(hardware="").cluster is None


def test_the_network_is_as_the_row_states():
    assert case(interconnect_note="4x100Gb/s RoCE per node").cluster.network.bytes_per_s == pytest.approx(50e9 / 8)


def test_memory_figures_and_how_they_were_read():
    found = case(peak_mem_gib_per_gpu="40", peak_scope="device", rank_view="last", weights_optimizer_gib="20")
    assert (found.measured_peak_bytes, found.peak_scope, found.rank_view) == (40 * GIB, "device", "last")
    assert found.measured_state_bytes == (("weights_optimizer", 20 * GIB),)


def test_releases_are_one_source():
    assert source_of("mbridge-26.04.01") == source_of("mbridge-25.09") == "mbridge"
    assert source_of("dgxc-v25.02") == "dgxc"
    assert source_of("mbridge-skills") == "mbridge-skills"
    assert source_of("dgxc-sample-log") == "dgxc-sample-log"
