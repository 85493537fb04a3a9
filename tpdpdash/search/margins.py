"""By how much a layout loses against the best one, and where: time by part, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tpdpdash.cost.estimate import Estimates
from tpdpdash.cost.figures import TIME_PARTS, StepSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """One layout against the best of the search."""

    step_frac: float
    """How much longer its step takes, as a share of the best's."""
    time: StepSeconds[float]
    """What each part takes longer; the differences add up to that of the steps."""
    memory_bytes: float
    """How much more its fullest stage needs."""

    @property
    def where(self) -> str:
        """The part in which it loses most; "" for the best itself and what costs the same."""
        part: str = max(TIME_PARTS, key=lambda name: getattr(self.time, name))
        return part if getattr(self.time, part) > 0 else ""

    @property
    def speed_frac(self) -> float:
        """How much faster it is, as a share of the best's speed: below 0 where it is slower."""
        return 1 / (1 + self.step_frac) - 1

    def to_json(self) -> dict[str, Any]:
        """One entry of `margins` in `tpdpdash plan --json`."""
        return {
            "step_frac": self.step_frac,
            "parts": asdict(self.time),
            "memory_bytes": self.memory_bytes,
            "where": self.where,
        }


def margins(ranked: Estimates, rows: Sequence[int]) -> list[Margin]:
    """What each of some rows loses against the first of them, which loses nothing."""
    chosen = np.array(rows, np.intp)
    part_s = {name: getattr(ranked.time, name)[chosen] for name in TIME_PARTS}
    step_s, held_bytes = ranked.step_s[chosen], ranked.peak_bytes[chosen]
    return [
        Margin(
            step_frac=float((step_s[i] - step_s[0]) / step_s[0]),
            time=StepSeconds(**{name: float(seconds[i] - seconds[0]) for name, seconds in part_s.items()}),
            memory_bytes=float(held_bytes[i] - held_bytes[0]),
        )
        for i in range(len(chosen))
    ]
