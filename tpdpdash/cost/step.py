"""Seconds of one optimizer step: stage times, pipeline, data parallel messages, optimizer. Parts add up to the step."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from tpdpdash.cost.activations import FULL
from tpdpdash.cost.arrays import Floats, column, of_rows
from tpdpdash.cost.case import Case
from tpdpdash.cost.ends import case_ends_s, end_messages
from tpdpdash.cost.layer_messages import expert_exchange_s, layer_tp_s, ring_s
from tpdpdash.cost.memory import StageParameters, kept_activations, recomputed_layers, stage_parameters
from tpdpdash.cost.optimizer import HOST_LINK_BYTES_PER_S, accumulation_s, optimizer_s
from tpdpdash.cost.passes import PassSeconds, layer_passes, slowest_rank
from tpdpdash.cost.stages import StageKinds
from tpdpdash.cost.traffic import DataSeconds, data_s, exposed_hops_s, tied_embedding_s
from tpdpdash.schedule.closed_form import pipeline_seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepSeconds:
    """Exposed seconds of one step on the critical stage, each (n,)."""

    compute_s: Floats
    """Forward and backward of all microbatches on the critical stage, host time included."""
    recompute_s: Floats
    """What backward computes again."""
    tp_s: Floats
    """Tensor parallel messages, those of recompute included."""
    cp_s: Floats
    """Context parallel messages."""
    ep_s: Floats
    """Expert parallel messages."""
    pp_s: Floats
    """Messages between stages, and the tied embedding's gradients."""
    bubble_s: Floats
    """The critical stage's idle time."""
    dp_s: Floats
    """Data parallel messages: gradients and weights."""
    optimizer_s: Floats
    """Optimizer update, and the step's host time."""

    @property
    def step_s(self) -> Floats:
        """The step: the sum of its parts, in their order."""
        total = self.compute_s
        for field in fields(self)[1:]:
            total = total + getattr(self, field.name)
        return total


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageSeconds:
    """One microbatch on each stage [s], messages included, each (n, stages)."""

    forward_s: Floats
    """Forward passes of all chunks."""
    backward_s: Floats
    """Backward passes, recompute included."""
    data_per_microbatch_s: Floats
    """Exposed data parallel messages of each microbatch, part of the passes."""
    data_per_step_s: Floats
    """Exposed data parallel messages once a step."""
    tied_embedding_s: Floats
    """Adding up a tied embedding's gradients, once a step on the first and the last stage."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCost:
    """What a step costs, and the stage times that it came from."""

    parts: StepSeconds
    """By part."""
    stages: StageSeconds
    """By stage kind."""
    gemm_recompute_frac: Floats
    """Share of the layers' forward pass that is computed again, for HFU (n,)."""


_PARTS = ("compute_s", "recompute_s", "tp_s", "cp_s", "ep_s", "pp_s", "dp_s")
Parts = dict[str, "Floats"]


def step_cost(case: Case, kinds: StageKinds) -> StepCost:
    """The step of n layouts whose stages are `kinds`.

    T = pipeline(forward, backward of each stage) + exposed data parallel messages + optimizer. The critical stage is
    the one with the longest microbatch; data parallel and optimizer time are those of the stage where they take
    longest, since all stages meet in the gradient norm.
    """
    held = stage_parameters(case.model, case.habits, case.columns, kinds, case.training)
    forward, backward = _stage_parts(case, kinds, held)
    data = data_s(
        case,
        held,
        kinds,
        _beside(case, kinds, forward, backward=False),
        _beside(case, kinds, backward, backward=True),
    )
    backward["dp_s"] = backward["dp_s"] + data.per_microbatch_s
    tied = np.where(case.columns.pp > 1, tied_embedding_s(case), 0.0)
    stages = StageSeconds(
        forward_s=_total(forward),
        backward_s=_total(backward),
        data_per_microbatch_s=data.per_microbatch_s,
        data_per_step_s=data.per_step_s,
        tied_embedding_s=np.maximum(kinds.is_first, kinds.is_last) * column(tied),
    )
    microbatch = {name: forward[name] + backward[name] for name in _PARTS}
    share = recomputed_layers(case.columns, kinds.layers) * kinds.count
    return StepCost(
        parts=_step_parts(case, kinds, microbatch, stages, data, tied, optimizer_s(case, held)),
        stages=stages,
        gemm_recompute_frac=share.sum(axis=1) / case.model.num_layers,
    )


