"""Device seconds of one layer for one microbatch on one rank, forward and backward, without messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cost.activations import covered
from tpdpdash.cost.adapters import ADAPTER_KERNELS, adapted_matrices, adapter_traffic_bytes
from tpdpdash.cost.arrays import Flag, floats
from tpdpdash.cost.builtin_time import layer_elements
from tpdpdash.cost.experts import expert_linears, expert_traffic_s, routed_of
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.linears import Linears, mlp_linears
from tpdpdash.cost.operators import (
    ACTIVATION_PASSES,
    AttentionSeconds,
    DeviceRates,
    LinearSeconds,
    flash_attention_s,
    linear_s,
    naive_attention_s,
    traffic_s,
)
from tpdpdash.cost.parameters import kv_heads_per_rank, pairs_of, sequence_split
from tpdpdash.elementwise import choose, rounded
from tpdpdash.model.counts import attended_len
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

if TYPE_CHECKING:
    from tpdpdash.units import Numeric


LAUNCHED_FRAC = {"none": 1.0, "modules": 0.65, "step": 0.0}
"""Host time that is left of a layer's launches under CUDA graphs: attention and router are about a third of an expert
layer's. Assumed: chosen by hand on Megatron-Bridge's runs of small microbatches with and without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """One layer, one microbatch, one rank [s]."""

    gemm_forward_s: Numeric
    """Products with weights."""
    gemm_backward_s: Numeric
    """Gradients of inputs and weights."""
    gemm_weight_gradient_s: Numeric
    """Gradients of weights, part of gemm_backward_s."""
    attention_forward_s: Numeric
    """Core attention."""
    attention_backward_s: Numeric
    """Core attention's gradients."""
    traffic_forward_s: Numeric
    """Norms, residuals, activation functions, rotary embedding, permutation."""
    traffic_backward_s: Numeric
    """Their gradients."""
    modules_forward_s: Numeric
    """The forward pass of the modules that selective recompute is told to recompute; 0 where none is named."""
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
class AttentionBlock:
    """What dense layers and mixtures of experts have alike: attention with its matrices, norms, residuals."""

    core: AttentionSeconds
    """Core attention."""
    linears: Linears
    """Projections."""
    traffic_s: tuple[Numeric, Numeric]
    """Norms, residuals and rotary embedding, forward and backward."""


def attention_block(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    rates: DeviceRates,
    *,
    tokens: Numeric,
    tp: Numeric,
    sequence_parallel: Flag,
) -> AttentionBlock:
    """Device seconds of one layer's attention. tokens: of one microbatch on one context parallel rank."""
    split = sequence_split(sequence_parallel, tp)
    if habits.counts_operators:
        traffic = _counted_traffic(model, rates, tokens, tp, split)
    else:
        traffic = _residual_traffic(model, training, habits, rates, tokens, tp, split)
    return AttentionBlock(
        core=_core_attention(model, training, habits, rates, tokens, tp),
        linears=_attention_linears(model, rates, tokens, tp, split if habits.compresses_shards else 1.0),
        traffic_s=traffic,
    )


