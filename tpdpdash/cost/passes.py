"""Seconds of one layer's forward, backward and recompute with their messages, by part, for one microbatch on one rank.

Device time and messages run against the host, which launches kernels: a pass takes the smooth maximum of both. Message
time is what stays exposed after the overlap that the framework has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cost.activations import FULL, SELECTIVE
from tpdpdash.cost.arrays import Floats, of_rows
from tpdpdash.cost.case import Case
from tpdpdash.cost.layer import LayerSeconds, layer_s
from tpdpdash.cost.layer_messages import (
    expert_exchange_s,
    expert_tp_s,
    layer_tp_s,
    ring_s,
    states_messages_s,
)
from tpdpdash.cost.operators import smooth_maximum
from tpdpdash.cost.parameters import pairs_of

if TYPE_CHECKING:
    from tpdpdash.units import Numeric


SLOWER_PER_DOUBLING = 0.003
"""Growth of the step with each doubling of the ranks that divides nothing: fitted to DGX Cloud's weak-scaling runs,
whose figures fall by 0.3-0.6 % with each doubling from 8 to 2,048 GPUs."""


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


def layer_passes(case: Case, moe: bool) -> LayerPasses:
    """Passes of one layer over one microbatch (n,)."""
    columns = case.columns
    layer = layer_s(
        case.model,
        case.training,
        case.habits,
        case.rates,
        moe,
        tokens=case.tokens,
        tp=columns.tp,
        ep=columns.ep,
        etp=columns.etp,
        sequence_parallel=columns.sequence_parallel,
    )
    host_s, slowest = layer.kernels * case.rates.launch_s, slowest_rank(columns.world_size)
    forward = _against_host(slowest * layer.forward_s, _forward_messages(case, layer, moe), host_s)
    backward_host_s = host_s * case.habits.backward_kernels
    return LayerPasses(
        forward=forward,
        backward=_against_host(slowest * layer.backward_s, _backward_messages(case, layer, moe), backward_host_s),
        recompute=_recompute(case, layer, forward),
    )


def slowest_rank(world_size: Floats) -> Floats:
    """Compute time of the slowest of N ranks, for which all others wait, against one rank's (n,): 1 + j · log2 N."""
    return np.asarray(1 + SLOWER_PER_DOUBLING * np.round(np.log2(world_size), 9))


def _against_host(device_s: Numeric, messages: _Messages, host_s: Numeric) -> PassSeconds:
    """Device and messages against the host's launches; what exceeds the messages counts as compute."""
    total = np.asarray(smooth_maximum(device_s + messages.total_s, host_s))
    return PassSeconds(
        compute_s=np.asarray(total - messages.total_s),
        tp_s=of_rows(messages.tp_s, total),
        cp_s=of_rows(messages.cp_s, total),
        ep_s=of_rows(messages.ep_s, total),
    )


def _recompute(case: Case, layer: LayerSeconds, forward: PassSeconds) -> PassSeconds:
    """Full: the forward pass again, messages included (Korthikanti 2022 §5). Selective: core attention; or, as the
    framework means it, half of the matmuls with everything element-wise (torchtitan), or every second layer (fsdp1)."""
    habits, recompute, zero = case.habits, case.columns.recompute, 0.0 * forward.compute_s
    if habits.selective_kind == "alternate_layers":
        selective = forward.scaled(0.5)
    else:
        operators = 0.5 * layer.gemm_forward_s + layer.traffic_forward_s
        again = layer.attention_forward_s if habits.selective_kind == "core_attention" else operators
        selective = PassSeconds(compute_s=again + zero, tp_s=zero, cp_s=zero, ep_s=zero)
    is_full, is_selective = recompute == FULL, recompute == SELECTIVE
    parts = {
        name: np.where(is_full, getattr(forward, name), np.where(is_selective, getattr(selective, name), 0.0))
        for name in ("compute_s", "tp_s", "cp_s", "ep_s")
    }
    return PassSeconds(**parts)


def hidden(messages_s: Numeric, beside_s: Numeric, hidden_frac: float) -> Numeric:
    """Exposed part of messages that run beside computation: t − η · min(t, computation)."""
    return messages_s - hidden_frac * np.minimum(messages_s, beside_s)


def _forward_messages(case: Case, layer: LayerSeconds, moe: bool) -> _Messages:
    """TP messages wait; the ring of keys and values runs beside attention; tokens go to experts and back."""
    tp = _with_overlap(case, layer_tp_s(case, moe, backward=False))
    cp = hidden(ring_s(case), layer.attention_forward_s, case.habits.hidden_frac)
    return _Messages(tp_s=tp, cp_s=cp, ep_s=_expert_s(case, moe))


def _backward_messages(case: Case, layer: LayerSeconds, moe: bool) -> _Messages:
    """The conjugates of forward's messages. Without sequence parallelism the all-reduces of input gradients run beside
    the weight gradients; with it the inputs are gathered again beside the input gradients, their gradients are
    scattered beside the weight gradients, and the gathers of row-parallel layers stay exposed. Keys, values and their
    gradients go round the ring: twice forward's bytes."""
    gather, scatter, whole = (pairs_of(case.model, moe) * each for each in states_messages_s(case))
    input_s, weight_s = layer.column_input_gradient_s, layer.column_weight_gradient_s
    gain = case.habits.hidden_frac if case.habits.backward_hides_tp else 0.0
    sequence = gather + hidden(gather, input_s, gain) + hidden(scatter, weight_s, gain)
    tp = np.where(case.columns.sequence_parallel, sequence, hidden(whole, weight_s, gain))
    cp = hidden(2 * ring_s(case), layer.attention_backward_s, case.habits.hidden_frac)
    return _Messages(tp_s=_with_overlap(case, tp + expert_tp_s(case, moe)), cp_s=cp, ep_s=_expert_s(case, moe))


def _with_overlap(case: Case, tp_s: Numeric) -> Numeric:
    """TP messages under layout.overlap_tp: cut into pieces that run beside their GEMMs."""
    return np.where(case.columns.overlap_tp, (1 - case.habits.tp_hidden_frac) * tp_s, tp_s)


def _expert_s(case: Case, moe: bool) -> Numeric:
    """Exposed dispatch and combine of one pass [s]; nothing in a dense layer."""
    return (1 - case.habits.ep_hidden_frac) * expert_exchange_s(case) if moe else 0.0
