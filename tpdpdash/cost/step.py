"""Seconds of one optimizer step: stage times, pipeline, data parallel messages, optimizer. Parts add up to the step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tpdpdash.cost.arrays import Flags, Floats, column, first_largest, of_rows
from tpdpdash.cost.case import Case
from tpdpdash.cost.distinct import PIPELINE, Runs, column_runs
from tpdpdash.cost.ends import case_ends_s, end_messages
from tpdpdash.cost.figures import StepSeconds
from tpdpdash.cost.optimizer import accumulation_s, optimizer_s
from tpdpdash.cost.passes import PassSeconds, case_attention, layer_passes, slowest_rank
from tpdpdash.cost.pipeline import (
    HIDDEN_IN_PAIRS,
    Parts,
    all_microbatches_s,
    end_passes,
    passes_of,
    shown_in_pairs,
)
from tpdpdash.cost.stage_activations import kept_activations, recomputed_layers
from tpdpdash.cost.stage_parameters import StageParameters, stage_parameters
from tpdpdash.cost.stages import StageKinds
from tpdpdash.cost.traffic import data_s, exposed_hops_s, tied_embedding_s
from tpdpdash.elementwise import added_up, choose, larger, somewhere
from tpdpdash.layout.columns import SHARDING
from tpdpdash.layout.schedules import PAIRED_PASSES, SPLIT_BACKWARD, ends_meet, is_among


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageSeconds:
    """One microbatch on each stage [s], messages included, each (n, stages)."""

    forward_s: Floats
    """Forward passes of all chunks."""
    backward_s: Floats
    """Backward passes, recompute included."""
    weight_gradient_s: Floats
    """The part of backward that the schedule can put off; 0 where it runs backwards whole."""
    data_per_microbatch_s: Floats
    """Exposed data parallel messages of each microbatch, part of the passes."""
    data_per_step_s: Floats
    """Exposed data parallel messages once a step."""
    tied_embedding_s: Floats
    """Adding up a tied embedding's gradients, once a step on the first and the last stage."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCost:
    """What a step costs, and the stage times that it came from."""

    parts: StepSeconds[Floats]
    """By part."""
    stages: StageSeconds
    """By stage kind."""
    gemm_recompute_frac: Floats
    """Share of the layers' forward pass that is computed again, for HFU (n,)."""


_PARTS = ("compute_s", "recompute_s", "tp_s", "cp_s", "ep_s", "pp_s")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageParts:
    """One microbatch on each stage by part, without data parallel messages [s], all (n, stages) but `crosses`."""

    forward: Parts
    """Forward."""
    backward: Parts
    """Backward with recompute."""
    put_off_s: Floats
    """The part of backward's computation that the schedule can put off."""
    crosses: Flags
    """Rows of which some messages leave their scale-up domain (n,)."""
    crossing_forward_s: Floats
    """Those messages, hidden or not, in a forward."""
    crossing_backward_s: Floats
    """The same in a backward."""


def step_cost(case: Case, kinds: StageKinds) -> StepCost:
    """The step of n layouts whose stages are `kinds`.

    T = pipeline(forward, backward of each stage) + exposed data parallel messages + optimizer. The critical stage is
    the one with the longest microbatch; data parallel and optimizer time are those of the stage where they take
    longest, since all stages meet in the gradient norm.
    """
    runs = column_runs(case.columns, ignoring=SHARDING)
    few, few_kinds = runs.firsts(case), runs.firsts(kinds)
    few_held = stage_parameters(case.model, case.habits, few.columns, few_kinds, case.training)
    passes = _paired_parts(few, few_kinds, few_held)
    held = runs.spread(few_held)
    forward_s, own_backward_s, put_off = runs.spread(
        (_total(passes.forward), _total(passes.backward), passes.put_off_s)
    )
    data = data_s(case, held, kinds, *_beside(case, runs, passes, forward_s, own_backward_s))
    stages = StageSeconds(
        forward_s=forward_s,
        backward_s=own_backward_s + data.per_microbatch_s,
        weight_gradient_s=put_off,
        data_per_microbatch_s=data.per_microbatch_s,
        data_per_step_s=data.per_step_s,
        tied_embedding_s=larger(kinds.is_first, kinds.is_last) * column(_tied_s(case)),
    )
    share = recomputed_layers(few.columns, few_kinds.layers) * few_kinds.count
    held_layers = added_up((few_kinds.layers * few_kinds.count).T)
    return StepCost(
        parts=_step_parts(case, kinds, runs, passes, stages, optimizer_s(case, held)),
        stages=stages,
        gemm_recompute_frac=runs.spread(added_up(share.T) / held_layers),
    )


