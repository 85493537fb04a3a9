"""Seconds of one layer's forward, backward and recompute with their messages, by part, for one microbatch on one rank.

Device time and messages run against the host, which launches kernels: a pass takes the smooth maximum of both. Message
time is what stays exposed after the overlap that the framework has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.activations import FULL, SELECTIVE
from tpdpdash.cost.arrays import Floats, of_rows
from tpdpdash.cost.collectives import GroupLink, all_gather_s, all_reduce_s, all_to_all_s, reduce_scatter_s
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.layer import LayerSeconds
from tpdpdash.cost.operators import DeviceRates, smooth_maximum
from tpdpdash.cost.parameters import kv_heads_per_rank
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.model.spec import ModelSpec

if TYPE_CHECKING:
    from tpdpdash.units import Numeric


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """The links of the groups that one rank belongs to, a row a layout."""

    tp: GroupLink
    """Tensor parallel."""
    cp: GroupLink
    """Context parallel."""
    pp: GroupLink
    """Pipeline."""
    ep: GroupLink
    """Expert parallel."""
    expert_tp: GroupLink
    """Tensor parallel inside experts."""
    shard: GroupLink
    """Ranks over which dense weights and states are sharded or reduced: dp_shard_size · cp."""
    replica: GroupLink
    """Shards' replicas under HSDP: dp / dp_shard_size."""
    expert_shard: GroupLink
    """The same for experts, within expert-dp."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassSeconds:
    """One pass over one layer [s], exposed, each (n,)."""

    compute_s: Floats
    """Device (or host) time without messages."""
    tp_s: Floats
    """Tensor parallel messages."""
    cp_s: Floats
    """Context parallel messages."""
    ep_s: Floats
    """Expert parallel messages."""

    @property
    def total_s(self) -> Floats:
        """All parts."""
        return self.compute_s + self.tp_s + self.cp_s + self.ep_s

    def scaled(self, factor: Numeric) -> PassSeconds:
        """Every part times a factor."""
        return PassSeconds(
            compute_s=self.compute_s * factor, tp_s=self.tp_s * factor, cp_s=self.cp_s * factor, ep_s=self.ep_s * factor
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerPasses:
    """What one layer costs for one microbatch."""

    forward: PassSeconds
    """Forward pass."""
    backward: PassSeconds
    """Backward pass without recompute."""
    recompute: PassSeconds
    """What backward computes again, under each row's form of recompute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Messages:
    """Exposed message time of one pass [s]."""

    tp_s: Numeric
    cp_s: Numeric
    ep_s: Numeric

    @property
    def total_s(self) -> Numeric:
        return self.tp_s + self.cp_s + self.ep_s


def layer_passes(
    model: ModelSpec,
    cluster: ClusterSpec,
    habits: FrameworkHabits,
    rates: DeviceRates,
    columns: LayoutColumns,
    links: Links,
    layer: LayerSeconds,
    tokens: Floats,
    moe: bool,
) -> LayerPasses:
    """Passes of one layer over `tokens` of one microbatch (n,)."""
    forward = _forward_messages(model, cluster, habits, rates, columns, links, layer, tokens, moe)
    backward = _backward_messages(model, cluster, habits, rates, columns, links, layer, tokens, moe)
    host_s = layer.kernels * rates.launch_s
    forward_pass = _against_host(layer.forward_s, forward, host_s)
    return LayerPasses(
        forward=forward_pass,
        backward=_against_host(layer.backward_s, backward, host_s * habits.backward_kernels),
        recompute=_recompute(habits, columns, layer, forward_pass),
    )


def _against_host(device_s: Numeric, messages: _Messages, host_s: float) -> PassSeconds:
    """Device and messages against the host's launches; what exceeds the messages counts as compute."""
    total = np.asarray(smooth_maximum(device_s + messages.total_s, host_s))
    return PassSeconds(
        compute_s=np.asarray(total - messages.total_s),
        tp_s=of_rows(messages.tp_s, total),
        cp_s=of_rows(messages.cp_s, total),
        ep_s=of_rows(messages.ep_s, total),
    )


