"""Data parallel and stage-to-stage messages of one step: gradients, weights, activations between stages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tpdpdash.cost.arrays import Floats, of_rows
from tpdpdash.cost.case import Case
from tpdpdash.cost.collectives import GroupLink, all_gather_s, all_reduce_s, point_to_point_s
from tpdpdash.cost.memory import StageParameters
from tpdpdash.cost.passes import hidden
from tpdpdash.cost.stages import StageKinds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataSeconds:
    """Data parallel messages, exposed [s], each (n, stages)."""

    per_microbatch_s: Floats
    """In every microbatch: ZeRO-3's gathers, and from ZeRO-2 reductions: a shard can only add what is reduced."""
    per_step_s: Floats
    """Once a step: gradients at its end, updated weights at its start."""


def _wide(link: GroupLink) -> GroupLink:
    """The same link as a column, to meet (n, stages) arrays."""
    return GroupLink(
        size=link.size[:, None],
        members=link.members[:, None],
        bytes_per_s=link.bytes_per_s[:, None],
        ring_latency_s=link.ring_latency_s[:, None],
        tree_latency_s=link.tree_latency_s[:, None],
    )


def gradient_reduction_s(case: Case, held: StageParameters) -> Floats:
    """Reduction of a stage's gradients, nothing hidden (n, stages): all-reduce under ZeRO-0, else reduce-scatter over
    the shard group; under HSDP the shards are all-reduced over their replicas."""
    links, rates, columns = case.links, case.rates, case.columns
    shard, replica, experts = _wide(links.shard), _wide(links.replica), _wide(links.expert_shard)
    dense, routed = rates.gradient_bytes * held.dense, rates.gradient_bytes * held.experts
    whole = all_reduce_s(dense, shard) + np.where(routed > 0, all_reduce_s(routed, experts), 0.0)
    scattered = all_gather_s(dense, shard) + np.where(routed > 0, all_gather_s(routed, experts), 0.0)
    replicas = all_reduce_s((dense + routed) / shard.size, replica)
    return np.where(columns.zero_stage[:, None] == 0, whole, scattered) + replicas


def weight_gather_s(case: Case, held: StageParameters) -> Floats:
    """Gathering a stage's weights in the compute precision, nothing hidden (n, stages)."""
    links, rates = case.links, case.rates
    shard, experts = _wide(links.shard), _wide(links.expert_shard)
    routed = rates.element_bytes * held.experts
    return all_gather_s(rates.element_bytes * held.dense, shard) + np.where(
        routed > 0, all_gather_s(routed, experts), 0.0
    )


def data_s(case: Case, held: StageParameters, kinds: StageKinds, forward_s: Floats, backward_s: Floats) -> DataSeconds:
    """Exposed data parallel time. forward_s, backward_s: one microbatch on each stage (n, stages).

    Messages hide behind the pass that they run beside, but for one layer's worth: the first gather and the last
    reduction have nothing beside them. ZeRO-1: gradients once a step beside the last backward, weights beside the first
    forward. ZeRO-2: gradients in every microbatch. ZeRO-3: weights besides, in forward and again in backward.
    """
    habits, columns = case.habits, case.columns
    zero = columns.zero_stage[:, None]
    share = 1 - 1 / np.maximum(kinds.layers, 1.0)
    reduce_beside = np.where(columns.overlap_grad_reduce[:, None], backward_s * share, 0.0)
    gather_beside = np.where(columns.overlap_param_gather[:, None], forward_s * share, 0.0)
    again_beside = np.where(columns.overlap_param_gather[:, None], backward_s * share, 0.0)
    reduce_s = gradient_reduction_s(case, held)
    gather_s = weight_gather_s(case, held)
    gain = habits.hidden_frac
    again = habits.gathers_per_microbatch - 1
    in_forward = hidden(gather_s, gather_beside, gain)
    each_time = zero >= 2
    # Under ZeRO-3 the second gather and the reduction share backward.
    in_backward = np.where(zero >= 3, again * gather_s, 0.0) + np.where(each_time, reduce_s, 0.0)
    beside = np.where(zero >= 3, np.maximum(again_beside, reduce_beside), reduce_beside)
    exposed_backward = hidden(in_backward, beside, gain)
    per_microbatch = np.where(zero >= 3, in_forward, 0.0) + exposed_backward
    last_reduction = np.where(each_time, 0.0, hidden(reduce_s, reduce_beside, gain))
    first_gather = np.where((zero >= 1) & (zero < 3), in_forward, 0.0)
    exists = kinds.exists
    return DataSeconds(
        per_microbatch_s=np.where(exists, per_microbatch, 0.0),
        per_step_s=np.where(exists, last_reduction + first_gather, 0.0),
    )


def stage_hop_bytes(case: Case) -> Floats:
    """One activation (or its gradient) between stages on one rank: s·b·h elements, / tp under sequence parallelism or
    where the framework scatters them (n,)."""
    split = np.where(case.columns.sequence_parallel | case.habits.scatters_p2p, case.columns.tp, 1.0)
    return np.asarray(case.states_bytes / split)


def stage_hop_s(case: Case) -> Floats:
    """One activation (or its gradient) to the next stage [s] (n,)."""
    return of_rows(point_to_point_s(stage_hop_bytes(case), case.cluster, case.links.pp), case.tokens)


def exposed_hops_s(case: Case) -> Floats:
    """Stage messages that one microbatch waits for in one direction (n,): one for each chunk, less what is hidden."""
    chunks, habits = case.columns.num_model_chunks, case.habits
    kept = 1 - np.where(chunks > 1, habits.interleaved_p2p_hidden_frac, habits.p2p_hidden_frac)
    return np.asarray(chunks * kept * stage_hop_s(case))


def tied_embedding_s(case: Case) -> Floats:
    """Once a step the first and the last stage add their gradients of a tied embedding: all-reduce of two [s] (n,)."""
    if not case.model.tied_embeddings:
        return np.zeros(len(case.columns))
    sent = case.rates.gradient_bytes * case.vocab_rows * case.model.hidden_size
    return of_rows(point_to_point_s(sent, case.cluster, case.links.pp), case.tokens)
