"""What the built-in worker cannot run is refused by name, with the nearest it can; what it can is not refused."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from tpdpdash.layout.builtin_rules import BUILTIN_RULES
from tpdpdash.layout.layout import Layout, LayoutPins
from tpdpdash.layout.resolve import resolve_layout
from tpdpdash.layout.rules import check_layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.text import fault_lines
from tpdpdash.training import Training
from tpdpdash.worker import session

MODEL = ModelSpec(
    name="llama-like",
    num_layers=4,
    hidden_size=64,
    num_attention_heads=8,
    num_kv_heads=4,
    head_dim=16,
    ffn_hidden_size=96,
    vocab_size=256,
)
TRAINING = Training(seq_len=32, global_batch_size=16, precision="fp32", framework="builtin")


def layout_of(**pins: Any) -> Layout:
    """TP 2 × PP 2 × DP 2 with some keys changed, without asking whether it is legal."""
    layout = resolve_layout(LayoutPins(tp=2, pp=2, dp=2), MODEL, TRAINING, None)
    return replace(layout, **pins)


@pytest.mark.parametrize(
    "pins",
    [
        {},
        {"schedule": "gpipe"},
        {"zero_stage": 0},
        {"schedule": "interleaved", "num_model_chunks": 2},
        {"schedule": "zb-1p"},
        {"schedule": "zb-v", "num_model_chunks": 2},
        {"schedule": "dualpipe-v", "num_model_chunks": 2},
        {"dp_shard_size": 1},
        {"pp": 1, "schedule": "none", "layers_per_stage": (4,), "zero_stage": 2},
        {"pp": 1, "schedule": "none", "layers_per_stage": (4,), "zero_stage": 3},
        {"sequence_parallel": False},
        {"layers_per_stage": (1, 3)},
        {"recompute": "full"},
        {"recompute": "selective"},
        {"rank_order": "tp-cp-ep-pp-dp"},
        {"overlap_grad_reduce": True, "overlap_param_gather": True},
    ],
    ids=str,
)
def test_what_the_worker_runs_is_not_refused(pins: dict[str, Any]) -> None:
    assert check_layout(MODEL, TRAINING, None, layout_of(**pins)) == []


UNRUNNABLE: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("builtin_no_context_parallel", "layout.cp", {"cp": 2}, {}, {}),
    ("builtin_no_expert_parallel", "layout.ep", {"ep": 2}, {}, {}),
    ("zero_with_pipeline", "layout.zero_stage", {"zero_stage": 2}, {}, {}),
    ("schedule_not_in_framework", "layout.schedule", {"schedule": "zb-2p"}, {}, {}),
    ("rounds_not_even", "layout.schedule", {"schedule": "zb-1p"}, {}, {"global_batch_size": 10}),
    (
        "builtin_uneven_rounds",
        "training.global_batch_size",
        {"schedule": "interleaved", "num_model_chunks": 2},
        {},
        {"global_batch_size": 10},
    ),
    (
        "builtin_group_size",
        "layout.microbatch_group_size_per_vp_stage",
        {"schedule": "interleaved", "num_model_chunks": 2, "microbatch_group_size_per_vp_stage": 4},
        {},
        {},
    ),
    ("builtin_no_offload", "layout.offload_optimizer", {"offload_optimizer": True}, {}, {}),
    ("builtin_no_offload", "layout.offload_activations", {"offload_activations": True}, {}, {}),
    ("fewer_microbatches_than_stages", "layout.pp", {"micro_batch_size": 8}, {}, {}),
    ("builtin_no_experts", "model.num_experts", {}, {"num_experts": 8, "moe_ffn_hidden_size": 64}, {}),
    ("builtin_no_mla", "model.kv_lora_rank", {}, {"kv_lora_rank": 16}, {}),
    ("builtin_no_learned_positions", "model.position_embedding_size", {}, {"position_embedding_size": 64}, {}),
    ("builtin_only_rmsnorm", "model.norm", {}, {"norm": "layernorm"}, {}),
    ("builtin_only_two_norms", "model.norms_per_layer", {}, {"norms_per_layer": 4}, {}),
    ("builtin_only_final_norm", "model.final_norm", {}, {"final_norm": False}, {}),
    ("builtin_only_gated_mlp", "model.gated_mlp", {}, {"gated_mlp": False}, {}),
    ("builtin_no_bias", "model.attention_output_bias", {}, {"attention_output_bias": True}, {}),
    ("builtin_no_bias", "model.mlp_bias", {}, {"mlp_bias": True}, {}),
    ("builtin_no_bias", "model.lm_head_bias", {}, {"lm_head_bias": True}, {}),
    ("builtin_qk_norm", "model.qk_norm", {}, {"qk_norm": "full"}, {}),
    ("builtin_no_other_value_head", "model.v_head_dim", {}, {"v_head_dim": 32}, {}),
    ("builtin_no_window", "model.sliding_window", {}, {"sliding_window": 8, "sliding_layers": 1}, {}),
    ("builtin_no_extra_parameters", "model.extra_parameters_per_layer", {}, {"extra_parameters_per_layer": 4}, {}),
    ("builtin_no_extra_parameters", "model.extra_parameters", {}, {"extra_parameters": 4}, {}),
    ("builtin_vocabulary_not_divisible", "model.vocab_size", {}, {"vocab_size": 257}, {}),
    ("builtin_tied_over_stages", "model.tied_embeddings", {}, {"tied_embeddings": True}, {}),
    ("builtin_odd_head", "model.head_dim", {}, {"head_dim": 15}, {}),
    ("builtin_precision", "training.precision", {}, {}, {"precision": "fp8"}),
    ("builtin_optimizer", "training.optimizer", {}, {}, {"optimizer": "muon"}),
    ("builtin_only_full_training", "training.trainable", {}, {}, {"trainable": "lora"}),
    ("builtin_only_core_attention", "training.recompute_modules", {}, {}, {"recompute_modules": ("mlp",)}),
    ("builtin_no_dropout", "training.dropout", {}, {}, {"dropout": 0.1}),
    ("builtin_no_graphs", "training.cuda_graphs", {}, {}, {"cuda_graphs": "step"}),
    ("builtin_no_fp8_inputs", "training.fp8_activation_inputs", {}, {}, {"fp8_activation_inputs": True}),
    ("builtin_not_deterministic", "training.deterministic", {}, {}, {"deterministic": True}),
    ("builtin_no_packing", "training.packed_seq_len", {}, {}, {"packed_seq_len": 16}),
    ("builtin_full_fp32", "training.tf32", {}, {}, {"tf32": True}),
    ("builtin_no_prediction", "training.mtp_num_layers", {}, {}, {"mtp_num_layers": 1}),
    ("builtin_no_launch_blocking", "training.launch_blocking", {}, {}, {"launch_blocking": True}),
]


@pytest.mark.parametrize(("code", "field", "layout", "model", "training"), UNRUNNABLE, ids=lambda v: str(v)[:40])
def test_what_the_worker_cannot_run_is_refused_by_name(
    code: str, field: str, layout: dict[str, Any], model: dict[str, Any], training: dict[str, Any]
) -> None:
    spec, asked = replace(MODEL, **model), replace(TRAINING, **training)
    faults = check_layout(spec, asked, None, layout_of(**layout))
    named = [fault for fault in faults if (fault.code, fault.field) == (code, field)]
    assert len(named) == 1
    assert field in fault_lines(named)[0]
    assert "nearest" in named[0].values
    others = replace(asked, framework="fsdp2")
    assert not [fault for fault in check_layout(spec, others, None, layout_of(**layout)) if "builtin" in fault.code]


def test_every_rule_of_the_worker_is_covered_here() -> None:
    assert {(rule.code, rule.field) for rule in BUILTIN_RULES} <= {(code, field) for code, field, *_ in UNRUNNABLE}


BUILT = {"num_layers", "hidden_size", "num_attention_heads", "num_kv_heads", "ffn_hidden_size", "qkv_bias"}
ONLY_OF_EXPERTS = {
    "num_experts_per_token",
    "moe_ffn_hidden_size",
    "shared_expert_ffn_hidden_size",
    "first_k_dense_layers",
    "moe_layer_interval",
    "dense_layers",
    "router_bias",
    "shared_expert_gate",
}
ONLY_OF_WINDOWS = {"sliding_layers"}
ONLY_OF_MLA = {"q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"}


def test_every_fact_of_a_model_is_built_or_refused() -> None:
    """A fact that is added to ModelSpec must not be left out of the trained model without a word."""
    refused = {rule.field.removeprefix("model.") for rule in BUILTIN_RULES if rule.field.startswith("model.")}
    trained_where_asked = {"mtp_num_layers"}
    known = BUILT | ONLY_OF_EXPERTS | ONLY_OF_MLA | ONLY_OF_WINDOWS | refused | trained_where_asked | {"name", "source"}
    assert {field.name for field in fields(ModelSpec)} - known == set()


def test_tied_embeddings_run_on_one_stage() -> None:
    tied = replace(MODEL, tied_embeddings=True)
    assert check_layout(tied, TRAINING, None, layout_of(pp=1, schedule="none", layers_per_stage=(4,))) == []


@pytest.mark.parametrize(("first_step_s", "timeout_s"), [(0.5, 60.0), (30.0, 300.0)])
def test_a_rank_may_be_silent_for_a_minute_or_for_ten_long_steps(
    monkeypatch: pytest.MonkeyPatch, first_step_s: float, timeout_s: float
) -> None:
    """Where a step takes minutes, the first stage of a pipeline waits as long for its gradients and is not lost."""
    told = {}
    monkeypatch.setattr(session.dist.distributed_c10d, "_set_pg_timeout", lambda t, group: told.update({group: t}))
    session.shorten_timeout([None, "tp"], first_step_s)  # type: ignore[list-item]
    assert told == dict.fromkeys((None, "tp"), timedelta(seconds=timeout_s))