def _recompute(
    habits: FrameworkHabits, columns: LayoutColumns, layer: LayerSeconds, forward: PassSeconds
) -> PassSeconds:
    """Full: the forward pass again, messages included (Korthikanti 2022 §5). Selective: core attention; or, as the
    framework means it, half of the matmuls with everything element-wise (torchtitan), or every second layer (fsdp1)."""
    zero = 0.0 * forward.compute_s
    if habits.selective_kind == "alternate_layers":
        selective = forward.scaled(0.5)
    else:
        operators = 0.5 * layer.gemm_forward_s + layer.traffic_forward_s
        again = layer.attention_forward_s if habits.selective_kind == "core_attention" else operators
        selective = PassSeconds(compute_s=again + zero, tp_s=zero, cp_s=zero, ep_s=zero)
    is_full, is_selective = columns.recompute == FULL, columns.recompute == SELECTIVE
    parts = {
        name: np.where(is_full, getattr(forward, name), np.where(is_selective, getattr(selective, name), 0.0))
        for name in ("compute_s", "tp_s", "cp_s", "ep_s")
    }
    return PassSeconds(**parts)


def hidden(messages_s: Numeric, beside_s: Numeric, hidden_frac: float) -> Numeric:
    """Exposed part of messages that run beside computation: t − η · min(t, computation)."""
    return messages_s - hidden_frac * np.minimum(messages_s, beside_s)


def _forward_messages(
    model: ModelSpec,
    cluster: ClusterSpec,
    habits: FrameworkHabits,
    rates: DeviceRates,
    columns: LayoutColumns,
    links: Links,
    layer: LayerSeconds,
    tokens: Floats,
    moe: bool,
) -> _Messages:
    """Two all-reduces of the activations, or with sequence parallelism an all-gather and a reduce-scatter each
    (Korthikanti 2022 §4.2.2: the same bytes); the ring of keys and values beside attention; tokens to experts and
    back."""
    tp = unhidden_tp_s(model, rates, columns, links, tokens, moe, backward=False)
    tp = np.where(columns.overlap_tp, (1 - habits.tp_hidden_frac) * tp, tp)
    cp = hidden(ring_s(model, rates, columns, links, tokens), layer.attention_forward_s, habits.hidden_frac)
    return _Messages(tp_s=tp, cp_s=cp, ep_s=_expert_s(model, cluster, habits, rates, columns, links, tokens, moe))


def _backward_messages(
    model: ModelSpec,
    cluster: ClusterSpec,
    habits: FrameworkHabits,
    rates: DeviceRates,
    columns: LayoutColumns,
    links: Links,
    layer: LayerSeconds,
    tokens: Floats,
    moe: bool,
) -> _Messages:
    """The conjugates of forward's messages. Without sequence parallelism the all-reduces of input gradients run beside
    the weight gradients; with it the inputs are gathered again beside the input gradients, their gradients are
    scattered beside the weight gradients, and the gathers of row-parallel layers stay exposed. Keys, values and their
    gradients go round the ring: twice forward's bytes."""
    gather, reduce, whole = _tp_messages(model, rates, links, tokens)
    pairs = pairs_of(model, moe)
    input_s, weight_s = layer.column_input_gradient_s, layer.column_weight_gradient_s
    gain = habits.hidden_frac if habits.backward_hides_tp else 0.0
    sequence = pairs * gather + hidden(pairs * gather, input_s, gain) + hidden(pairs * reduce, weight_s, gain)
    tp = np.where(columns.sequence_parallel, sequence, hidden(pairs * whole, weight_s, gain))
    tp = tp + _expert_tp(model, rates, columns, links, tokens, moe)
    tp = np.where(columns.overlap_tp, (1 - habits.tp_hidden_frac) * tp, tp)
    cp = hidden(2 * ring_s(model, rates, columns, links, tokens), layer.attention_backward_s, habits.hidden_frac)
    return _Messages(tp_s=tp, cp_s=cp, ep_s=_expert_s(model, cluster, habits, rates, columns, links, tokens, moe))


