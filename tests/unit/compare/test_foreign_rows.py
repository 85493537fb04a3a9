"""Rows of people's own tables: what a name, a layout in words, or one figure beside another says of what is missing."""

import pytest

from tpdpdash.compare.case import read_case, read_cases
from tpdpdash.compare.layout_words import with_layout_words
from tpdpdash.compare.predict import predict
from tpdpdash.compare.table import parse_table
from tpdpdash.model.presets import preset

MIXTURE = {
    "hardware": "H100", "gpus_per_node": "8", "num_gpus": "8", "model_name": "Qwen3-30B-A3B", "num_layers": "48",
    "hidden": "2048", "seq_len": "4096", "ep": "8", "micro_batch": "1", "global_batch": "64", "precision": "bf16",
    "framework": "Megatron-LM", "step_time_s": "5",
}  # fmt: skip
DENSE = {
    "hardware": "8xH100", "model_name": "meta-llama/Llama-3.1-8B-Instruct", "seq_len": "8192", "tp": "2",
    "global_batch": "64", "precision": "bf16", "framework": "Megatron-LM",
}  # fmt: skip


def mixture(**changes):
    return read_case(0, {**MIXTURE, **changes})


def dense(**changes):
    return read_case(0, {**DENSE, **changes})


def test_a_mixture_that_leaves_out_its_experts_has_those_of_the_preset_that_it_names():
    found, known = mixture(ffn_hidden="6144"), preset("qwen3-30b-a3b")
    assert (found.model.moe_ffn_hidden_size, found.model.num_experts) == (768, 128)
    assert found.model.num_experts_per_token == known.num_experts_per_token
    assert (found.model.num_kv_heads, found.model.head_dim) == (4, 128)
    assert {"moe_ffn_hidden", "num_experts", "top_k", "num_kv_heads"} <= set(found.inferred)
    assert "ffn_hidden" not in found.inferred


def test_what_a_row_states_counts_before_the_preset():
    found = mixture(moe_ffn_hidden="1536", num_experts="64")
    assert (found.model.moe_ffn_hidden_size, found.model.num_experts) == (1536, 64)
    assert not {"moe_ffn_hidden", "num_experts"} & set(found.inferred)


def test_a_model_of_other_sizes_than_the_preset_of_its_name_takes_nothing_from_it():
    assert mixture(num_layers="24").model.num_experts == 0


@pytest.mark.parametrize("name", ["DeepSeek-V3-671B", "deepseek-ai/DeepSeek-V3-Base", "DeepSeek V3"])
def test_latent_attention_and_shared_experts_come_with_the_name(name):
    found, known = mixture(model_name=name, num_layers="61", hidden="7168"), preset("deepseek-v3")
    assert (found.model.kv_lora_rank, found.model.qk_rope_head_dim) == (512, 64)
    assert found.model.shared_expert_ffn_hidden_size == known.shared_expert_ffn_hidden_size == 2048
    assert (found.model.moe_ffn_hidden_size, found.model.first_k_dense_layers) == (2048, 3)


def test_a_checkpoint_is_named_with_its_owner_and_what_it_was_trained_for_further():
    assert dense().model.num_layers == 32
    assert {"num_layers", "hidden"} <= set(dense().inferred)


@pytest.mark.parametrize(
    ("changes", "dp"),
    [
        ({"micro_batch": "2", "gradient_accumulation_steps": "4"}, 8),  # 64 = 2 · 4 · 8
        ({"micro_batch": "2", "num_microbatches": "32"}, 1),
        ({"micro_batch": "2", "grad_accum": "5"}, 1),  # they do not divide: nothing follows
        ({"tokens_per_sec": "32,000", "tokens_per_sec_per_gpu": "2,000"}, 8),  # 16 devices, tp 2
        ({"step_time_s": "16", "tokens_per_sec_per_gpu": "2048"}, 8),  # 64 · 8,192 / 16 s / 2,048 = 16 devices
    ],
)
def test_replicas_follow_from_accumulated_microbatches_or_from_speeds_and_are_noted(changes, dp):
    found = dense(**changes)
    assert found.layout.dp == dp
    assert {"num_gpus", "dp"} <= set(found.inferred)


def test_step_time_follows_from_the_speed_of_all_devices():
    assert dense(num_gpus="16", tokens_per_sec="32768").measured_step_s == pytest.approx(64 * 8192 / 32768)


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        ("TP8 PP4 DP2", {"tp": "8", "pp": "4", "dp": "2"}),
        ("tp=8, pp=4, vp=2", {"tp": "8", "pp": "4", "vpp": "2"}),
        ("TP8-CP2-EP4-MBS1-GBS256", {"tp": "8", "cp": "2", "ep": "4", "micro_batch": "1", "global_batch": "256"}),
        ("tp_8_pp_4", {"tp": "8", "pp": "4"}),
        ("3D (TP: 4, PP: 2)", {"tp": "4", "pp": "2"}),
        ("http8 step4 tp2.5 fsdp", {}),
        ("", {}),
    ],
)
def test_degrees_that_stand_in_words_are_read(words, columns):
    assert with_layout_words({"layout": words}) == {"layout": words, **columns}


