"""Data parallel and stage-to-stage messages of one step: gradients, weights, activations between stages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tpdpdash.cost.arrays import Flags, Floats, column, floats, of_rows
from tpdpdash.cost.case import Case
from tpdpdash.cost.collectives import GroupLink, all_gather_s, all_reduce_s, point_to_point_s, reduce_scatter_s
from tpdpdash.cost.parameters import sequence_split
from tpdpdash.cost.passes import hidden
from tpdpdash.cost.stage_parameters import StageParameters, holds_whole
from tpdpdash.cost.stages import StageKinds
from tpdpdash.elementwise import choose, larger, somewhere


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rhythm:
    """Which data parallel messages come in every microbatch instead of once a step, each (n, 1)."""

    reduces: Flags
    """Gradients: from ZeRO-2, since a shard can only add what is reduced."""
    gathers: Flags
    """Weights, before the forward pass: under ZeRO-3, and under ZeRO-2 where it shards them."""
    gathers_again: Flags
    """Weights, before the backward pass: ZeRO-3."""


def data_rhythm(case: Case) -> Rhythm:
    """What ZeRO and the framework's pipeline make of it."""
    zero, whole = column(case.columns.zero_stage), column(holds_whole(case.habits, case.columns))
    shards_weights = zero >= (2 if case.habits.zero2_shards_weights else 3)
    return Rhythm(reduces=(zero >= 2) & ~whole, gathers=shards_weights & ~whole, gathers_again=(zero >= 3) & ~whole)


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
    return replace(
        link,
        size=column(link.size),
        members=column(link.members),
        bytes_per_s=column(link.bytes_per_s),
        ring_latency_s=column(link.ring_latency_s),
        tree_latency_s=column(link.tree_latency_s),
    )


def messages_of(case: Case, held: StageParameters, kinds: StageKinds) -> Floats:
    """Messages into which one pass over a stage's parameters is cut (n, stages): a unit of ZeRO-3 is a layer, or an end
    of the model; others fill buckets of BUCKET_PARAMETERS, of more where there are many replicas."""
    columns = case.columns
    units = kinds.layers + kinds.is_first + kinds.is_last
    bucket = column(larger(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_REPLICA * columns.dp))
    dense, experts = held.trained
    return choose(column(columns.zero_stage) >= 3, units, larger(np.ceil((dense + experts) / bucket), 1.0))


def reduced_bytes(case: Case) -> float:
    """Bytes of one gradient as it is reduced: as it is accumulated, or 16 bits where the framework casts it before."""
    own = case.rates.gradient_bytes
    return min(own, case.rates.element_bytes) if case.habits.reduces_16bit_gradients else own


def gets_all_gradients(case: Case) -> Flags:
    """Rows whose gradients are all-reduced (n,): under ZeRO-0, and where the framework does so up to ZeRO-2."""
    return case.columns.zero_stage <= (2 if case.habits.reduces_whole else 0)


def gradient_reduction_s(case: Case, held: StageParameters, number: Floats) -> Floats:
    """Reduction of a stage's gradients in `number` messages, nothing hidden (n, stages): all-reduce where each rank
    gets all of them, else reduce-scatter over the shard group; under HSDP the shards are all-reduced over their
    replicas."""
    links = case.links
    shard, replica, experts = _wide(links.shard), _wide(links.replica), _wide(links.expert_shard)
    dense, routed = (reduced_bytes(case) * parameters for parameters in held.trained)
    whole, scattered = all_reduce_s(dense, shard, number), reduce_scatter_s(dense, shard, number)
    has = routed > 0
    if has.any():
        whole = whole + choose(has, all_reduce_s(routed, experts, number), 0.0)
        scattered = scattered + choose(has, reduce_scatter_s(routed, experts, number), 0.0)
    reduced: Floats = choose(column(gets_all_gradients(case)), whole, scattered)
    if not somewhere(replica.size > 1):
        return reduced
    return reduced + all_reduce_s(dense / shard.size + routed / experts.size, replica, number)


def gathered_parameters(case: Case, held: StageParameters) -> Floats:
    """Parameters that are gathered at once or one after the other (n, stages): what the optimizer has updated, all of
    them under ZeRO-3."""
    return choose(
        column(case.columns.zero_stage) >= 3, held.dense + held.experts + held.adapters, np.add(*held.trained)
    )


def weight_gather_s(case: Case, held: StageParameters, number: Floats) -> Floats:
    """Gathering a stage's weights in the compute precision in `number` messages, nothing hidden (n, stages)."""
    links, rates = case.links, case.rates
    shard, experts = _wide(links.shard), _wide(links.expert_shard)
    of_all = column(case.columns.zero_stage) >= 3
    trained_dense, trained_experts = held.trained
    dense = rates.element_bytes * choose(of_all, held.dense + held.adapters, trained_dense)
    gather = floats(all_gather_s(dense, shard, number))
    routed = rates.element_bytes * choose(of_all, held.experts, trained_experts)
    has = routed > 0
    return gather + choose(has, all_gather_s(routed, experts, number), 0.0) if has.any() else gather


