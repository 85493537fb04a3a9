"""Bytes of activations kept for backward, per token of one layer on one rank.

What autograd saves in a fused implementation (Korthikanti 2022, arXiv:2205.05198 §4; Megatron-Core): the inputs of
norms and of GEMMs, queries, keys, values and their product, the activation function's input, masks where dropout > 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cost.arrays import Code, Flag
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.parameters import kv_heads_per_rank
from tpdpdash.cost.states import compute_bytes, gemm_input_bytes
from tpdpdash.layout.layout import RECOMPUTES
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

if TYPE_CHECKING:
    from tpdpdash.units import Numeric

MASK_BYTES = 1.0
"""A dropout mask, per element."""
LSE_BYTES = 4.0
"""fp32 log-sum-exp that flash attention keeps per token and head."""
ROUTER_BYTES = 8.0
"""fp32 logits and probabilities of the router, per token and expert."""
SELECTIVE, FULL = RECOMPUTES.index("selective"), RECOMPUTES.index("full")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBytes:
    """Bytes kept per token of one layer [bytes per token on this rank], by form of recompute."""

    everything: Numeric
    """No recompute."""
    selective: Numeric
    """Selective recompute, as the framework means it."""
    full: Numeric
    """Only the layer's input."""
    gradients: Numeric
    """Gradients of the inner tensors of its larger block, which backward holds at once."""

    def of(self, recompute: Code) -> Numeric:
        """Bytes under each row's recompute code (index in RECOMPUTES)."""
        partly = np.where(recompute == SELECTIVE, self.selective, self.everything)
        return np.where(recompute == FULL, self.full, partly)


def residual_bytes(model: ModelSpec, training: Training, split: Numeric) -> Numeric:
    """Inputs and outputs of norms, and masks of the two residual dropouts, per token.

    10 h of Korthikanti's equation 2 (two norm inputs 4 h, inputs of QKV and fc1 4 h, masks 2 h); `split` divides it:
    tp under sequence parallelism (equation 4), else 1.
    """
    h, norms = model.hidden_size, model.norms_per_layer
    masks = 2 * MASK_BYTES * h if training.dropout > 0 else 0.0
    inputs = compute_bytes(training) * norms + gemm_input_bytes(training) * min(norms, 2)
    return (h * inputs + masks) / split


def attention_bytes(model: ModelSpec, training: Training, tp: Numeric) -> Numeric:
    """Queries, keys, values and attention's output, per token: 8 h / t of equation 2; grouped heads keep fewer. The
    output is kept once more where the projection casts it.

    MLA keeps its compressed vectors before and after their norms, whole on every rank, and expanded q, k, v, o.
    """
    a, dq, dv = model.num_attention_heads, model.query_head_dim, model.value_head_dim
    kv = a / tp if model.is_mla else kv_heads_per_rank(model.num_kv_heads, tp)
    split = a * (dq + dv) / tp + kv * (dq + dv)
    if model.qk_norm != "none":
        split = split + (a / tp + kv) * dq
    whole = 2 * (model.q_lora_rank + model.kv_lora_rank) + model.qk_rope_head_dim if model.is_mla else 0
    element, cast = compute_bytes(training), gemm_input_bytes(training)
    copy = cast * a * dv / tp if cast < element else 0.0
    return element * (split + whole) + copy


def score_bytes(model: ModelSpec, training: Training, tp: Numeric) -> Numeric:
    """What core attention keeps besides, per token: 5 a s / t bytes of equation 2 (softmax 2, mask 1, dropout 2); with
    flash attention only the log-sum-exp."""
    heads = model.num_attention_heads / tp
    if training.attention == "flash":
        return LSE_BYTES * heads
    element = compute_bytes(training)
    kept = 2 * element + MASK_BYTES if training.dropout > 0 else element
    return kept * heads * training.seq_len


def mlp_bytes(model: ModelSpec, training: Training, ffn_hidden_size: int, split: Numeric) -> Numeric:
    """Input and output of the activation function, per token: 16 h / t of equation 2 with f = 4 h; gated MLPs keep both
    inputs of the gate. Without fused operators the activated gate is kept too."""
    tensors = (2 if model.gated_mlp else 1) + (1 if model.gated_mlp and not training.compiled else 0)
    return (compute_bytes(training) * tensors + gemm_input_bytes(training)) * ffn_hidden_size / split


def expert_bytes(model: ModelSpec, training: Training, *, tp: Numeric, etp: Numeric) -> Numeric:
    """MLP part of a mixture-of-experts layer, per token: router, shared experts, and for each of the top-k copies of a
    token its permuted input and the expert's inner tensors. A rank's experts see tokens · top-k · etp / tp copies, f /
    etp wide. Left out: imbalance between experts, padding of their batches."""
    k, h = model.num_experts_per_token, model.hidden_size
    copies = k * etp / tp
    inner = mlp_bytes(model, training, model.moe_ffn_hidden_size, etp)
    shared = mlp_bytes(model, training, model.shared_expert_ffn_hidden_size, tp)
    return copies * (gemm_input_bytes(training) * h + inner) + shared + ROUTER_BYTES * model.num_experts


def kept_bytes(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    moe: bool,
    *,
    tp: Numeric,
    etp: Numeric,
    sequence_parallel: Flag,
) -> KeptBytes:
    """Activation bytes per token of one layer under each form of recompute.

    Korthikanti 2022: none = equations 2 and 4; selective without the scores = equation 6; full = 2 h. Frameworks that
    select operators (torchtitan) keep the layer's input, every second matmul (q, v, up, down) and attention's output;
    others (fsdp1) recompute every second layer whole.
    """
    split = np.where(sequence_parallel, tp, 1.0)
    residual = residual_bytes(model, training, split)
    scores = score_bytes(model, training, tp)
    attention = attention_bytes(model, training, tp)
    if moe:
        inner = expert_bytes(model, training, tp=tp, etp=etp)
    else:
        inner = mlp_bytes(model, training, model.ffn_hidden_size, tp)
    everything = residual + attention + scores + inner
    layer_input = compute_bytes(training) * model.hidden_size / split
    selective: Numeric = residual + attention + inner
    if habits.selective_kind == "operators":
        tensors = 3 if model.gated_mlp else 2
        selective = 2 * layer_input + 0.75 * attention + scores + inner / tensors
    elif habits.selective_kind == "alternate_layers":
        selective = (everything + layer_input) / 2
    return KeptBytes(
        everything=everything,
        selective=np.minimum(selective, everything),
        full=layer_input,
        gradients=np.maximum(inner, attention + scores),
    )