def layer_s(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    rates: DeviceRates,
    moe: bool,
    block: AttentionBlock,
    *,
    tokens: Numeric,
    tp: Numeric,
    ep: Numeric,
    etp: Numeric,
    sequence_parallel: Flag,
) -> LayerSeconds:
    """Device seconds of one layer. tokens: of one microbatch on one context parallel rank; block: its attention."""
    split = sequence_split(sequence_parallel, tp)
    attention, linears, (traffic_f, traffic_b) = block.core, block.linears, block.traffic_s
    permuted: Numeric = 0.0
    if moe:
        routed = routed_of(model, training, tokens=tokens, tp=tp, ep=ep, etp=etp)
        inner = expert_linears(model, habits, rates, routed, tokens, tp)
        permuted, more_f, more_b = expert_traffic_s(model, training, habits, rates, routed, tokens, tp)
    else:
        inner = mlp_linears(model, rates, tokens, model.ffn_hidden_size, tp)
        more_f, more_b = 0.0, 0.0
        if not habits.counts_operators:
            more_f, more_b = _activation_traffic(model, training, habits, rates, tokens * model.ffn_hidden_size / tp)
    modules = covered(training.recompute_modules)
    module_s = (
        {}
        if not modules
        else {
            "core_attn": attention.forward_s,
            "layernorm": traffic_s(4 * rates.element_bytes * model.hidden_size * tokens / split, rates),
            "mla_up_proj": _forward_s(linears.column) if model.is_mla else 0.0,
            "mlp": 0.0 if moe else _forward_s(inner.column + inner.row) + more_f,
            "moe": _forward_s(inner.column + inner.row + inner.whole) + permuted + more_f if moe else 0.0,
            "moe_act": more_f if moe else 0.0,
            "shared_experts": _forward_s(inner.column + inner.row) if moe else 0.0,
        }
    )
    column, row = linears.column + inner.column, linears.row + inner.row
    every = column + row + linears.whole + inner.whole
    adapted = adapted_matrices(model, training, moe, tp=tp, ep=ep, etp=etp)
    adapters = traffic_s(tokens * adapter_traffic_bytes(adapted, rates.element_bytes), rates)
    filled = traffic_s(tokens * filled_bytes(model, training, rates, moe, tp=tp, etp=etp, split=split), rates)
    return LayerSeconds(
        gemm_forward_s=0.0 * tokens + _forward_s(every),
        gemm_backward_s=sum((x.backward_s for x in every), 0.0 * tokens),
        gemm_weight_gradient_s=sum((x.weight_gradient_s for x in every), 0.0 * tokens),
        attention_forward_s=attention.forward_s,
        attention_backward_s=attention.backward_s,
        traffic_forward_s=traffic_f + permuted + more_f + adapters + filled,
        traffic_backward_s=traffic_b + permuted + more_b + 2 * adapters + filled,
        modules_forward_s=sum((module_s[name] for name in modules), 0.0 * tokens),
        column_input_gradient_s=sum((x.input_gradient_s for x in column), 0.0 * tokens),
        column_weight_gradient_s=sum((x.weight_gradient_s for x in column), 0.0 * tokens),
        kernels=_kernels(model, training, habits, moe, len(adapted), tp, sequence_parallel),
    )


def filled_bytes(
    model: ModelSpec, training: Training, rates: DeviceRates, moe: bool, *, tp: Numeric, etp: Numeric, split: Numeric
) -> Numeric:
    """Bytes per token that PyTorch's deterministic mode writes into a pass's outputs before the kernels do
    (torch.utils.deterministic.fill_uninitialized_memory, on by default): norms, residual sums, queries, keys, values,
    attention, both inputs and the output of the activation, and the rows that matrices put out. 0 without that mode."""
    if not training.deterministic:
        return 0.0
    h, heads, dq, dv = model.hidden_size, model.num_attention_heads / tp, model.query_head_dim, model.value_head_dim
    kv = kv_heads_per_rank(model, tp)
    gates = 3 if model.gated_mlp else 2
    copies, width = (model.num_experts_per_token, model.moe_ffn_hidden_size) if moe else (1, model.ffn_hidden_size)
    inner = copies * gates * width / tp + (model.shared_expert_ffn_hidden_size * gates / tp if moe else 0.0)
    states = (model.norms_per_layer + 2) * h / split + (1 + copies * etp / tp if moe else 2.0) * h
    return rates.element_bytes * (states + heads * (dq + dv) + kv * (dq + dv) + inner)


def _forward_s(linears: list[LinearSeconds]) -> Numeric:
    """Forward products of matrices."""
    return sum((x.forward_s for x in linears), 0.0)


def _kernels(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    moe: bool,
    adapters: int,
    tp: Numeric,
    sequence_parallel: Flag,
) -> Numeric:
    """Launches of one forward pass: operators, adapters, and tensor parallel messages: one for each block that ends in
    a reduction, two under sequence parallelism. What is captured in a graph is launched at once."""
    operators = habits.layer_kernels + (habits.moe_kernels if moe else 0.0) + ADAPTER_KERNELS * adapters
    messages = pairs_of(model, moe) * choose(sequence_parallel, 2.0, 1.0)
    launched = operators + habits.message_kernels * messages * _meeting_hosts(habits, tp)
    return LAUNCHED_FRAC[training.cuda_graphs] * launched


