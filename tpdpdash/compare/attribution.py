"""Prediction held against measurement, part by part: where a step and the memory are not what was predicted.

Which part of an estimate answers to which measured phase stands in docs/reference.md. Measured is the stage that is
busiest, as predicted is the critical one: the mean over its ranks and over the last steps. What a rank waits for others
beyond the schedule's own idle time has no part in an estimate, nor has what no region covers: predicted as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tpdpdash.compare.prediction import Prediction
from tpdpdash.compare.run_plan import steady_steps
from tpdpdash.telemetry.analysis import RankPhases, rank_phases
from tpdpdash.telemetry.reader import Telemetry
from tpdpdash.telemetry.record import PHASES
from tpdpdash.telemetry.snapshot import Floats

PREDICTED: Mapping[str, tuple[str, ...]] = {
    "compute": ("compute_s", "recompute_s"),
    "tp": ("tp_s",),
    "cp": ("cp_s",),
    "ep": ("ep_s",),
    "pp": ("pp_s",),
    "bubble": ("bubble_s",),
    "dp": ("dp_s",),
    "optimizer": ("optimizer_s",),
}
"""Parts of an estimate by the part that they are compared as."""
MEASURED: Mapping[str, tuple[str, ...]] = {
    "compute": ("data", "forward", "backward", "loss"),
    **{name: (name,) for name in ("tp", "cp", "ep", "pp", "dp", "optimizer")},
}
"""Measured phases by part; of collectives the transfer. The bubble is the part of pp that the schedule plans."""
PARTS = (*PREDICTED, "waiting", "other")
"""In the order in which they are shown. waiting: for other ranks; other: in no region, or in one without a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartGap:
    """One part of the step."""

    part: str
    """One of PARTS."""
    predicted_s: float | None
    """Predicted seconds; None where nothing was predicted."""
    measured_s: float
    """Measured seconds."""

    @property
    def gap_s(self) -> float | None:
        """Measured less predicted."""
        return None if self.predicted_s is None else self.measured_s - self.predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """The memory of one stage."""

    stage: int
    """Stage."""
    predicted_bytes: float | None
    """Predicted for each of its ranks."""
    measured_bytes: float | None
    """The most that any of its ranks held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """A run against its prediction."""

    stage: int
    """The stage whose ranks were measured."""
    num_steps: int
    """Steps whose mean is shown."""
    predicted_step_s: float | None
    """Predicted seconds of a step."""
    error_frac: float | None
    """Half-width of its error bar, as a share."""
    measured_step_s: float
    """Measured seconds: what the parts add up to."""
    parts: tuple[PartGap, ...]
    """Parts that were predicted or measured."""
    memory: tuple[StageMemory, ...]
    """Every stage."""

    @property
    def gap_s(self) -> float | None:
        """Measured step less predicted step."""
        return None if self.predicted_step_s is None else self.measured_step_s - self.predicted_step_s

    @property
    def is_within_error(self) -> bool | None:
        """Whether the step lies inside the error bar; None where no error is known."""
        if self.gap_s is None or self.predicted_step_s is None or self.error_frac is None:
            return None
        return abs(self.gap_s) <= self.error_frac * self.predicted_step_s

    @property
    def where(self) -> PartGap | None:
        """The part that is furthest off in the direction of the whole gap; None without a prediction."""
        gap = self.gap_s
        known = [part for part in self.parts if part.gap_s is not None]
        if gap is None or not known:
            return None
        sign = 1 if gap >= 0 else -1
        return max(known, key=lambda part: sign * (part.gap_s or 0.0))

    def to_json(self) -> dict[str, Any]:
        """What `show --json` says of it."""
        where = self.where
        return {
            "stage": self.stage,
            "num_steps": self.num_steps,
            "predicted_step_s": self.predicted_step_s,
            "error_frac": self.error_frac,
            "measured_step_s": self.measured_step_s,
            "gap_s": self.gap_s,
            "within_error": self.is_within_error,
            "parts": {
                part.part: {"predicted_s": part.predicted_s, "measured_s": part.measured_s, "gap_s": part.gap_s}
                for part in self.parts
            },
            "where": None if where is None else where.part,
            "memory": [asdict(each) for each in self.memory],
        }


def attribute(telemetry: Telemetry, prediction: Prediction, idle_s: Floats | None) -> Attribution | None:
    """Hold a run against its prediction; None before the second step has told its phases. `idle_s`: what
    run_plan.planned_idle_s says of the same telemetry."""
    phases = rank_phases(telemetry, steady_steps(telemetry), idle_s)
    stages = telemetry.ranks.stages
    busy = {stage: _busy_s(phases, ranks) for stage, ranks in stages.items()}
    known = {stage: seconds for stage, seconds in busy.items() if np.isfinite(seconds)}
    if not known or len(telemetry.steps) < 2:
        return None
    stage = max(known, key=lambda s: known[s])
    measured = _measured(phases, stages[stage])
    predicted = {
        part: sum(prediction.part_s[name] for name in names) for part, names in PREDICTED.items() if prediction.part_s
    }
    if predicted:
        predicted |= {"waiting": 0.0, "other": 0.0}
    parts = (
        PartGap(part=part, predicted_s=predicted.get(part), measured_s=measured.get(part, 0.0))
        for part in PARTS
        if predicted.get(part) or measured.get(part)
    )
    return Attribution(
        stage=stage,
        num_steps=phases.num_steps,
        predicted_step_s=prediction.step_s,
        error_frac=prediction.error_frac,
        measured_step_s=float(np.nanmean(phases.step_s[stages[stage]])),
        parts=tuple(parts),
        memory=_memory(telemetry, prediction),
    )


def _busy_s(phases: RankPhases, ranks: list[int]) -> float:
    """Seconds a step that a stage works or sends within itself: not in its pipeline, and not waiting."""
    pp = phases.phase_s[:, PHASES.index("pp")]
    busy = (phases.working_s + phases.transferring_s - pp)[ranks]
    return float(np.nanmean(busy)) if np.isfinite(busy).any() else float("nan")


def _measured(phases: RankPhases, ranks: list[int]) -> dict[str, float]:
    """Mean seconds of each part over these ranks; they add up to their mean step."""

    def mean(values: np.ndarray) -> float:
        return float(np.nanmean(values[ranks]))

    found = {
        part: sum(mean(phases.phase_s[:, PHASES.index(name)]) for name in names) for part, names in MEASURED.items()
    }
    other = mean(phases.phase_s[:, PHASES.index("other")]) + mean(phases.unattributed_s)
    return {**found, "bubble": mean(phases.bubble_s), "waiting": mean(phases.total_waiting_s), "other": other}


def _memory(telemetry: Telemetry, prediction: Prediction) -> tuple[StageMemory, ...]:
    found = []
    for stage, ranks in sorted(telemetry.ranks.stages.items()):
        peak = telemetry.peak_memory_bytes[ranks]
        measured = float(np.nanmax(peak)) if np.isfinite(peak).any() else None
        predicted = prediction.stage_bytes[stage] if 0 <= stage < len(prediction.stage_bytes) else None
        found.append(StageMemory(stage=stage, predicted_bytes=predicted, measured_bytes=measured))
    return tuple(found)