def _tied_s(case: Case) -> Floats:
    """Adding up a tied embedding's gradients, where its two copies are on different ranks (n,)."""
    apart = (case.columns.pp > 1) & ~ends_meet(case.columns.schedule)
    return choose(apart, tied_embedding_s(case), 0.0)


def _beside(case: Case, runs: Runs, passes: StageParts, forward_s: Floats, backward_s: Floats) -> tuple[Floats, Floats]:
    """What data parallel messages can run beside in forward and in backward, each (n, stages): a pass without the
    messages, hidden or not, that use the same network cards. passes: of the runs."""
    shared = column(case.links.shard.crosses)
    if not (somewhere(shared) and somewhere(passes.crosses)):
        return forward_s, backward_s
    forward = larger(_total(passes.forward) - passes.crossing_forward_s, 0.0)
    backward = larger(_total(passes.backward) - passes.crossing_backward_s, 0.0)
    forward, backward = runs.spread((forward, backward))
    return choose(shared, forward, forward_s), choose(shared, backward, backward_s)


def _step_parts(
    case: Case,
    kinds: StageKinds,
    runs: Runs,
    passes: StageParts,
    stages: StageSeconds,
    update_s: Floats,
) -> StepSeconds[Floats]:
    """The step by part: all microbatches of the critical stage, its bubble, and what comes once. passes: of the
    runs."""
    columns = case.columns
    microbatches = passes_of(columns, case.training.global_batch_size)
    busy = choose(kinds.exists, stages.forward_s + stages.backward_s, -1.0)
    kind = first_largest(busy)
    at, critical = (np.arange(len(busy)), kind), (runs.of_row, kind)
    pipeline_s = all_microbatches_s(case, kinds, stages.forward_s, stages.backward_s, stages.weight_gradient_s)
    sums = {name: (passes.forward[name] + passes.backward[name])[critical] * microbatches for name in _PARTS}
    sums["pp_s"] = sums["pp_s"] + _tied_s(case)
    sums["dp_s"] = stages.data_per_microbatch_s[at] * microbatches + stages.data_per_step_s.max(axis=1)
    working = microbatches * busy[at]
    return StepSeconds(
        **sums,
        bubble_s=larger(pipeline_s - working, 0.0),
        optimizer_s=update_s.max(axis=1) + case.habits.step_s,
    )


def _total(parts: Parts) -> Floats:
    """Sum of all parts, in a fixed order."""
    total = parts[_PARTS[0]]
    for name in _PARTS[1:]:
        total = total + parts[name]
    return total


def _paired_parts(case: Case, kinds: StageKinds, held: StageParameters) -> StageParts:
    """`stage_parts` without the messages that the schedule hides in pairs of passes."""
    each = stage_parts(case, kinds, held)
    if not somewhere(is_among(case.columns.schedule, PAIRED_PASSES)):
        return each
    shown = shown_in_pairs(case, kinds, each.forward, each.backward)
    forward, backward = (
        parts | {name: parts[name] * still for name in HIDDEN_IN_PAIRS}
        for parts, still in zip((each.forward, each.backward), shown, strict=True)
    )
    return replace(each, forward=forward, backward=backward)


