"""One run taken to account: what was measured, the verdict, and prediction against measurement."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from tpdpdash.cluster.detection import Detection
from tpdpdash.compare.attribution import Attribution, attribute
from tpdpdash.compare.prediction import read_prediction
from tpdpdash.compare.run_plan import better_layout, planned_idle_s, read_run_plan
from tpdpdash.compare.verdict import RECENT_STEPS, Verdict, judge
from tpdpdash.compare.verdict_words import evidence, headline, next_step
from tpdpdash.job import detect_here
from tpdpdash.run.history import RunView
from tpdpdash.telemetry import analysis
from tpdpdash.telemetry.hang import find_hang
from tpdpdash.telemetry.reader import RunReader, Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The present figures of a run; None where nothing was told."""

    steps: int
    """Steps that were seen."""
    step_s: float | None
    """Seconds of a step: slowest rank, median of the last steps."""
    tokens_per_s: float | None
    """Tokens of all replicas a second, median of the last steps."""
    loss: float | None
    """The last loss."""
    peak_memory_bytes: float | None
    """The most that any rank held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What is to be said of one run besides its status."""

    measured: Measured
    """Its figures."""
    verdict: Verdict
    """What bounds it."""
    attribution: Attribution | None
    """Against its prediction; None before the second step."""

    def to_json(self) -> dict[str, Any]:
        """measured, verdict and prediction of `show --json`."""
        text = " ".join(filter(None, (headline(self.verdict), evidence(self.verdict), next_step(self.verdict))))
        return {
            "measured": asdict(self.measured),
            "verdict": {**self.verdict.to_json(), "text": text},
            "prediction": None if self.attribution is None else self.attribution.to_json(),
        }


def measure(telemetry: Telemetry) -> Measured:
    """The present figures."""
    loss = analysis.loss_by_step(telemetry)
    known = loss[loss == loss]
    peak = telemetry.peak_memory_bytes[telemetry.peak_memory_bytes == telemetry.peak_memory_bytes]
    return Measured(
        steps=telemetry.num_steps,
        step_s=analysis.usual(analysis.step_band(telemetry).max_s, RECENT_STEPS),
        tokens_per_s=analysis.usual(analysis.tokens_per_s(telemetry), RECENT_STEPS),
        loss=float(known[-1]) if len(known) else None,
        peak_memory_bytes=float(peak.max()) if len(peak) else None,
    )


def take_account(view: RunView, detect: Callable[[], Detection] = detect_here) -> Account | None:
    """Read a run's telemetry and judge it, proposing a layout where one may help; None before the first step."""
    if view.status is None:
        return None
    reader = RunReader(view.folder.path, view.status.world_size)
    reader.refresh()
    told = reader.snapshot()
    telemetry = told.undisturbed()
    if not len(telemetry.steps):
        return None
    run = read_run_plan(view.folder, detect)
    idle_s = planned_idle_s(telemetry, run)
    hang = find_hang(told, time.time()) if view.state == "running" else None
    verdict = replace(judge(telemetry, run, idle_s), hang=hang)
    if run is not None and verdict.wants_layout:
        verdict = verdict.with_layout(better_layout(run))
    attribution = attribute(telemetry, read_prediction(view.folder), idle_s)
    measured = replace(measure(telemetry), steps=told.num_steps)
    return Account(measured=measured, verdict=verdict, attribution=attribution)
