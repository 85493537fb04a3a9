"""The verdict on a run: what bounds it, the evidence, and what to try next. Codes and figures; compare.verdict_words
has the sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tpdpdash.compare.run_plan import BetterLayout, RunPlan, steady_steps
from tpdpdash.telemetry.analysis import RankPhases, rank_phases
from tpdpdash.telemetry.growth import Growth, growing_ranks
from tpdpdash.telemetry.hang import Hang
from tpdpdash.telemetry.reader import Telemetry
from tpdpdash.telemetry.record import PHASES
from tpdpdash.telemetry.slow import SlowGroup, SlowRank, slow_groups, slow_ranks
from tpdpdash.telemetry.snapshot import Floats

BOUND_SHARE = 0.2
"""Share of the step from which on something else than compute is said to bound a run."""
RECENT_STEPS = 20
"""Last steps of which the shares are told."""
KNOWN_STEPS = 240
"""Last steps with which they are compared: what a rank took before, what it held."""
BOUNDS: Mapping[str, tuple[str, ...]] = {
    "input": ("data",),
    "compute": ("forward", "loss", "backward", "optimizer"),
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "pp": ("pp",),
    "dp": ("dp",),
    "unmeasured": ("other",),
}
"""What can bound a run, by phase."""
LAYOUT_BOUNDS = frozenset({"compute", "tp", "cp", "ep", "pp", "dp"})
"""Bounds against which another layout may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What most of the step goes to, beside compute."""

    code: str
    """One of BOUNDS."""
    share: float
    """Its share of the step: mean over the ranks."""
    seconds: float
    """Its seconds a step."""
    waiting_s: float
    """Of these, waiting for other ranks."""
    bubble_s: float
    """Of these, idle time that the schedule plans."""
    step_s: float
    """Seconds of the step."""
    num_steps: int
    """Steps that were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be said of a run at this moment."""

    slow_ranks: tuple[SlowRank, ...]
    """Ranks that hold the others up, the slowest first."""
    slow_groups: tuple[SlowGroup, ...]
    """Groups with a slow link, the slowest first."""
    growing: tuple[Growth, ...]
    """Ranks whose memory grows, the quickest first."""
    bound: Bound | None
    """Where the step goes; None before there are steps."""
    hang: Hang | None = None
    """It does not go on; None also once a run is over. Told by telemetry.hang.find_hang, which looks at the clock."""
    better: BetterLayout | None = None
    """A layout to try next."""

    @property
    def code(self) -> str:
        """The worst of it: hung, slow_input, slow_rank, slow_stage, slow_link, memory_grows, else the bound's code."""
        if self.hang is not None:
            return "hung"
        if self.slow_ranks:
            return slow_code(self.slow_ranks[0])
        if self.slow_groups:
            return "slow_link"
        if self.growing:
            return "memory_grows"
        return self.bound.code if self.bound is not None else "no_steps"

    @property
    def wants_layout(self) -> bool:
        """Whether another layout is worth a search: no single rank or link is to blame."""
        return self.code in LAYOUT_BOUNDS

    def with_layout(self, better: BetterLayout | None) -> Verdict:
        """The same, with what the planner proposes."""
        return replace(self, better=better)

    def to_json(self) -> dict[str, Any]:
        """What `show --json` says of it."""
        return {
            "code": self.code,
            "hang": None if self.hang is None else asdict(self.hang),
            "slow_ranks": [asdict(each) for each in self.slow_ranks],
            "slow_groups": [asdict(each) for each in self.slow_groups],
            "growing_ranks": [_known(asdict(each)) for each in self.growing],
            "bound": None if self.bound is None else asdict(self.bound),
            "try_layout": None if self.better is None else asdict(self.better),
        }


def slow_code(slow: SlowRank) -> str:
    """slow_input, slow_stage (it may be the stage that is too long, not the rank) or slow_rank."""
    if slow.phase == "data":
        return "slow_input"
    return "slow_stage" if slow.against == "stages" else "slow_rank"


def judge(telemetry: Telemetry, run: RunPlan | None = None, idle_s: Floats | None = None) -> Verdict:
    """The verdict of what was told, without a hang. `idle_s`: what run_plan.planned_idle_s says of the same
    telemetry."""
    seen = telemetry.last(KNOWN_STEPS)
    return Verdict(
        slow_ranks=tuple(slow_ranks(seen, None if run is None else run.stage_work)),
        slow_groups=tuple(slow_groups(seen, idle_s)),
        growing=tuple(growing_ranks(seen)),
        bound=_bound(rank_phases(seen, steady_steps(seen, RECENT_STEPS), idle_s)),
    )


def _bound(phases: RankPhases) -> Bound | None:
    """The largest part that is not compute and matters; else compute."""
    known = np.isfinite(phases.step_s)
    if not known.any():
        return None

    def mean(values: np.ndarray) -> float:
        return float(values[known].mean())

    step_s = mean(phases.step_s)
    if step_s <= 0:
        return None
    seconds, waiting = {}, {}
    for code, names in BOUNDS.items():
        index = [PHASES.index(name) for name in names]
        waiting[code] = mean(phases.waiting_s[:, index].sum(axis=1))
        seconds[code] = mean(phases.phase_s[:, index].sum(axis=1)) + waiting[code]
    bubble_s = mean(phases.bubble_s)
    seconds["pp"] += bubble_s
    seconds["unmeasured"] += mean(phases.unattributed_s)
    most = max((code for code in seconds if code != "compute"), key=lambda code: seconds[code])
    code = most if seconds[most] >= BOUND_SHARE * step_s else "compute"
    return Bound(
        code=code,
        share=seconds[code] / step_s,
        seconds=seconds[code],
        waiting_s=waiting[code],
        bubble_s=bubble_s if code == "pp" else 0.0,
        step_s=step_s,
        num_steps=phases.num_steps,
    )


def _known(document: dict[str, Any]) -> dict[str, Any]:
    """NaN is unknown: null in JSON."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in document.items()
    }
