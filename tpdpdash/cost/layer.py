"""Device seconds of one layer for one microbatch on one rank, forward and backward, without messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cost.adapters import ADAPTER_KERNELS, adapted_matrices, adapter_traffic_bytes
from tpdpdash.cost.arrays import Flag
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.operators import (
    AttentionSeconds,
    DeviceRates,
    LinearSeconds,
    flash_attention_s,
    linear_s,
    naive_attention_s,
    traffic_s,
)
from tpdpdash.cost.parameters import kv_heads_per_rank, pairs_of
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

if TYPE_CHECKING:
    from tpdpdash.units import Numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """One layer, one microbatch, one rank [s]."""

    gemm_forward_s: Numeric
    """Products with weights."""
    gemm_backward_s: Numeric
    """Gradients of inputs and weights."""
    attention_forward_s: Numeric
    """Core attention."""
    attention_backward_s: Numeric
    """Core attention's gradients."""
    traffic_forward_s: Numeric
    """Norms, residuals, activation functions, rotary embedding, permutation."""
    traffic_backward_s: Numeric
    """Their gradients."""
    column_input_gradient_s: Numeric
    """Input gradients of column-parallel matrices, beside which TP messages can run."""
    column_weight_gradient_s: Numeric
    """Weight gradients of column-parallel matrices, likewise."""
    kernels: Numeric
    """Kernels launched in the forward pass, messages counted as their launches' worth."""

    @property
    def forward_s(self) -> Numeric:
        """Device time of the forward pass."""
        return self.gemm_forward_s + self.attention_forward_s + self.traffic_forward_s

    @property
    def backward_s(self) -> Numeric:
        """Device time of the backward pass."""
        return self.gemm_backward_s + self.attention_backward_s + self.traffic_backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linears:
    """The matrices of one layer by how they are split."""

    column: list[LinearSeconds]
    row: list[LinearSeconds]
    whole: list[LinearSeconds]


def layer_s(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    rates: DeviceRates,
    moe: bool,
    *,
    tokens: Numeric,
    tp: Numeric,
    ep: Numeric,
    etp: Numeric,
    sequence_parallel: Flag,
) -> LayerSeconds:
    """Device seconds of one layer. tokens: of one microbatch on one context parallel rank."""
    split = np.where(sequence_parallel, tp, 1.0)
    attention = _core_attention(model, training, habits, rates, tokens, tp)
    linears = _attention_linears(model, rates, tokens, tp)
    traffic_f, traffic_b = _residual_traffic(model, training, habits, rates, tokens, tp, split)
    if moe:
        inner = _expert_linears(model, habits, rates, tokens, tp, ep, etp)
        more_f, more_b = _expert_traffic(model, habits, rates, tokens, tp, etp)
    else:
        inner = _mlp_linears(model, rates, tokens, model.ffn_hidden_size, tp)
        more_f, more_b = _activation_traffic(model, training, habits, rates, tokens * model.ffn_hidden_size / tp)
    column, row = linears.column + inner.column, linears.row + inner.row
    every = column + row + linears.whole + inner.whole
    adapted = adapted_matrices(model, training, moe, tp=tp, ep=ep, etp=etp)
    adapters = traffic_s(tokens * adapter_traffic_bytes(adapted, rates.element_bytes), rates)
    return LayerSeconds(
        gemm_forward_s=sum((x.forward_s for x in every), 0.0 * tokens),
        gemm_backward_s=sum((x.backward_s for x in every), 0.0 * tokens),
        attention_forward_s=attention.forward_s,
        attention_backward_s=attention.backward_s,
        traffic_forward_s=traffic_f + more_f + adapters,
        traffic_backward_s=traffic_b + more_b + 2 * adapters,
        column_input_gradient_s=sum((x.input_gradient_s for x in column), 0.0 * tokens),
        column_weight_gradient_s=sum((x.weight_gradient_s for x in column), 0.0 * tokens),
        kernels=_kernels(model, habits, moe, len(adapted), tp, sequence_parallel),
    )


def _kernels(
    model: ModelSpec, habits: FrameworkHabits, moe: bool, adapters: int, tp: Numeric, sequence_parallel: Flag
) -> Numeric:
    """Launches of one forward pass: operators, adapters, and tensor parallel messages: one for each block that ends in
    a reduction, two under sequence parallelism."""
    operators = habits.layer_kernels + (habits.moe_kernels if moe else 0.0) + ADAPTER_KERNELS * adapters
    messages = pairs_of(model, moe) * np.where(sequence_parallel, 2.0, 1.0)
    return operators + np.where(np.asarray(tp) > 1, habits.message_kernels * messages, 0.0)


def _core_attention(
    model: ModelSpec, training: Training, habits: FrameworkHabits, rates: DeviceRates, tokens: Numeric, tp: Numeric
) -> AttentionSeconds:
    """Core attention over heads / tp. Under context parallelism each rank's tokens meet all keys, evenly balanced."""
    heads, dq, dv = model.num_attention_heads / tp, model.query_head_dim, model.value_head_dim
    if training.attention == "flash":
        return flash_attention_s(tokens, training.seq_len, heads, dq, dv, rates)
    dropout = training.dropout > 0
    return naive_attention_s(tokens, training.seq_len, heads, dq, dv, rates, dropout, habits.traffic_frac)


