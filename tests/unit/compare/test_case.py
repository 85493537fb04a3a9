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
        ({"num_gpus": "", "dp": ""}, ("num_gpus", "dp"), {"dp": 1}),
        # 8 sequences of 2,048 tokens in 1.4 s at 365.7 tokens/s are 32 devices, 4 replicas of tp 8
        ({"num_gpus": "", "dp": "", "tokens_per_sec_per_gpu": "365.7"}, ("num_gpus", "dp", "micro_batch"), {"dp": 4}),
        ({"num_gpus": "", "dp": "", "tokens_per_sec_per_gpu": "325"}, ("num_gpus", "dp"), {"dp": 1}),
        ({"micro_batch": ""}, ("micro_batch",), {"micro_batch_size": 4}),
        ({"micro_batch": "", "pp": "2", "dp": "1", "schedule": "1f1b"}, ("micro_batch",), {"micro_batch_size": 1}),
        ({"micro_batch": "", "seq_len": "16384"}, ("micro_batch",), {"micro_batch_size": 1}),
        (
            {"framework_family": "megatron-core", "framework": "NeMo (Megatron-Core)"},
            ("gradient_dtype", "overlap_tp"),
            {"overlap_tp": True},
        ),
        ({"notes": "tp-comm-overlap on"}, (), {"overlap_tp": True}),
        (
            {"framework_family": "megatron-core", "framework": "NeMo", "notes": "no TP/PP comm overlap"},
            ("gradient_dtype",),
            {"overlap_tp": False},
        ),
        ({"micro_batch": "8"}, ("micro_batch",), {"micro_batch_size": 4}),
        ({"pp": "2", "dp": "1", "schedule": ""}, ("schedule",), {"schedule": "1f1b"}),
        ({"pp": "2", "dp": "1", "schedule": "interleaved"}, ("vpp",), {"num_model_chunks": 2}),
        ({"recompute": ""}, ("recompute",), {"recompute": "none"}),
        ({"zero_stage_or_fsdp": ""}, ("zero_stage_or_fsdp",), {"zero_stage": 1}),
        ({"zero_stage_or_fsdp": "ZeRO-2"}, (), {"zero_stage": 2}),
        ({"zero_stage_or_fsdp": "stage 3"}, (), {"zero_stage": 3}),
        ({"tp": "NaN", "num_gpus": "2"}, ("tp",), {"tp": 1}),
        ({"dp": "n/a"}, ("dp",), {"dp": 2}),
        ({"recompute": "Unknown"}, ("recompute",), {"recompute": "none"}),
        ({"recompute": "partial"}, ("recompute",), {"recompute": "none"}),
        ({"recompute": "Selective (core_attn)"}, (), {"recompute": "selective"}),
        ({"recompute": "yes"}, (), {"recompute": "full"}),
        ({"vpp": "None"}, (), {"num_model_chunks": 1}),
    ],
)
def test_what_a_row_does_not_state_or_contradicts_is_inferred_and_listed(changes, inferred, expected):
    found = case(**changes)
    assert found.inferred == inferred
    assert {name: getattr(found.layout, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("cell", "precision", "inferred"),
    [
        ("BF16", "bf16", ()),
        ("bf16-mixed", "bf16", ("precision",)),
        ("16-mixed", "fp16", ()),
        ("FP8 (e4m3) over bf16", "fp8", ("precision",)),
        ("mxfp8 hybrid", "mxfp8", ("precision",)),
        ("int7", "bf16", ("precision",)),
        ("-", "bf16", ("precision",)),
    ],
)
def test_a_precision_is_known_by_the_word_of_its_products(cell, precision, inferred):
    found = case(precision=cell, framework_family="megatron-2022")
    assert found.training.precision == precision
    assert tuple(name for name in found.inferred if name == "precision") == inferred


def test_thousands_may_be_set_apart():
    assert case(vocab="51,200").model.vocab_size == 51_200
    assert skipped(vocab="51,20") == ("bad_value", "vocab")


@pytest.mark.parametrize(("microbatches", "group"), [(8, 4), (5, 5), (10, 5), (7, 7), (11, 6), (3, 4)])
def test_microbatches_that_megatron_does_not_interleave_by_stages_go_in_the_next_larger_groups(microbatches, group):
    pipeline = {"pp": "4", "dp": "1", "tp": "1", "num_gpus": "4", "num_layers": "16", "vpp": "2"}
    found = case(**pipeline, schedule="interleaved", micro_batch="1", global_batch=str(microbatches))
    assert found.layout.microbatch_group_size_per_vp_stage == group
    assert ("microbatch_group_size_per_vp_stage" in found.inferred) is (group != 4)


def test_an_mlp_of_no_stated_width_or_kind_is_a_plain_one():
    found = case(ffn_hidden="", gated_ffn="").model
    assert (found.gated_mlp, found.ffn_hidden_size) == (False, 4 * found.hidden_size)
    assert case(gated_ffn="").model.gated_mlp


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
        ({"tp": "1e400"}, ("bad_value", "tp")),
        ({"tp": "2.5"}, ("bad_value", "tp")),
        ({"pp": "1000000"}, ("bad_value", "pp")),
        ({"step_time_s": "0"}, ("bad_value", "step_time_s")),
        ({"step_time_s": "-1"}, ("bad_value", "step_time_s")),
        ({"step_time_s": "fast"}, ("bad_value", "step_time_s")),
        ({"gated_ffn": "perhaps"}, ("bad_value", "gated_ffn")),
        ({"num_layers": "n/a"}, ("no_architecture", "num_layers")),
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


def test_nvidias_recipes_adapt_queries_keys_and_values_alone():
    recipe = {"framework": "NeMo", "framework_family": "megatron-core", "task": "lora"}
    found = case(**recipe)
    assert found.training.lora_targets == ("linear_qkv",)
    assert "lora_targets" in found.inferred
    assert case(task="lora").training.lora_targets == ()


def test_deterministic_mode_and_separate_accumulation_are_read_from_the_notes():
    notes = "--deterministic-mode; --no-gradient-accumulation-fusion"
    training = case(notes=notes).training
    assert (training.deterministic, training.fused_accumulation) == (True, False)
    assert (case().training.deterministic, case().training.fused_accumulation) == (False, True)


def test_flash_attentions_training_code_pads_the_vocabulary():
    found = case(framework="flash-attn training (PyTorch Lightning)", vocab="50257")
    assert (found.model.vocab_size, "vocab" in found.inferred) == (50264, True)
    assert case(framework="other", vocab="50257").model.vocab_size == 50257


def test_launches_that_wait_are_read_from_the_note_on_the_cluster():
    assert case(interconnect_note="4x Omni-Path; CUDA_LAUNCH_BLOCKING=1 used on large runs").training.launch_blocking
    assert not case().training.launch_blocking


def test_deepseeks_recipe_keeps_inputs_of_activation_functions_in_eight_bits_under_fp8():
    notes = "recompute RMSNorm + MLA up-projections; DualPipe"
    assert case(notes=notes, precision="fp8").training.fp8_activation_inputs
    assert not case(notes=notes).training.fp8_activation_inputs
    assert not case(precision="fp8").training.fp8_activation_inputs


def test_adapters_are_inferred_from_the_models_name_and_listed():
    found = case(model_name="Qwen3-8B LoRA")
    assert found.training.trainable == "lora"
    assert found.inferred == ("task",)
    assert case(task="lora").inferred == ()


@pytest.mark.parametrize(
    ("note", "layers"),
    [
        ("decoder-first-pipeline-num-layers=12", (12, 12, 12, 12)),
        ("decoder-first-pipeline-num-layers=10", (10, 14, 14, 10)),
        ("decoder-first-pipeline-num-layers=8; decoder-last-pipeline-num-layers=12", (8, 14, 14, 12)),
    ],
)
def test_layers_of_the_end_stages_are_megatrons_options(note, layers):
    found = case(pp="4", tp="2", dp="2", schedule="1f1b", notes=f"transformer-impl=local; {note}")
    assert found.layout.layers_per_stage == layers


@pytest.mark.parametrize(
    ("vpp", "method", "layers"), [("1", "block", 2), ("3", "block", 6), ("12", "block", 12), ("3", "uniform", 2)]
)
def test_megatrons_block_recompute_counts_layers_of_each_chunk(vpp, method, layers):
    """Of 12 layers a stage, two of each of three chunks; more than there are is all of them."""
    schedule = "1f1b" if vpp == "1" else "interleaved"
    notes = f"transformer-impl=local; recompute-method={method}; recompute-num-layers=2"
    found = case(pp="4", tp="2", dp="2", vpp=vpp, schedule=schedule, notes=notes, global_batch="32")
    assert found.layout.recompute_num_layers == layers


@pytest.mark.parametrize(
    ("family", "stated", "expected"),
    [("deepspeed", "", "bf16"), ("deepspeed", "fp32", "fp32"), ("megatron-deepspeed", "", "fp32")],
)
def test_deepspeed_adds_up_gradients_in_the_models_precision(family, stated, expected):
    found = case(framework_family=family, gradient_dtype=stated, zero_stage_or_fsdp="1")
    assert found.training.gradient_dtype == expected


def test_nanotrons_stages_and_counter_are_its_own():
    found = case(framework_family="nanotron", pp="2", dp="1", schedule="1f1b", gated_ffn="1", peak_gib="20")
    assert found.layout.layers_per_stage == (25, 23)
    assert found.peak_scope == "reserved"
    assert case(peak_gib="20").peak_scope == "allocated"


def test_a_command_line_says_what_holds_workspaces():
    found = case(notes="--deterministic-mode; transformer-impl=local")
    assert found.training.deterministic
    libraries = found.libraries
    assert (libraries.is_local, libraries.groups_experts, libraries.is_megatron_lm) == (True, False, True)
    assert case().libraries.groups_experts


def test_activations_are_in_host_memory_where_notes_or_the_example_script_say_so():
    assert case(notes="activation CPU offload of 20 layers").layout.offload_activations
    found = case(
        framework="Megatron-LM v1.1.5 + DeepSpeed ZeRO-3", framework_family="megatron-deepspeed", zero_stage_or_fsdp="3"
    )
    assert found.layout.offload_activations
    assert "offload_activations" in found.inferred


def test_a_world_that_is_not_stated_holds_the_experts():
    found = case(num_gpus="", dp="", num_experts="8", top_k="2", moe_ffn_hidden="512", ep="8", tp="2")
    assert (found.layout.dp, found.layout.ep) == (4, 8)


def test_automodel_trains_with_16_bit_states():
    found = case(framework="NeMo AutoModel (PyTorch FSDP2/DTensor)", framework_family="fsdp2")
    assert found.training.optimizer_states == "bf16"
    assert "optimizer_states" in found.inferred
    assert case(notes="DualPipe; MTP depth 1; bf16 Adam moments").training.optimizer_states == "bf16"


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Megatron-LM v1.1.5 + DeepSpeed ZeRO-3", "megatron-deepspeed"),
        ("NeMo AutoModel (PyTorch FSDP2/DTensor)", "fsdp2"),
        ("Primus Megatron-LM (ROCm)", "megatron-core"),
        ("NeMo 2.0", "megatron-core"),
        ("torchtitan", "fsdp2"),
        ("lit-gpt (FSDP)", "fsdp1"),
        ("HF Transformers + DeepSpeed", "deepspeed"),
        ("MaxText", "jax"),
        ("nanotron 0.5", "nanotron"),
        ("InternLM training", "internevo"),
        ("my own loop", "megatron-core"),
    ],
)
def test_a_framework_is_known_by_the_words_of_its_name(name, family):
    found = case(framework_family="", framework=name)
    assert found.training.framework == family
    assert "framework_family" in found.inferred


