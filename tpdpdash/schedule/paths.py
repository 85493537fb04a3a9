"""The longest way through a schedule, over many layouts at once: what the closed forms of split backwards share.

A microbatch runs through the model leg by leg: forwards from rank to rank, then backwards; a V has a leg for each chunk
and direction. The first microbatch says when a rank can begin its passes of a leg at the earliest, the last one what
must still follow. Between both a rank works through its own list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

SAME = 1e-12
"""Sums of the same durations in another order differ by less than this."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leg:
    """All ranks' passes through one chunk in one direction. Arrays are (n, ranks), seconds; 0 where there is no
    rank."""

    rises: bool
    """From the first rank to the last; else from the last to the first."""
    before_s: Floats
    """A rank's own work before its first such pass."""
    first_s: Floats
    """Its first such pass, with the pass that it is paired with."""
    last_s: Floats
    """Its last such pass, likewise."""
    through_s: Floats
    """Its own work up to the end of the last such pass."""


def along(seconds: Floats, *, rises: bool) -> Floats:
    """Time from the begin of a leg to the end of each rank's pass, (n, ranks)."""
    return np.cumsum(seconds, axis=1) if rises else np.cumsum(seconds[:, ::-1], axis=1)[:, ::-1]


def longest_path(legs: list[Leg], total_s: Floats, exists: Flags, *, skewed: Flags) -> Floats:
    """Seconds from the first pass to the last of a step, (n,): the longest of the paths "the first microbatch up to a
    rank's leg, that rank's own list up to a leg of the last microbatch, that microbatch on to another rank, that rank's
    list to its end".

    legs: in the order in which a microbatch runs them; total_s: a rank's work in the step. skewed (n,): rows that do
    not meet at the step's end: the longest time of a rank from its first pass to its last, which is the time from step
    to step. Never above the event simulation; how far below says pipeline_seconds.
    """
    begun_s = along(legs[0].first_s, rises=True) - legs[0].first_s
    own_begin = np.where(skewed[:, None], begun_s, 0.0)
    gains = _gains(legs)
    beyond = _beyond(legs, total_s - own_begin, exists)
    longest = np.full(exists.shape, -np.inf)
    for leg, after in zip(legs, beyond, strict=True):
        waited = np.full(exists.shape, -np.inf)
        for entered, gain in zip(legs, gains, strict=True):
            is_earlier = entered.before_s < leg.through_s * (1 - SAME)
            waited = np.where(is_earlier, np.maximum(waited, gain), waited)
        longest = np.maximum(longest, waited + leg.through_s + after)
    return np.asarray(np.where(exists, longest, -np.inf).max(axis=1))


def _gains(legs: list[Leg]) -> list[Floats]:
    """For each leg how much later than its own work alone a rank can begin it: arrival of the first microbatch less the
    work before, (n, ranks)."""
    gains, run_s = [], np.zeros((len(legs[0].first_s), 1))
    for leg in legs:
        ends = run_s + along(leg.first_s, rises=leg.rises)
        gains.append(ends - leg.first_s - leg.before_s)
        run_s = ends[:, -1:] if leg.rises else ends[:, :1]
    return gains


def _beyond(legs: list[Leg], total_s: Floats, exists: Flags) -> list[Floats]:
    """For each leg the longest time from the end of a rank's last such pass to the end of the step: the last microbatch
    goes on to this or another rank, which then has the rest of its list to do, (n, ranks)."""
    run_s, ends = np.zeros((len(total_s), 1)), []
    for leg in legs:
        ends.append(run_s + along(leg.last_s, rises=leg.rises))
        run_s = ends[-1][:, -1:] if leg.rises else ends[-1][:, :1]
    beyond, later = [], np.full((len(total_s), 1), -np.inf)
    for leg, end_s in zip(reversed(legs), reversed(ends), strict=True):
        done = np.where(exists, end_s + total_s - leg.through_s, -np.inf)
        best = np.maximum.accumulate(done[:, ::-1] if leg.rises else done, axis=1)
        best = np.maximum(best[:, ::-1] if leg.rises else best, later)
        later = best[:, :1] if leg.rises else best[:, -1:]
        beyond.append(best - end_s)
    return beyond[::-1]