def _beside(case: Case, kinds: StageKinds, parts: Parts, *, backward: bool) -> Floats:
    """What data parallel messages can run beside (n, stages): a pass without the messages, hidden or not, that use the
    same network cards."""
    columns, links = case.columns, case.links
    total, shared = _total(parts), links.shard.crosses
    tp, cp, ep = (shared & link.crosses for link in (links.tp, links.cp, links.ep))
    if not (tp | cp | ep).any():
        return total
    again = (columns.recompute == FULL) & backward
    rounds = 2 if backward else 1
    for moe, layers in ((False, kinds.dense_layers), (True, kinds.moe_layers)):
        if not layers.any():
            continue
        forward_tp = layer_tp_s(case, moe, backward=False)
        sent_tp = np.where(again, forward_tp, 0.0) + (layer_tp_s(case, moe, backward=True) if backward else forward_tp)
        sent = np.where(tp, sent_tp, 0.0) + np.where(cp, (rounds + again) * ring_s(case), 0.0)
        if moe:
            sent = sent + np.where(ep, (1.0 + again) * expert_exchange_s(case), 0.0)
        total = total - layers * column(sent)
    return np.maximum(total, 0.0)


def _step_parts(
    case: Case,
    kinds: StageKinds,
    microbatch: Parts,
    stages: StageSeconds,
    data: DataSeconds,
    tied_s: Floats,
    update_s: Floats,
) -> StepSeconds:
    """The step by part: all microbatches of the critical stage, its bubble, and what comes once."""
    columns = case.columns
    microbatches = columns.num_microbatches(case.training.global_batch_size)
    busy = np.where(kinds.exists, stages.forward_s + stages.backward_s, -1.0)
    critical = np.arange(len(busy)), busy.argmax(axis=1)
    pipeline_s = pipeline_seconds(
        schedule=columns.schedule,
        forward_s=kinds.spread(stages.forward_s),
        backward_s=kinds.spread(stages.backward_s),
        stage_mask=kinds.stage_exists,
        num_microbatches=microbatches,
        num_model_chunks=columns.num_model_chunks,
        group=columns.microbatch_group_size_per_vp_stage,
    )
    sums = {name: each[critical] * microbatches for name, each in microbatch.items()}
    sums["pp_s"] = sums["pp_s"] + tied_s
    sums["dp_s"] = sums["dp_s"] + data.per_step_s.max(axis=1)
    working = microbatches * busy[critical]
    return StepSeconds(
        **sums,
        bubble_s=np.maximum(pipeline_s - working, 0.0),
        optimizer_s=update_s.max(axis=1) + case.habits.step_s,
    )


def _total(parts: Parts) -> Floats:
    """Sum of all parts, in a fixed order."""
    total = parts[_PARTS[0]]
    for name in _PARTS[1:]:
        total = total + parts[name]
    return total


def _stage_parts(case: Case, kinds: StageKinds, held: StageParameters) -> tuple[Parts, Parts]:
    """(forward, backward) of one microbatch on each stage by part, each (n, stages)."""
    forward = {name: np.zeros_like(kinds.count) for name in _PARTS}
    backward = {name: np.zeros_like(kinds.count) for name in _PARTS}
    recomputed = recomputed_layers(case.columns, kinds.layers) / np.maximum(kinds.layers, 1.0)
    for moe, layers in ((False, kinds.dense_layers), (True, kinds.moe_layers)):
        if layers.any():
            passes = layer_passes(case, moe)
            _add_pass(forward, passes.forward, layers)
            _add_pass(backward, passes.backward, layers)
            _add_recompute(backward, passes.recompute, layers * recomputed)
    _add_ends(forward, backward, case, kinds)
    backward["compute_s"] = backward["compute_s"] + accumulation_s(case, held)
    hops = column(exposed_hops_s(case))
    for parts in (forward, backward):
        parts["pp_s"] = np.where(kinds.exists, hops, 0.0)
        parts["compute_s"] = np.where(kinds.exists, parts["compute_s"] + case.habits.microbatch_s / 2, 0.0)
    if case.columns.offload_activations.any():
        moved = _offloaded_s(case, kinds)
        for parts in (forward, backward):
            parts["compute_s"] = parts["compute_s"] + np.maximum(moved - _total(parts), 0.0)
    return forward, backward


def _offloaded_s(case: Case, kinds: StageKinds) -> Floats:
    """Seconds in which the activations of one microbatch cross the host link (n, stages), which passes run beside."""
    kept, _, _ = kept_activations(case.model, case.training, case.habits, case.columns, kinds)
    moved = column(case.tokens) * kept / HOST_LINK_BYTES_PER_S
    return np.where(column(case.columns.offload_activations), moved, 0.0)


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