@pytest.mark.parametrize(
    ("written", "device", "inferred"),
    [
        ("A100", "A100-SXM4-80GB", ("hardware",)),
        ("8x H100", "H100-SXM5-80GB", ("hardware",)),
        ("H100 SXM x 8", "H100-SXM5-80GB", ("hardware",)),
        ("dgx-a100", "A100-SXM4-80GB", ("hardware",)),
        ("V100-SXM2", "V100-SXM2-32GB", ("hardware",)),
        ("A100 40GB", "A100-SXM4-40GB", ()),
        ("H100 PCIe", "H100-PCIe-80GB", ()),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB", ()),
        ("GB200 NVL72", "GB200-NVL72-186GB", ()),
    ],
)
def test_a_chip_named_alone_is_the_board_that_clusters_have_and_noted(written, device, inferred):
    found = case(hardware=written)
    assert found.cluster is not None
    assert (found.cluster.device.name, found.hardware) == (device, written)
    assert found.inferred == inferred


def test_hardware_that_is_not_known_has_no_cluster():
    assert case(hardware="TPU v5p").cluster is None


SIZES = ("num_layers", "hidden", "num_heads", "num_kv_heads", "head_dim", "ffn_hidden", "gated_ffn", "vocab")


@pytest.mark.parametrize("name", ["llama-3.1-70b", "Llama 3.1 70B", "LLAMA3.1_70B"])
def test_a_row_without_any_size_has_the_sizes_of_the_preset_that_it_names(name):
    found = case(**dict.fromkeys(SIZES, ""), model_name=name)
    assert (found.model.num_layers, found.model.hidden_size, found.model.num_kv_heads) == (80, 8192, 8)
    assert found.model.name == name
    assert {"num_layers", "hidden"} <= set(found.inferred)


def test_a_named_mixture_has_its_experts_in_the_layout_too():
    found = case(**dict.fromkeys(SIZES, ""), model_name="Mixtral-8x7B", ep="8", tp="2", dp="8", micro_batch="1")
    assert (found.model.num_experts, found.layout.ep) == (8, 8)


def test_a_name_that_is_no_preset_makes_no_model():
    assert skipped(**dict.fromkeys(SIZES, ""), model_name="Our model") == ("no_architecture", "num_layers")


def test_stated_sizes_count_before_the_name():
    assert case(model_name="llama-3-8b").model.num_layers == 48


@pytest.mark.parametrize(
    ("family", "expected"),
    [("megatron-core", True), ("nanotron", True), ("megatron-deepspeed", False), ("internevo", False)],
)
def test_sequence_parallelism_that_is_not_stated_is_the_frameworks_default(family, expected):
    found = case(framework_family=family, sequence_parallel="")
    assert "sequence_parallel" in found.inferred
    assert found.layout.sequence_parallel is expected