def _meeting_hosts(habits: FrameworkHabits, tp: Numeric) -> Numeric:
    """Host time of a message over tp ranks against one over two, log2 tp: it starts when the slowest host has launched
    it, and of more hosts the slowest is slower. Where operators are counted, the link's latency holds the wait."""
    if habits.counts_operators:
        return choose(floats(tp) > 1, 1.0, 0.0)
    return rounded(np.log2(floats(tp)), 9)


def _core_attention(
    model: ModelSpec, training: Training, habits: FrameworkHabits, rates: DeviceRates, tokens: Numeric, tp: Numeric
) -> AttentionSeconds:
    """Core attention over heads / tp. Under context parallelism each rank's tokens meet all keys, evenly balanced.
    Fused attention skips what lies outside of packed sequences and windows; scores that are written out are masked
    there."""
    heads, dq, dv = model.num_attention_heads / tp, model.query_head_dim, model.value_head_dim
    if training.attention == "flash":
        return flash_attention_s(tokens, attended_len(model, training.attended_len), heads, dq, dv, rates)
    dropout = training.dropout > 0
    return naive_attention_s(tokens, training.seq_len, heads, dq, dv, rates, dropout, habits.traffic_frac)


def _attention_linears(model: ModelSpec, rates: DeviceRates, tokens: Numeric, tp: Numeric, split: Numeric) -> Linears:
    """QKV and output projections; MLA's compressing projections are whole on every rank, which runs them on its
    tokens / split."""
    h, heads, dq, dv = model.hidden_size, model.num_attention_heads / tp, model.query_head_dim, model.value_head_dim
    output = linear_s(tokens, heads * dv, h, rates)
    if not model.is_mla:
        kv = kv_heads_per_rank(model, tp)
        return Linears(column=[linear_s(tokens, h, heads * dq + kv * (dq + dv), rates)], row=[output], whole=[])
    rank, query_rank = model.kv_lora_rank, model.q_lora_rank
    whole = [linear_s(tokens / split, h, rank + model.qk_rope_head_dim, rates)]
    if query_rank:
        whole.append(linear_s(tokens / split, h, query_rank, rates))
    query = linear_s(tokens, query_rank or h, heads * dq, rates)
    expand = linear_s(tokens, rank, heads * (model.qk_nope_head_dim + dv), rates)
    return Linears(column=[query, expand], row=[output], whole=whole)


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
    eager = habits.element_wise_frac(training.compiled)
    kv = kv_heads_per_rank(model, tp)
    rope = (
        0.0 if model.position_embedding_size else 2 * e * (model.num_attention_heads / tp + kv) * model.query_head_dim
    )
    forward = ((2 * norms + 3 * adds) * e * h + mask) / split + rope
    backward = ((3 * norms + 3 * adds) * e * h + mask) / split + rope
    return traffic_s(eager * tokens * forward, rates), traffic_s(eager * tokens * backward, rates)


def _counted_traffic(
    model: ModelSpec, rates: DeviceRates, tokens: Numeric, tp: Numeric, split: Numeric
) -> tuple[Numeric, Numeric]:
    """(forward, backward) seconds of all element-wise operators, as they are counted in the layer's own code."""
    counted = layer_elements(model, tp=tp, split=split, is_cpu=rates.is_cpu)
    moved = rates.element_bytes * tokens
    return traffic_s(moved * counted.forward, rates), traffic_s(moved * counted.backward, rates)


def _activation_traffic(
    model: ModelSpec, training: Training, habits: FrameworkHabits, rates: DeviceRates, elements: Numeric
) -> tuple[Numeric, Numeric]:
    """(forward, backward) seconds of the activation function."""
    eager = habits.element_wise_frac(training.compiled)
    forward, backward = ACTIVATION_PASSES[model.gated_mlp]
    moved = eager * rates.element_bytes * elements
    return traffic_s(forward * moved, rates), traffic_s(backward * moved, rates)
