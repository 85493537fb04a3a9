"""Seconds of one layer's forward, backward and recompute with their messages, by part, for one microbatch on one rank.

Device time and messages run against the host, which launches kernels: a pass takes the smooth maximum of both. Message
time is what stays exposed after the overlap that the framework has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cost.activations import FULL, SELECTIVE
from tpdpdash.cost.arrays import Floats, floats, of_rows
from tpdpdash.cost.case import Case
from tpdpdash.cost.layer import AttentionBlock, LayerSeconds, attention_block, layer_s
from tpdpdash.cost.layer_messages import (
    compressed_less_s,
    context_s,
    crossing_s,
    expert_exchange_s,
    expert_tp_s,
    layer_tp_s,
    modules_tp_s,
    ring_merge_s,
    states_messages_s,
)
from tpdpdash.cost.operators import smooth_maximum
from tpdpdash.cost.parameters import pairs_of
from tpdpdash.elementwise import choose, rounded, smaller
from tpdpdash.layout.frameworks import cp_comm_type

if TYPE_CHECKING:
    from tpdpdash.units import Numeric


SLOWER_PER_DOUBLING = 0.003
"""Growth of the step with each doubling of the ranks that divides nothing. Assumed: chosen by hand on DGX Cloud's
weak-scaling runs, whose figures fall by 0.3-0.6 % with each doubling from 8 to 2,048 GPUs."""


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
    weight_gradient_s: Floats
    """The part of backward's computation that a split backward can put off: the weights' gradients. All else (input
    gradients, attention, element-wise operators, messages) the stage before waits for."""
    crossing_forward_s: Floats
    """Messages of the forward that leave the scale-up domain, hidden or not."""
    crossing_backward_s: Floats
    """Messages of the backward that do, recompute included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Messages:
    """Exposed message time of one pass [s]."""

    tp_s: Numeric
    cp_s: Numeric
    ep_s: Numeric

    @property
    def total_s(self) -> Numeric:
        return self.tp_s + self.cp_s + self.ep_s


def case_attention(case: Case) -> AttentionBlock:
    """Attention of one layer over one microbatch (n,)."""
    columns, split = case.columns, case.columns.sequence_parallel
    facts = case.model, case.training, case.habits, case.rates
    return attention_block(*facts, tokens=case.tokens, tp=columns.tp, sequence_parallel=split)


def layer_passes(case: Case, moe: bool, block: AttentionBlock | None = None) -> LayerPasses:
    """Passes of one layer over one microbatch (n,). block: its attention, where it is known already."""
    columns = case.columns
    layer = layer_s(
        case.model,
        case.training,
        case.habits,
        case.rates,
        moe,
        block or case_attention(case),
        tokens=case.tokens,
        tp=columns.tp,
        ep=columns.ep,
        etp=columns.etp,
        sequence_parallel=columns.sequence_parallel,
    )
    host_s, slowest = layer.kernels * case.rates.launch_s, slowest_rank(columns.world_size)
    in_turn = case.rates.waits_for_launches
    forward = _against_host(slowest * layer.forward_s, _forward_messages(case, layer, moe), host_s, in_turn)
    backward_host_s = host_s * case.habits.backward_kernels
    backward = _against_host(slowest * layer.backward_s, _backward_messages(case, layer, moe), backward_host_s, in_turn)
    return LayerPasses(
        forward=forward,
        backward=backward,
        recompute=_recompute(case, layer, forward, moe),
        weight_gradient_s=floats(backward.compute_s * layer.gemm_weight_gradient_s / layer.backward_s),
        crossing_forward_s=crossing_s(case, moe, backward=False),
        crossing_backward_s=crossing_s(case, moe, backward=True),
    )


def slowest_rank(world_size: Floats) -> Floats:
    """Compute time of the slowest of N ranks, for which all others wait, against one rank's (n,): 1 + j · log2 N."""
    return floats(1 + SLOWER_PER_DOUBLING * rounded(np.log2(world_size), 9))


def _against_host(device_s: Numeric, messages: _Messages, host_s: Numeric, in_turn: bool) -> PassSeconds:
    """Device and messages against the host's launches, or after them where host and device work in turn; what exceeds
    the messages counts as compute."""
    beside = device_s + messages.total_s
    total = floats(beside + host_s if in_turn else smooth_maximum(beside, host_s))
    return PassSeconds(
        compute_s=floats(total - messages.total_s),
        tp_s=of_rows(messages.tp_s, total),
        cp_s=of_rows(messages.cp_s, total),
        ep_s=of_rows(messages.ep_s, total),
    )


