"""Memory that grows with the steps: a rank that keeps what it should free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpdpdash.telemetry.snapshot import Floats, Telemetry

WINDOWS = (16, 64, 200)
"""Last steps that are looked at: few, so that a quick leak is named soon, and more, which tell a slow one."""
MIN_STEPS = 12
"""Fewer cannot be told from a start that still allocates."""
WARM_UP = 2
"""Steps of the run that are not looked at."""
PARTS = 4
"""The window is compared in so many parts: each must hold more than the one before it."""
MIN_FRAC = 0.01
"""Least growth from part to part, as a share of what is held …"""
MIN_STEADY = 0.5
"""… and the last growth is at least so much of the mean one: what flattens is no leak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A rank whose memory grows."""

    rank: int
    """Rank."""
    bytes_per_step: float
    """Growth a step."""
    held_bytes: float
    """What it holds now."""
    others_bytes_per_step: float
    """Median growth of the other ranks; NaN without others."""


def growing_ranks(telemetry: Telemetry) -> list[Growth]:
    """Ranks whose memory grew through all parts of a window, the quickest first."""
    held = telemetry.memory_bytes[:, WARM_UP if telemetry.dropped_steps == 0 else 0 :]
    found: dict[int, Growth] = {}
    for window in WINDOWS:
        middles = _middles(held[:, -window:])
        steps = min(window, held.shape[1]) * (PARTS - 1) / PARTS  # from the first part's middle to the last one's
        rates = (middles[:, -1] - middles[:, 0]) / max(steps, 1.0)
        for rank in map(int, np.flatnonzero(_grows(middles))):
            if rank not in found:
                found[rank] = Growth(
                    rank=rank,
                    bytes_per_step=float(rates[rank]),
                    held_bytes=float(held[rank, -1]),
                    others_bytes_per_step=_median(np.delete(rates, rank)),
                )
    return sorted(found.values(), key=lambda each: -each.bytes_per_step)


def _middles(held: Floats) -> Floats:
    """(R, PARTS) median of each part of the window; NaN where a rank did not tell all of it, or it is too short."""
    if held.shape[1] < MIN_STEPS:
        return np.full((len(held), PARTS), np.nan)
    return np.stack([np.median(part, axis=1) for part in np.array_split(held, PARTS, axis=1)], axis=1)


def _grows(middles: Floats) -> NDArray[np.bool_]:
    """(R,) whether each part holds more than the one before, and growth does not flatten; NaN: no."""
    growths = np.diff(middles, axis=1)
    is_steady = growths[:, -1] >= MIN_STEADY * growths.mean(axis=1)
    return np.asarray(is_steady & (growths >= MIN_FRAC * middles[:, :1]).all(axis=1))


def _median(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