def test_columns_count_before_words():
    assert with_layout_words({"strategy": "TP8 PP4", "tp": "2", "pp": ""}) == {
        "strategy": "TP8 PP4", "tp": "2", "pp": "4",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("written", "device"),
    [
        ("8xH100", "H100-SXM5-80GB"),
        ("H100x8", "H100-SXM5-80GB"),
        ("64 H100s", "H100-SXM5-80GB"),
        ("8 x A100 80GB GPUs", "A100-SXM4-80GB"),
        ("8 MI300X", "MI300X-192GB"),
        ("L40S", "L40S-48GB"),
        ("4x RTX 4090", "RTX-4090-24GB"),
    ],
)
def test_devices_are_known_however_they_are_counted(written, device):
    found = dense(hardware=written, num_gpus="8")
    assert found.cluster is not None
    assert found.cluster.device.name == device


def test_a_short_table_in_any_order_is_predicted():
    table = parse_table(
        b"tokens_per_sec_per_gpu;layout;Model_Name;hardware;num_gpus;global_batch;seq_len\n"
        b"6.000;TP2 PP2;llama-3.1-8b;h100;16;128;8192\n"
        b"12,000,5;;llama-3.1-8b;h100;16;128;8192\n"
        b"9,5 %;TP2;llama-3.1-8b;h100;16;128;8192\n"
    )
    cases, skipped = read_cases(table.rows)
    assert [(found.layout.tp, found.layout.pp, found.layout.dp) for found in cases] == [(2, 2, 4)]
    assert [(one.row, one.reason, one.column) for one in skipped] == [
        (1, "bad_value", "tokens_per_sec_per_gpu"), (2, "bad_value", "tokens_per_sec_per_gpu"),
    ]  # fmt: skip
    assert predict(cases)[0].step_s is not None


@pytest.mark.parametrize(
    ("written", "chunks", "schedule", "read"),
    [
        ("zbv", "", "zb-v", 2),
        ("ScheduleZBVZeroBubble", "1", "zb-v", 2),
        ("DualPipeV", "2", "dualpipe-v", 2),
        ("InterleavedZeroBubble", "2", "zb-1p", 1),
        ("Interleaved1F1B", "2", "interleaved", 2),
        ("Schedule1F1B", "", "1f1b", 1),
        ("gpipe", "2", "gpipe", 1),
    ],
)
def test_a_schedule_has_its_own_number_of_chunks_whatever_the_row_says(written, chunks, schedule, read):
    found = dense(num_gpus="16", tp="1", pp="4", schedule=written, vpp=chunks, framework="torchtitan")
    assert (found.layout.schedule, found.layout.num_model_chunks) == (schedule, read)
    assert ("vpp" in found.inferred) == (int(chunks or 1) != read)
    assert predict([found])[0].step_s > 0


@pytest.mark.parametrize(
    ("written", "zero", "shard_size"),
    [
        ("FULL_SHARD", 3, 16), ("fsdp (SHARD_GRAD_OP)", 2, 16), ("no_shard", 0, 16), ("HYBRID_SHARD", 3, 8),
        ("HSDP (8)", 3, 8), ("FSDP2 / ZeRO-2", 2, 16), ("distributed optimizer", 1, 16), ("DDP", 0, 16), ("2", 2, 16),
        ("yes", 3, 16),
    ],
)  # fmt: skip
def test_sharding_is_read_from_the_words_that_frameworks_have_for_it(written, zero, shard_size):
    found = dense(num_gpus="16", tp="1", framework="torchtitan", zero_stage_or_fsdp=written)
    assert (found.layout.zero_stage, found.layout.dp_shard_size) == (zero, shard_size)
    assert ("zero_stage_or_fsdp" in found.inferred) == (written == "yes")


@pytest.mark.parametrize(("name", "zero"), [("PyTorch DDP", 0), ("nanoGPT", 0), ("PyTorch", 3), ("Megatron DDP", 0)])
def test_a_framework_that_replicates_shards_nothing_unless_told_otherwise(name, zero):
    assert dense(num_gpus="16", tp="1", framework=name).layout.zero_stage == zero
    assert dense(num_gpus="16", tp="1", framework=name, zero_stage_or_fsdp="3").layout.zero_stage == 3


@pytest.mark.parametrize(("sharding", "family"), [("ddp", "fsdp2"), ("full_shard", "fsdp1"), ("1", "megatron-core")])
def test_an_unknown_framework_is_known_by_what_it_calls_its_sharding(sharding, family):
    assert dense(framework="our own", zero_stage_or_fsdp=sharding).training.framework == family