def stage_parts(case: Case, kinds: StageKinds, held: StageParameters) -> StageParts:
    """One microbatch on each stage by part, nothing hidden in pairs."""
    splits = is_among(case.columns.schedule, SPLIT_BACKWARD)
    put_off = accumulated = accumulation_s(case, held)
    none = np.zeros_like(kinds.count)
    forward, backward = dict.fromkeys(_PARTS, none), dict.fromkeys(_PARTS, none)
    crossing_forward = crossing_backward = none
    recomputed = recomputed_layers(case.columns, kinds.layers) / larger(kinds.layers, 1.0)
    runs = column_runs(case.columns, ignoring=SHARDING | PIPELINE)
    few = runs.firsts(case)
    block = case_attention(few)
    for moe, layers in ((False, kinds.dense_layers), (True, kinds.moe_layers)):
        if layers.any():
            passes = runs.spread(layer_passes(few, moe, block))
            _add_pass(forward, passes.forward, layers)
            _add_pass(backward, passes.backward, layers)
            _add_recompute(backward, passes.recompute, layers * recomputed)
            put_off = put_off + layers * column(passes.weight_gradient_s)
            crossing_forward = crossing_forward + layers * column(passes.crossing_forward_s)
            crossing_backward = crossing_backward + layers * column(passes.crossing_backward_s)
    _add_ends(forward, backward, case, kinds)
    if somewhere(splits):
        ends = end_passes(case)
        put_off = put_off + kinds.is_first * ends.embedding_weight_gradient_s
        put_off = put_off + kinds.is_last * ends.head_weight_gradient_s
    backward["compute_s"] = backward["compute_s"] + accumulated
    hops = column(exposed_hops_s(case))
    host_s = case.habits.microbatch_s + case.habits.microbatch_kernels * case.rates.launch_s
    for parts in (forward, backward):
        parts["pp_s"] = choose(kinds.exists, hops, 0.0)
        parts["compute_s"] = choose(kinds.exists, parts["compute_s"] + host_s / 2, 0.0)
    if somewhere(case.columns.offload_activations):
        moved = _offloaded_s(case, kinds)
        for parts in (forward, backward):
            parts["compute_s"] = parts["compute_s"] + larger(moved - _total(parts), 0.0)
    return StageParts(
        forward=forward,
        backward=backward,
        put_off_s=choose(column(splits), put_off, 0.0),
        crosses=case.links.tp.crosses | case.links.cp.crosses | case.links.ep.crosses,
        crossing_forward_s=crossing_forward,
        crossing_backward_s=crossing_backward,
    )


def _offloaded_s(case: Case, kinds: StageKinds) -> Floats:
    """Seconds in which the activations of one microbatch cross the host link (n, stages), which passes run beside."""
    device = case.cluster.device
    kept, _, _ = kept_activations(case.model, device, case.training, case.habits, case.columns, kinds)
    moved = column(case.tokens) * kept / device.host_bytes_per_s
    return choose(column(case.columns.offload_activations), moved, 0.0)


def _add_pass(parts: Parts, each: PassSeconds, layers: Floats) -> None:
    for name in ("compute_s", "tp_s", "cp_s", "ep_s"):
        parts[name] = parts[name] + layers * column(getattr(each, name))


def _add_recompute(parts: Parts, each: PassSeconds, layers: Floats) -> None:
    """Recompute is a part of its own; its messages count as messages."""
    parts["recompute_s"] = parts["recompute_s"] + layers * column(each.compute_s)
    for name in ("tp_s", "cp_s", "ep_s"):
        parts[name] = parts[name] + layers * column(getattr(each, name))


def _add_ends(forward: Parts, backward: Parts, case: Case, kinds: StageKinds) -> None:
    """Embedding on the first stage, head and loss on the last, with their TP messages."""
    ends, sent, slowest = case_ends_s(case), end_messages(case), slowest_rank(case.columns.world_size)
    added = (
        (forward, "compute_s", slowest * ends.embedding_forward_s, slowest * ends.head_forward_s),
        (backward, "compute_s", slowest * ends.embedding_backward_s, slowest * ends.head_backward_s),
        (forward, "tp_s", sent.embedding_forward_s, sent.head_forward_s),
        (backward, "tp_s", sent.embedding_backward_s, sent.head_backward_s),
    )
    for parts, name, first, last in added:
        embedding, head = column(of_rows(first, case.tokens)), column(of_rows(last, case.tokens))
        parts[name] = parts[name] + kinds.is_first * embedding + kinds.is_last * head
