"""The timeline of one step: the schedule simulated with the estimate's own stage times, then gradients and
optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tpdpdash.cost.arrays import Floats
from tpdpdash.cost.case import case_of
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.pipeline import second_chunk
from tpdpdash.cost.result import Estimate
from tpdpdash.cost.stages import stage_kinds
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import SCHEDULES, Layout
from tpdpdash.layout.prediction import trained_model
from tpdpdash.layout.schedules import SCHEDULE_FACTS, validates_after_update
from tpdpdash.schedule.actions import schedule_actions
from tpdpdash.schedule.split_forms import ChunkSeconds
from tpdpdash.schedule.timeline import Timeline, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One thing that every rank of a stage does after (or before) its microbatches."""

    stage: int
    """Pipeline stage."""
    part: str
    """pp (a tied embedding's gradients), dp or optimizer."""
    start_s: float
    """Start, from the start of the step."""
    duration_s: float
    """How long it shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """One step on every pipeline stage."""

    pipeline: Timeline
    """Forwards and backwards of all microbatches; messages between stages are part of them."""
    bars: tuple[Bar, ...]
    """A tied embedding's gradients, exposed data parallel messages, then the optimizer, on each stage."""
    total_s: float
    """End of the last bar; the closed form's step_s within the bound of the simulation. Where stages do not meet at the
    step's end, the next step begins on the first stage while the last one still works: then it is longer than step_s by
    at most `skew_s`."""
    skew_s: float
    """How much later than the first stage the last one begins, where stages need not meet between steps; else 0."""


def step_timeline(job: Job, estimate: Estimate) -> StepTimeline:
    """Simulate the estimated layout. Its stage times are the estimate's, so the total is held to its step_s.

    A stage's gradients follow its own last backward; all stages meet in the optimizer, which needs the gradient norm,
    unless the schedule looks at the norm afterwards.
    """
    layout = estimate.layout
    pipeline = _simulated(job, estimate)
    ends = [_end_s(pipeline, stage.stage) for stage in estimate.stages]
    tied = [
        Bar(stage=s.stage, part="pp", start_s=pipeline.total_s, duration_s=s.tied_embedding_s)
        for s in estimate.stages
        if s.tied_embedding_s > 0
    ]
    data = [
        Bar(
            stage=s.stage,
            part="dp",
            start_s=pipeline.total_s + s.tied_embedding_s if s.tied_embedding_s else end,
            duration_s=s.data_per_step_s,
        )
        for s, end in zip(estimate.stages, ends, strict=True)
        if s.data_per_step_s > 0
    ]
    done = [
        max([end, *(b.start_s + b.duration_s for b in (*tied, *data) if b.stage == s)]) for s, end in enumerate(ends)
    ]
    skewed = bool(validates_after_update(SCHEDULES.index(layout.schedule), job.training.framework))
    begins = done if skewed else [max(done)] * len(done)
    seconds = estimate.time.optimizer_s
    optimizer = [Bar(stage=s, part="optimizer", start_s=at, duration_s=seconds) for s, at in enumerate(begins)]
    starts = [float(pipeline.start_s[pipeline.rank == s].min()) for s in range(layout.pp)]
    return StepTimeline(
        pipeline=pipeline,
        bars=(*tied, *data, *optimizer),
        total_s=max(begins) + seconds,
        skew_s=max(starts) if skewed else 0.0,
    )


def _simulated(job: Job, estimate: Estimate) -> Timeline:
    """The schedule run with the estimate's stage times, each chunk with its own where both ends meet on a rank."""
    layout = estimate.layout
    schedule = layout.schedule if layout.pp > 1 else "1f1b"
    actions = schedule_actions(
        schedule,
        layout.pp,
        layout.num_microbatches(job.training.global_batch_size),
        layout.num_model_chunks,
        layout.microbatch_group_size_per_vp_stage,
    )
    f, b, w = (
        np.array([getattr(stage, name) for stage in estimate.stages])
        for name in ("forward_s", "backward_s", "weight_gradient_s")
    )
    placement = SCHEDULE_FACTS[schedule].placement
    if placement == "loop":
        return simulate(actions, f, b, weight_gradient_s=w)
    forward, backward, weight_gradient = _chunk_times(
        job, layout, ChunkSeconds(forward_s=f[None], input_gradient_s=(b - w)[None], weight_gradient_s=w[None])
    )
    return simulate(actions, forward, backward, weight_gradient_s=weight_gradient, placement=placement)


def _chunk_times(job: Job, layout: Layout, whole: ChunkSeconds) -> list[Floats]:
    """(forward, backward, weight gradient) of each rank's two parts (pp, 2), as the closed form divides them. Under
    DualPipe the second half of the ranks has the later stage in the first copy."""
    columns = LayoutColumns.from_layouts([layout])
    model = trained_model(job.model, job.training)
    case = case_of(model, job.cluster, job.training, framework_habits(job.training.framework), columns)
    second = second_chunk(case, stage_kinds(model, columns), whole)
    first = whole.less(second)
    pairs = [
        np.column_stack([getattr(first, name)[0], getattr(second, name)[0]])
        for name in ("forward_s", "input_gradient_s", "weight_gradient_s")
    ]
    if SCHEDULE_FACTS[layout.schedule].placement == "mirror":
        later = np.arange(layout.pp)[:, None] >= layout.pp // 2
        pairs = [np.where(later, each[:, ::-1], each) for each in pairs]
    return [pairs[0], pairs[1] + pairs[2], pairs[2]]


def _end_s(pipeline: Timeline, stage: int) -> float:
    """End of a stage's last action."""
    own = pipeline.rank == stage
    return float((pipeline.start_s[own] + pipeline.duration_s[own]).max(initial=0.0))