def _attention_linears(model: ModelSpec, rates: DeviceRates, tokens: Numeric, tp: Numeric) -> _Linears:
    """QKV and output projections; MLA's compressing projections are whole on every rank."""
    h, heads, dq, dv = model.hidden_size, model.num_attention_heads / tp, model.query_head_dim, model.value_head_dim
    output = linear_s(tokens, heads * dv, h, rates)
    if not model.is_mla:
        kv = kv_heads_per_rank(model.num_kv_heads, tp)
        return _Linears(column=[linear_s(tokens, h, heads * dq + kv * (dq + dv), rates)], row=[output], whole=[])
    rank, query_rank = model.kv_lora_rank, model.q_lora_rank
    whole = [linear_s(tokens, h, rank + model.qk_rope_head_dim, rates)]
    if query_rank:
        whole.append(linear_s(tokens, h, query_rank, rates))
    query = linear_s(tokens, query_rank or h, heads * dq, rates)
    expand = linear_s(tokens, rank, heads * (model.qk_nope_head_dim + dv), rates)
    return _Linears(column=[query, expand], row=[output], whole=whole)


def _mlp_linears(
    model: ModelSpec, rates: DeviceRates, tokens: Numeric, ffn_hidden_size: int, split: Numeric, weights: Numeric = 1.0
) -> _Linears:
    """Up (with gate) and down projections, f / split wide."""
    inner = ffn_hidden_size / split
    up = linear_s(tokens, model.hidden_size, (2 if model.gated_mlp else 1) * inner, rates, weights=weights)
    down = linear_s(tokens, inner, model.hidden_size, rates, weights=weights)
    return _Linears(column=[up], row=[down], whole=[])


def _expert_linears(
    model: ModelSpec,
    habits: FrameworkHabits,
    rates: DeviceRates,
    tokens: Numeric,
    tp: Numeric,
    ep: Numeric,
    etp: Numeric,
) -> _Linears:
    """Router, routed experts as grouped GEMMs over experts / ep matrices, shared experts as a dense MLP.

    A rank's experts see tokens · top-k · etp / tp copies. Router GEMMs run on the rank's own tokens.
    """
    copies = tokens * model.num_experts_per_token * etp / tp
    routed = _mlp_linears(model, rates, copies, model.moe_ffn_hidden_size, etp, model.num_experts / ep)
    slow = [_slowed(x, habits.grouped_gemm_frac) for x in routed.column + routed.row]
    router = linear_s(tokens / tp, model.hidden_size, model.num_experts, rates)
    shared_size = model.shared_expert_ffn_hidden_size
    shared = (
        _mlp_linears(model, rates, tokens, shared_size, tp) if shared_size else _Linears(column=[], row=[], whole=[])
    )
    return _Linears(column=shared.column, row=shared.row, whole=[router, *slow])


def _slowed(linear: LinearSeconds, speed: float) -> LinearSeconds:
    """The same products at a share of the speed."""
    return LinearSeconds(
        forward_s=linear.forward_s / speed,
        input_gradient_s=linear.input_gradient_s / speed,
        weight_gradient_s=linear.weight_gradient_s / speed,
    )


def _residual_traffic(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    rates: DeviceRates,
    tokens: Numeric,
    tp: Numeric,
    split: Numeric,
) -> tuple[Numeric, Numeric]:
    """(forward, backward) seconds of norms, residual adds with dropout, and rotary embedding.

    Per token and element size e: a norm reads and writes 2 h e (backward 3 h e); a residual add moves 3 h e, its
    dropout mask h more; rotary embedding reads and writes queries and keys.
    """
    e, h, norms = rates.element_bytes, model.hidden_size, model.norms_per_layer
    adds = min(norms, 2)
    mask = h * adds if training.dropout > 0 else 0.0
    eager = habits.traffic_frac if training.compiled else habits.eager_traffic
    kv = kv_heads_per_rank(model.num_kv_heads, tp) if not model.is_mla else model.num_attention_heads / tp
    rope = (
        0.0 if model.position_embedding_size else 2 * e * (model.num_attention_heads / tp + kv) * model.query_head_dim
    )
    forward = ((2 * norms + 3 * adds) * e * h + mask) / split + rope
    backward = ((3 * norms + 3 * adds) * e * h + mask) / split + rope
    return traffic_s(eager * tokens * forward, rates), traffic_s(eager * tokens * backward, rates)


def _activation_traffic(
    model: ModelSpec, training: Training, habits: FrameworkHabits, rates: DeviceRates, elements: Numeric
) -> tuple[Numeric, Numeric]:
    """(forward, backward) seconds of the activation function: a gate reads 2 and writes 1 (5 in backward), a plain one
    reads 1 and writes 1 (3)."""
    eager = habits.traffic_frac if training.compiled else habits.eager_traffic
    forward, backward = (3, 5) if model.gated_mlp else (2, 3)
    moved = eager * rates.element_bytes * elements
    return traffic_s(forward * moved, rates), traffic_s(backward * moved, rates)


def _expert_traffic(
    model: ModelSpec, habits: FrameworkHabits, rates: DeviceRates, tokens: Numeric, tp: Numeric, etp: Numeric
) -> tuple[Numeric, Numeric]:
    """(forward, backward) seconds of permutation, un-permutation and the experts' activation function.

    Each of the top-k copies is written and read before the dispatch, again after it where experts are sorted, and both
    on the way back: 8 h e a copy, in backward the same.
    """
    e, h = rates.element_bytes, model.hidden_size
    copies = tokens * model.num_experts_per_token * etp / tp
    inner = copies * model.moe_ffn_hidden_size / etp + tokens * model.shared_expert_ffn_hidden_size / tp
    forward, backward = (3, 5) if model.gated_mlp else (2, 3)
    permuted = 8 * e * h * copies
    fused = habits.traffic_frac
    return traffic_s(fused * (permuted + forward * e * inner), rates), traffic_s(
        fused * (permuted + backward * e * inner), rates
    )