def pairs_of(model: ModelSpec, moe: bool) -> float:
    """Blocks of a layer that end in a TP reduction: attention and MLP; of a MoE layer attention and shared experts."""
    return 1.0 + (1.0 if not moe or model.shared_expert_ffn_hidden_size else 0.0)


def _tp_messages(
    model: ModelSpec, rates: DeviceRates, links: Links, tokens: Floats
) -> tuple[Numeric, Numeric, Numeric]:
    """(all-gather, reduce-scatter, all-reduce) of one microbatch's hidden states [s]: s·b·h elements."""
    states = rates.element_bytes * tokens * model.hidden_size
    return all_gather_s(states, links.tp), reduce_scatter_s(states, links.tp), all_reduce_s(states, links.tp)


def _expert_tp(
    model: ModelSpec, rates: DeviceRates, columns: LayoutColumns, links: Links, tokens: Floats, moe: bool
) -> Numeric:
    """Dispatched tokens are gathered and reduce-scattered over the TP ranks of their expert."""
    if not moe:
        return 0.0
    copies = rates.element_bytes * model.hidden_size * tokens * model.num_experts_per_token * columns.etp / columns.tp
    return all_gather_s(copies, links.expert_tp) + reduce_scatter_s(copies, links.expert_tp)


def ring_s(model: ModelSpec, rates: DeviceRates, columns: LayoutColumns, links: Links, tokens: Floats) -> Numeric:
    """Keys and values of every rank pass every other: (cp − 1) blocks of tokens · kv width [s]."""
    heads = (
        model.num_attention_heads / columns.tp if model.is_mla else kv_heads_per_rank(model.num_kv_heads, columns.tp)
    )
    block = rates.element_bytes * tokens * heads * (model.query_head_dim + model.value_head_dim)
    return all_gather_s(block * columns.cp, links.cp)


def unhidden_expert_s(
    model: ModelSpec,
    cluster: ClusterSpec,
    rates: DeviceRates,
    columns: LayoutColumns,
    links: Links,
    tokens: Floats,
) -> Numeric:
    """Dispatch and combine of one pass: two all-to-alls of top-k copies of the rank's own tokens / tp [s]."""
    sent = rates.element_bytes * model.hidden_size * tokens * model.num_experts_per_token / columns.tp
    return 2 * all_to_all_s(sent, cluster, links.ep)


def _expert_s(
    model: ModelSpec,
    cluster: ClusterSpec,
    habits: FrameworkHabits,
    rates: DeviceRates,
    columns: LayoutColumns,
    links: Links,
    tokens: Floats,
    moe: bool,
) -> Numeric:
    """Exposed dispatch and combine of one pass [s]; nothing in a dense layer."""
    if not moe:
        return 0.0
    return (1 - habits.ep_hidden_frac) * unhidden_expert_s(model, cluster, rates, columns, links, tokens)


def unhidden_tp_s(
    model: ModelSpec,
    rates: DeviceRates,
    columns: LayoutColumns,
    links: Links,
    tokens: Floats,
    moe: bool,
    *,
    backward: bool,
) -> Numeric:
    """TP messages of one pass over one layer, nothing hidden [s]: under sequence parallelism backward gathers the
    inputs once more."""
    gather, reduce, whole = _tp_messages(model, rates, links, tokens)
    gathers = 2 if backward else 1
    pairs = pairs_of(model, moe) * np.where(columns.sequence_parallel, gathers * gather + reduce, whole)
    return pairs + _expert_tp(model, rates, columns, links, tokens, moe)
