"""What is planned of a run's Job beside its prediction: the work of each stage, the idle time of its schedule, and what
the planner would rather have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tpdpdash.cluster.detection import Detection
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.cost.result import Estimate
from tpdpdash.faults import InvalidInputError
from tpdpdash.job import Job, detect_here, read_job
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.layout.schedules import SCHEDULE_FACTS
from tpdpdash.run.folder import RunFolder
from tpdpdash.schedule.actions import schedule_actions
from tpdpdash.schedule.timeline import simulate
from tpdpdash.telemetry.analysis import RankPhases, rank_phases
from tpdpdash.telemetry.reader import Telemetry
from tpdpdash.telemetry.record import PHASES

RECENT_STEPS = 50
"""Steps whose mean is held against the plan: the present, and enough of it."""
MAX_ACTIONS = 20_000
"""A schedule of more is not run again for every look at a run."""
SAME_FRAC = 0.02
"""So much may the estimate of today's machine differ from the one that was made at the start."""
BETTER_FRAC = 0.05
"""A layout is proposed that is predicted to take so much less of a step at least."""
_MESSAGES = [PHASES.index(name) for name in ("tp", "cp", "ep")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The Job of a run, every key fixed, and its estimate of today."""

    job: Job
    """The Job as it runs."""
    estimate: Estimate
    """Its estimate."""

    def still_takes(self, told_s: float) -> bool:
        """Whether today's estimate is the one that was made at the start, so that its schedule may be drawn."""
        return abs(self.estimate.step_s - told_s) <= SAME_FRAC * told_s

    @property
    def stage_work(self) -> tuple[float, ...]:
        """Planned seconds of one microbatch on each stage."""
        return tuple(stage.forward_s + stage.backward_s for stage in self.estimate.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class BetterLayout:
    """A layout that the planner expects to be faster on the same devices."""

    layout_id: str
    """tp1-pp1-dp4."""
    schedule: str
    """Its schedule where it has a pipeline, else ""."""
    saved_frac: float
    """Share of the step that it saves, as predicted for both."""


def read_run_plan(folder: RunFolder, detect: Callable[[], Detection] = detect_here) -> RunPlan | None:
    """The plan of a run; None for a script, and where its Job cannot be read or estimated here."""
    if not folder.job.is_file():
        return None
    try:
        job = read_job(folder.job, detect).resolved()
        return RunPlan(job=job, estimate=estimate_job(job))
    except InvalidInputError:
        return None


def better_layout(run: RunPlan) -> BetterLayout | None:
    """The planner's best layout of the same Job and devices; None unless it is clearly faster than what runs."""
    from tpdpdash.search.plan import plan  # only here: the search costs every look at a run a tenth of its import

    best = plan(replace(run.job, pins=LayoutPins(), world_follows_layout=False), top=1).picked
    if best is None or best.layout == run.estimate.layout:
        return None
    saved = 1 - best.step_s / run.estimate.step_s
    if saved < BETTER_FRAC:
        return None
    schedule = best.layout.schedule if best.layout.pp > 1 else ""
    return BetterLayout(layout_id=best.layout.layout_id, schedule=schedule, saved_frac=saved)


def steady_steps(telemetry: Telemetry, limit: int = RECENT_STEPS) -> int:
    """How many of the last steps are held against a plan: the first of a run is none of them."""
    num_steps = len(telemetry.steps)
    return max(1, min(limit, num_steps - 1 if telemetry.dropped_steps == 0 else num_steps))


def planned_idle_s(telemetry: Telemetry, run: RunPlan | None) -> NDArray[np.float64] | None:
    """(R,) seconds a step that each rank is idle by its schedule, at the measured times of the stages.

    The schedule is run again with what a stage was busy in forward and backward (median over its ranks); of a step from
    its first action to its last, what a stage is not busy is planned idle time. None where no schedule is known, no
    step was measured on some stage, or the schedule is too long.
    """
    if run is None or not len(telemetry.steps):
        return None
    layout, microbatches = run.estimate.layout, run.estimate.num_microbatches
    stages = telemetry.ranks.stages
    if layout.pp == 1 or set(stages) != set(range(layout.pp)):
        return None
    if 3 * layout.pp * layout.num_model_chunks * microbatches > MAX_ACTIONS:
        return None
    phases = rank_phases(telemetry, steady_steps(telemetry))
    forward, backward = _busy_s(phases, [stages[stage] for stage in range(layout.pp)])
    if not np.isfinite(forward + backward).all():
        return None
    actions = schedule_actions(layout.schedule, layout.pp, microbatches, layout.num_model_chunks,
                               layout.microbatch_group_size_per_vp_stage)  # fmt: skip
    is_split = any(action.kind == "W" for rank in actions for action in rank)
    ran = simulate(
        actions,
        forward / microbatches,
        backward / microbatches,
        weight_gradient_s=backward / microbatches / 2 if is_split else 0.0,
        placement=SCHEDULE_FACTS[layout.schedule].placement,
    )
    idle = np.zeros(telemetry.world_size)
    for stage, ranks in stages.items():
        idle[ranks] = max(0.0, ran.total_s - float(ran.duration_s[ran.rank == stage].sum()))
    return idle


def _busy_s(phases: RankPhases, stages: list[list[int]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(pp,) seconds a step in forward and in backward, messages inside them by their share."""
    forward = phases.phase_s[:, PHASES.index("forward")] + phases.phase_s[:, PHASES.index("loss")]
    backward = phases.phase_s[:, PHASES.index("backward")]
    messages = phases.phase_s[:, _MESSAGES].sum(axis=1)
    own = np.array([[np.median(values[ranks]) for ranks in stages] for values in (forward, backward, messages)])
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = 1 + own[2] / (own[0] + own[1])
    return own[0] * scale, own[1] * scale