def _recompute(case: Case, layer: LayerSeconds, forward: PassSeconds, moe: bool) -> PassSeconds:
    """Full: the forward pass again, messages included (Korthikanti 2022 §5). Selective: the modules that are named,
    their messages included, else core attention; or as the framework means it, half of the matmuls with everything
    element-wise (torchtitan), or every second layer (fsdp1)."""
    habits, recompute, zero = case.habits, case.columns.recompute, 0.0 * forward.compute_s
    again, sent, reduced = layer.attention_forward_s, zero, zero
    if case.training.recompute_modules:
        again, sent = layer.modules_forward_s, forward.ep_s if "moe" in case.training.recompute_modules else zero
        reduced = of_rows(_with_overlap(case, modules_tp_s(case, moe)), zero)
    elif habits.selective_kind == "operators":
        again = 0.5 * layer.gemm_forward_s + layer.traffic_forward_s
    selective = PassSeconds(compute_s=again + zero, tp_s=reduced, cp_s=zero, ep_s=sent)
    if habits.selective_kind == "alternate_layers" and not case.training.recompute_modules:
        selective = forward.scaled(0.5)
    is_full, is_selective = recompute == FULL, recompute == SELECTIVE
    parts = {
        name: choose(is_full, getattr(forward, name), choose(is_selective, getattr(selective, name), 0.0))
        for name in ("compute_s", "tp_s", "cp_s", "ep_s")
    }
    return PassSeconds(**parts)


def hidden(messages_s: Numeric, beside_s: Numeric, hidden_frac: float) -> Numeric:
    """Exposed part of messages that run beside computation: t − η · min(t, computation)."""
    return messages_s - hidden_frac * smaller(messages_s, beside_s)


def _forward_messages(case: Case, layer: LayerSeconds, moe: bool) -> _Messages:
    """TP messages wait; the ring of keys and values runs beside attention; tokens go to experts and back."""
    tp = _with_overlap(case, layer_tp_s(case, moe, backward=False))
    cp = _context_s(case, layer.attention_forward_s, backward=False)
    return _Messages(tp_s=tp, cp_s=cp, ep_s=_expert_s(case, moe, layer.forward_s))


def _backward_messages(case: Case, layer: LayerSeconds, moe: bool) -> _Messages:
    """The conjugates of forward's messages. Without sequence parallelism the all-reduces of input gradients run beside
    the weight gradients; with it the inputs are gathered again beside the input gradients (where they were not kept),
    their gradients are scattered beside the weight gradients, and the gathers of row-parallel layers stay exposed.
    Context parallel ranks exchange keys, values and their gradients: see `context_s`."""
    gather, scatter, whole = (pairs_of(case.model, moe) * each for each in states_messages_s(case))
    gather_less, scatter_less = compressed_less_s(case)
    input_s, weight_s = layer.column_input_gradient_s, layer.column_weight_gradient_s
    gain = case.habits.hidden_frac if case.habits.backward_hides_tp else 0.0
    again = choose(case.gathers_again, hidden(gather - gather_less, input_s, gain), 0.0)
    sequence = gather + again + hidden(scatter - scatter_less, weight_s, gain)
    tp = choose(case.columns.sequence_parallel, sequence, hidden(whole, weight_s, gain))
    cp = _context_s(case, layer.attention_backward_s, backward=True)
    return _Messages(
        tp_s=_with_overlap(case, tp + expert_tp_s(case, moe)), cp_s=cp, ep_s=_expert_s(case, moe, layer.backward_s)
    )


def _context_s(case: Case, attention_s: Numeric, *, backward: bool) -> Numeric:
    """Exposed context parallel time of one pass: a ring runs beside attention, and what it brings is merged; messages
    that gather keys or divide heads come before attention and after it."""
    sent = context_s(case, backward=backward)
    if cp_comm_type(case.training) == "p2p":
        sent = hidden(sent, attention_s, case.habits.hidden_frac)
    return sent + ring_merge_s(case, backward=backward)


def _with_overlap(case: Case, tp_s: Numeric) -> Numeric:
    """TP messages under layout.overlap_tp: cut into pieces that run beside their GEMMs."""
    return choose(case.columns.overlap_tp, (1 - case.habits.tp_hidden_frac) * tp_s, tp_s)


def _expert_s(case: Case, moe: bool, beside_s: Numeric) -> Numeric:
    """Exposed dispatch and combine of one pass [s]; nothing in a dense layer. Under layout.overlap_ep they run beside
    the same pass of another microbatch (Megatron's overlap_moe_expert_parallel_comm, DeepSeek-V3's DualPipe)."""
    if not moe:
        return 0.0
    sent = expert_exchange_s(case)
    return choose(case.columns.overlap_ep, hidden(sent, beside_s, case.habits.hidden_frac), sent)