TENSORS_PER_LAYER = 9.0
"""Parameters of a layer as an optimizer sees them: four of attention, three of a gated MLP, two norms."""


def slices_s(case: Case, kinds: StageKinds) -> Floats:
    """Host seconds of gathering the updated weights slice by slice (n, stages): a launch or more for every rank of the
    shard group and every parameter; nothing where a framework gathers flat buffers."""
    ranks = column(choose(case.columns.dp_shard_size > 1, case.columns.dp_shard_size, 0.0))
    return floats(case.habits.gather_launches * case.rates.launch_s * TENSORS_PER_LAYER * kinds.layers * ranks)


def data_s(case: Case, held: StageParameters, kinds: StageKinds, forward_s: Floats, backward_s: Floats) -> DataSeconds:
    """Exposed data parallel time. forward_s, backward_s: one microbatch on each stage (n, stages).

    Messages hide behind the pass that they run beside, but for one layer's worth: the first gather and the last
    reduction have nothing beside them. Once a step means gradients beside the last backward and, from ZeRO-1, weights
    beside the first forward. forward_s and backward_s are what messages can run beside: without other messages over
    the same network cards.
    """
    habits, columns, each = case.habits, case.columns, data_rhythm(case)
    share = 1 - 1 / larger(kinds.layers, 1.0)
    reduce_beside = choose(column(columns.overlap_grad_reduce), backward_s * share, 0.0)
    gather_beside = choose(column(columns.overlap_param_gather), forward_s * share, 0.0)
    again_beside = choose(column(columns.overlap_param_gather), backward_s * share, 0.0)
    number = messages_of(case, held, kinds)
    reduce_s, gather_s = gradient_reduction_s(case, held, number), weight_gather_s(case, held, number)
    gain = habits.hidden_frac
    again = habits.gathers_per_microbatch - 1
    in_forward = hidden(gather_s, gather_beside, gain)
    # Under ZeRO-3 the second gather and the reduction share backward.
    in_backward = choose(each.gathers_again, again * gather_s, 0.0) + choose(each.reduces, reduce_s, 0.0)
    beside = choose(each.gathers_again, larger(again_beside, reduce_beside), reduce_beside)
    exposed_backward = hidden(in_backward, beside, gain)
    per_microbatch = choose(each.gathers, in_forward, 0.0) + exposed_backward
    last_reduction = choose(each.reduces, 0.0, hidden(reduce_s, reduce_beside, gain))
    is_sharded = column(columns.zero_stage >= 1)
    updated = gather_s if habits.gathers_in_update else in_forward
    first_gather = choose(is_sharded & ~each.gathers, updated + slices_s(case, kinds), 0.0)
    exists = kinds.exists
    return DataSeconds(
        per_microbatch_s=choose(exists, per_microbatch, 0.0),
        per_step_s=choose(exists, last_reduction + first_gather, 0.0),
    )


def stage_hop_bytes(case: Case) -> Floats:
    """One activation (or its gradient) between stages on one rank: s·b·h elements, / tp under sequence parallelism or
    where the framework scatters them (n,)."""
    split = sequence_split(case.columns.sequence_parallel | case.habits.scatters_p2p, case.columns.tp)
    return floats(case.states_bytes / split)


def stage_hop_s(case: Case) -> Floats:
    """One activation (or its gradient) to the next stage [s] (n,)."""
    return of_rows(point_to_point_s(stage_hop_bytes(case), case.cluster, case.links.pp), case.tokens)


def exposed_hops_s(case: Case) -> Floats:
    """Stage messages that one microbatch waits for in one direction (n,): one for each part of the model on the rank,
    less what is hidden."""
    chunks, habits = case.columns.parts_per_rank, case.habits
    kept = 1 - choose(chunks > 1, habits.interleaved_p2p_hidden_frac, habits.p2p_hidden_frac)
    return floats(chunks * kept * stage_hop_s(case))


def tied_embedding_s(case: Case) -> Floats:
    """Once a step the first and the last stage add their gradients of a tied embedding, or of the copy that prediction
    modules look up: all-reduce of two [s] (n,); nothing where it is frozen."""
    has_copy = case.model.tied_embeddings or case.model.mtp_num_layers
    if not has_copy or case.rates.is_frozen:
        return np.zeros(len(case.columns))
    sent = case.rates.gradient_bytes * case.vocab_rows * case.model.hidden_size
    return of_rows(point_to_point_s(sent, case.cluster, case.links.pp), case.tokens)
