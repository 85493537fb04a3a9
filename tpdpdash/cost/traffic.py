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


BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_REPLICA = 40e6, 1e6
"""Megatron-LM distributed_data_parallel.py: bucket_size = max(40,000,000, 1,000,000 · dp)."""


def _wide(link: GroupLink) -> GroupLink:
    """The same link as a column, to meet (n, stages) arrays."""
    return GroupLink(
        size=link.size[:, None],
        members=link.members[:, None],
        bytes_per_s=link.bytes_per_s[:, None],
        ring_latency_s=link.ring_latency_s[:, None],
        tree_latency_s=link.tree_latency_s[:, None],
    )


def messages_of(case: Case, held: StageParameters, kinds: StageKinds) -> Floats:
    """Messages into which one pass over a stage's parameters is cut (n, stages): a unit of ZeRO-3 is a layer, or an end
    of the model; others fill buckets of BUCKET_PARAMETERS, of more where there are many replicas."""
    columns = case.columns
    units = kinds.layers + kinds.is_first + kinds.is_last
    bucket = np.maximum(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_REPLICA * columns.dp)[:, None]
    dense, experts = held.trained
    return np.where(columns.zero_stage[:, None] >= 3, units, np.maximum(np.ceil((dense + experts) / bucket), 1.0))


def gradient_reduction_s(case: Case, held: StageParameters, kinds: StageKinds) -> Floats:
    """Reduction of a stage's gradients, nothing hidden (n, stages): all-reduce under ZeRO-0, else reduce-scatter over
    the shard group; under HSDP the shards are all-reduced over their replicas."""
    links, rates, columns = case.links, case.rates, case.columns
    shard, replica, experts = _wide(links.shard), _wide(links.replica), _wide(links.expert_shard)
    dense, routed = (rates.gradient_bytes * parameters for parameters in held.trained)
    number = messages_of(case, held, kinds)
    has = routed > 0
    whole = all_reduce_s(dense, shard, number) + np.where(has, all_reduce_s(routed, experts, number), 0.0)
    scattered = all_gather_s(dense, shard, number) + np.where(has, all_gather_s(routed, experts, number), 0.0)
    replicas = all_reduce_s(dense / shard.size + routed / experts.size, replica, number)
    return np.where(columns.zero_stage[:, None] == 0, whole, scattered) + replicas


def gathered_parameters(case: Case, held: StageParameters) -> Floats:
    """Parameters that are gathered at once or one after the other (n, stages): what the optimizer has updated, all of
    them under ZeRO-3."""
    return np.where(
        case.columns.zero_stage[:, None] >= 3, held.dense + held.experts + held.adapters, np.add(*held.trained)
    )


def weight_gather_s(case: Case, held: StageParameters, kinds: StageKinds) -> Floats:
    """Gathering a stage's weights in the compute precision, nothing hidden (n, stages)."""
    links, rates = case.links, case.rates
    shard, experts = _wide(links.shard), _wide(links.expert_shard)
    number = messages_of(case, held, kinds)
    of_all = case.columns.zero_stage[:, None] >= 3
    trained_dense, trained_experts = held.trained
    dense = rates.element_bytes * np.where(of_all, held.dense + held.adapters, trained_dense)
    routed = rates.element_bytes * np.where(of_all, held.experts, trained_experts)
    return all_gather_s(dense, shard, number) + np.where(routed > 0, all_gather_s(routed, experts, number), 0.0)


def data_s(case: Case, held: StageParameters, kinds: StageKinds, forward_s: Floats, backward_s: Floats) -> DataSeconds:
    """Exposed data parallel time. forward_s, backward_s: one microbatch on each stage (n, stages).

    Messages hide behind the pass that they run beside, but for one layer's worth: the first gather and the last
    reduction have nothing beside them. ZeRO-1: gradients once a step beside the last backward, weights beside the first
    forward. ZeRO-2: gradients in every microbatch; where it shards weights (FSDP), they are gathered in every forward.
    ZeRO-3: weights besides, in forward and again in backward. forward_s and backward_s are what messages can run
    beside: without other messages over the same network cards.
    """
    habits, columns = case.habits, case.columns
    zero = columns.zero_stage[:, None]
    share = 1 - 1 / np.maximum(kinds.layers, 1.0)
    reduce_beside = np.where(columns.overlap_grad_reduce[:, None], backward_s * share, 0.0)
    gather_beside = np.where(columns.overlap_param_gather[:, None], forward_s * share, 0.0)
    again_beside = np.where(columns.overlap_param_gather[:, None], backward_s * share, 0.0)
    reduce_s = gradient_reduction_s(case, held, kinds)
    gather_s = weight_gather_s(case, held, kinds)
    gain = habits.hidden_frac
    again = habits.gathers_per_microbatch - 1
    in_forward = hidden(gather_s, gather_beside, gain)
    each_time = zero >= 2
    # Under ZeRO-3 the second gather and the reduction share backward.
    in_backward = np.where(zero >= 3, again * gather_s, 0.0) + np.where(each_time, reduce_s, 0.0)
    beside = np.where(zero >= 3, np.maximum(again_beside, reduce_beside), reduce_beside)
    exposed_backward = hidden(in_backward, beside, gain)
    each_forward = zero >= (2 if habits.zero2_shards_weights else 3)
    per_microbatch = np.where(each_forward, in_forward, 0.0) + exposed_backward
    last_reduction = np.where(each_time, 0.0, hidden(reduce_s, reduce_beside, gain))
    first_gather = np.where((zero >= 1) & ~each_forward, in_forward, 0.0)
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
    """Once a step the first and the last stage add their gradients of a tied embedding: all-reduce of two [s] (n,);
    nothing where it is frozen."""
    if not case.model.tied_embeddings or case.rates.is_frozen:
        return np.zeros(len(case.columns))
    sent = case.rates.gradient_bytes * case.vocab_rows * case.model.hidden_size
    return of_rows(point_to_point_s(sent, case.cluster, case.links.pp), case.tokens)
