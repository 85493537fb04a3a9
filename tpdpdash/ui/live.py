"""A run that is being watched: one reader for every viewer, and what a page shows of it at this moment.

Readers are refreshed by whoever looks, under a lock; no thread is started and nothing here calls streamlit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from tpdpdash.compare.attribution import Attribution, attribute
from tpdpdash.compare.prediction import Prediction, read_prediction
from tpdpdash.compare.run_plan import RunPlan, planned_idle_s, read_run_plan
from tpdpdash.compare.verdict import Verdict, judge
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.history import RunView, read_state
from tpdpdash.telemetry import analysis
from tpdpdash.telemetry.analysis import RankPhases, StepBand
from tpdpdash.telemetry.hang import find_hang
from tpdpdash.telemetry.reader import RunReader, Telemetry
from tpdpdash.telemetry.snapshot import Floats

T = TypeVar("T")
MIN_REFRESH_S = 0.8
"""Viewers within this time share one look at the files: less than a tick of a page, so that none is passed over."""
MAX_LASTING = 16
"""Tables that outlive a version: as many as viewers who look at different ranks of one sampled step, and no more."""


class Shared:
    """What is made for the first viewer who asks, and shared with the others; beyond `limit` the oldest goes."""

    def __init__(self, limit: float = float("inf")) -> None:
        self._lock = threading.RLock()
        self._limit = limit
        self._made: dict[Hashable, object] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, made once. The key names it and all that it depends on."""
        with self._lock:
            if key not in self._made:
                made = make()
                if len(self._made) >= self._limit:
                    del self._made[next(iter(self._made))]
                self._made[key] = made
            return cast(T, self._made[key])


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at a run."""

    view: RunView
    """Its state, as the reader judges it."""
    telemetry: Telemetry
    """What the ranks have told, without the steps that a deep profile made longer."""
    told: Telemetry
    """The same with them."""
    prediction: Prediction
    """What was expected."""
    plan: RunPlan | None
    """The Job that runs and its estimate; None for a script."""
    planned_idle_s: Floats | None
    """Idle time that each rank's schedule plans, at the measured stage times."""
    verdict: Verdict
    """What bounds the run, and who holds it up."""
    attribution: Attribution | None
    """Prediction against measurement; None before the second step."""
    version: int
    """Grows when there is news: equal versions have equal telemetry."""
    seen_t: float
    """Wall time of this look."""
    shared: Shared = field(repr=False, compare=False)
    """Figures and tables of this version, for all viewers: its keys need not name the version."""
    lasting: Shared = field(repr=False, compare=False)
    """Tables of a sampled step, which the next versions show too."""

    @property
    def band(self) -> StepBand:
        """Step time over the ranks."""
        return self.shared.once("band", lambda: analysis.step_band(self.telemetry))

    @property
    def tokens_per_s(self) -> Floats:
        """(S,) tokens of all replicas a second."""
        return self.shared.once("tokens_per_s", lambda: analysis.tokens_per_s(self.telemetry))

    @property
    def loss(self) -> Floats:
        """(S,) loss of each step; NaN where none was told."""
        return self.shared.once("loss", lambda: analysis.loss_by_step(self.telemetry))

    @property
    def excess_frac(self) -> Floats:
        """(R, S) own work above the median of the rank's stage, as a share."""
        return self.shared.once("excess", lambda: analysis.own_work_ratio(self.telemetry) - 1)

    def phases(self, window: int | None) -> RankPhases:
        """Mean seconds of each rank over the last steps."""
        steps = len(self.telemetry.steps)
        num_steps = steps if window is None else min(window, steps)
        return self.shared.once(
            ("phases", num_steps), lambda: analysis.rank_phases(self.telemetry, num_steps, self.planned_idle_s)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """What follows from one version of the telemetry."""

    planned_idle_s: Floats | None
    verdict: Verdict
    attribution: Attribution | None


def _judged(telemetry: Telemetry, prediction: Prediction, plan: RunPlan | None) -> _Judged:
    idle_s = planned_idle_s(telemetry, plan)
    return _Judged(
        planned_idle_s=idle_s,
        verdict=judge(telemetry, plan, idle_s),
        attribution=attribute(telemetry, prediction, idle_s),
    )


class LiveRun:
    """Follows one run for every viewer of this process."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._reader: RunReader | None = None
        self._told: Telemetry | None = None
        self._telemetry: Telemetry | None = None
        self._prediction: Prediction | None = None
        self._plan: RunPlan | None = None
        self._judged: _Judged | None = None
        self._shared = Shared()
        self._lasting = Shared(MAX_LASTING)
        self._version = 0
        self._read_at = float("-inf")

    def look(self) -> Look:
        """The run as it is now."""
        view = read_state(self.folder)
        with self._lock:
            if time.monotonic() - self._read_at >= MIN_REFRESH_S:
                self._refresh(view)
            if self._told is None or self._telemetry is None or self._judged is None:
                raise AssertionError("the first look always refreshes")
            now, judged = time.time(), self._judged
            hang = find_hang(self._told, now) if view.state == "running" else None
            return Look(
                view=view,
                telemetry=self._telemetry,
                told=self._told,
                prediction=self._prediction or Prediction(),
                plan=self._plan,
                planned_idle_s=judged.planned_idle_s,
                verdict=replace(judged.verdict, hang=hang),
                attribution=judged.attribution,
                version=self._version,
                seen_t=now,
                shared=self._shared,
                lasting=self._lasting,
            )

    def _refresh(self, view: RunView) -> None:
        """Read what is new. The number of ranks is known from the first status on."""
        self._read_at = time.monotonic()
        if self._reader is None or self._reader.world_size != view.world_size:
            self._reader = RunReader(self.folder.path, view.world_size)
            self._told = None
        if self._prediction is None:
            self._prediction = read_prediction(self.folder)
            self._plan = read_run_plan(self.folder)
        if self._reader.refresh() or self._told is None:
            self._told = self._reader.snapshot()
            self._telemetry = self._told.undisturbed()
            self._version += 1
            self._shared = Shared()
            self._judged = _judged(self._telemetry, self._prediction, self._plan)
