"""The timeline of one step: the schedule simulated with the estimate's own stage times, then gradients and
optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tpdpdash.cost.result import Estimate
from tpdpdash.job import Job
from tpdpdash.schedule.actions import schedule_actions
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
    """End of the last bar; the closed form's step_s within the bound of the simulation."""


def step_timeline(job: Job, estimate: Estimate) -> StepTimeline:
    """Simulate the estimated layout. Its stage times are the estimate's, so the total is held to its step_s.

    A stage's gradients follow its own last backward; all stages meet in the optimizer, which needs the gradient norm.
    """
    layout = estimate.layout
    schedule = layout.schedule if layout.pp > 1 else "1f1b"
    actions = schedule_actions(
        schedule,
        layout.pp,
        layout.num_microbatches(job.training.global_batch_size),
        layout.num_model_chunks,
        layout.microbatch_group_size_per_vp_stage,
    )
    forward = np.array([stage.forward_s for stage in estimate.stages])
    backward = np.array([stage.backward_s for stage in estimate.stages])
    pipeline = simulate(actions, forward, backward)
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
    meet = max([pipeline.total_s, *(bar.start_s + bar.duration_s for bar in (*tied, *data))])
    seconds = estimate.parts["optimizer_s"]
    optimizer = [Bar(stage=s.stage, part="optimizer", start_s=meet, duration_s=seconds) for s in estimate.stages]
    return StepTimeline(pipeline=pipeline, bars=(*tied, *data, *optimizer), total_s=meet + seconds)


def _end_s(pipeline: Timeline, stage: int) -> float:
    """End of a stage's last action."""
    own = pipeline.rank == stage
    return float((pipeline.start_s[own] + pipeline.duration_s[own]).max(initial=0.0))
