"""What the records mean: where each rank's time went, who waited for whom, who is slow. Pure functions.

Shapes: R ranks, S steps, P phases (record.PHASES). Times in seconds; NaN where a rank has told nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpdpdash.telemetry.record import COLLECTIVE_PHASES, PHASES
from tpdpdash.telemetry.snapshot import Floats, Telemetry

OWN_WORK = ("data", "forward", "backward", "loss", "optimizer")
"""Phases in which a rank waits for nobody."""
_COLLECTIVE = tuple(index for index, name in enumerate(PHASES) if name in COLLECTIVE_PHASES)
_PP = PHASES.index("pp")
_OWN = tuple(index for index, name in enumerate(PHASES) if name in OWN_WORK)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBand:
    """Step time over the ranks."""

    steps: NDArray[np.int64]
    """(S,)"""
    min_s: Floats
    """(S,) the quickest rank."""
    median_s: Floats
    """(S,)"""
    max_s: Floats
    """(S,) the slowest rank: what the step costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Seconds of each phase, parted. The three add up to phase_s."""

    occupied_s: Floats
    """(R, S, P) own work, and collectives with all ranks of the group present."""
    bubble_s: Floats
    """(R, S) in pp: idle time that the schedule plans."""
    waiting_s: Floats
    """(R, S, P) waiting for other ranks, by collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPhases:
    """Mean seconds of each rank over a window of steps. The parts add up to step_s."""

    phase_s: Floats
    """(R, P) occupied: own work, and the transferring part of collectives."""
    bubble_s: Floats
    """(R,) in pp: idle time that the schedule plans; 0 where no plan is known."""
    waiting_s: Floats
    """(R, P) waiting for other ranks, by the collective in which it waited."""
    unattributed_s: Floats
    """(R,) step time in no region."""
    step_s: Floats
    """(R,)"""
    num_steps: int
    """Steps of the window."""

    @property
    def working_s(self) -> Floats:
        """(R,) own work and regions without a name here."""
        kept = [i for i in range(len(PHASES)) if i not in _COLLECTIVE]
        return np.asarray(self.phase_s[:, kept].sum(axis=1))

    @property
    def transferring_s(self) -> Floats:
        """(R,) moving data with all ranks of the group present."""
        return np.asarray(self.phase_s[:, list(_COLLECTIVE)].sum(axis=1))

    @property
    def total_waiting_s(self) -> Floats:
        """(R,) waiting, in all collectives."""
        return np.asarray(self.waiting_s.sum(axis=1))

    def share(self, seconds: Floats) -> Floats:
        """(R,) seconds as a share of the step; NaN where the step is unknown, or is said to have taken no time."""
        unknown = np.full(len(self.step_s), np.nan)
        return np.asarray(np.divide(seconds, self.step_s, out=unknown, where=self.step_s > 0))


def step_band(telemetry: Telemetry) -> StepBand:
    """The least, middle and greatest step time over the ranks that reported, step by step."""
    spent = telemetry.step_s
    low, high = _reduce(np.nanmin, spent), _reduce(np.nanmax, spent)
    return StepBand(steps=telemetry.steps, min_s=low, median_s=_middle(spent), max_s=high)


def unattributed_s(telemetry: Telemetry) -> Floats:
    """(R, S) step_s − Σ phase_s: what the probe's regions do not cover."""
    return np.asarray(telemetry.step_s - telemetry.phase_s.sum(axis=2))


def split_waiting(telemetry: Telemetry, planned_idle_s: Floats | None = None) -> Split:
    """Seconds in each collective phase as transfer, planned idle time and waiting, by comparing a group's ranks.

    The quickest rank of a group came last and waited for nobody: its time is the transfer, and what another rank
    spends beyond it is waiting. `planned_idle_s` (R,): of pp, so much of a step is idle time that the schedule plans at
    the measured stage times; without it that counts as waiting. Needs every rank of the group in a step; where one is
    missing nothing is called waiting.
    """
    occupied = telemetry.phase_s.copy()
    waiting = np.zeros_like(occupied)
    idle = np.zeros(telemetry.world_size) if planned_idle_s is None else planned_idle_s
    bubble = np.minimum(occupied[:, :, _PP], idle[:, None])
    occupied[:, :, _PP] -= bubble
    for phase in _COLLECTIVE:
        waited = _waited_s(telemetry, PHASES[phase], occupied[:, :, phase])
        if waited is not None:
            waiting[:, :, phase] = waited
            occupied[:, :, phase] -= waited
    waiting[np.isnan(occupied)] = np.nan
    return Split(occupied_s=occupied, bubble_s=bubble, waiting_s=waiting)


def _waited_s(telemetry: Telemetry, kind: str, spent: Floats) -> Floats | None:
    """(R, S) of the seconds `spent` in a kind of collective, those of waiting; None where no group has two ranks."""
    waited = None
    for groups in telemetry.ranks.group_arrays(kind):
        of_groups = spent[groups]  # (G, n, S)
        quickest = of_groups.min(axis=1, keepdims=True)  # NaN where a rank is missing
        waited = np.zeros_like(spent) if waited is None else waited
        waited[groups] = np.where(np.isnan(quickest), 0.0, of_groups - quickest)
    return waited


def rank_phases(telemetry: Telemetry, window: int | None = None, planned_idle_s: Floats | None = None) -> RankPhases:
    """Means over the last steps (all that are kept, if None); transfer, planned idle time and waiting apart."""
    seen = telemetry.last(window)
    # As split_waiting parts them, but for means no (R, S, P) array is made: a thousand ranks are looked at each second.
    idle = np.zeros(seen.world_size) if planned_idle_s is None else planned_idle_s
    bubble = np.minimum(seen.phase_s[:, :, _PP], idle[:, None])
    by_phase = np.moveaxis(seen.phase_s, 2, 0)
    occupied, bubble_s = np.stack([_mean_over_steps(spent) for spent in by_phase], axis=1), _mean_over_steps(bubble)
    occupied[:, _PP] -= bubble_s
    waiting = np.where(np.isnan(occupied), np.nan, 0.0)
    for phase in _COLLECTIVE:
        spent = seen.phase_s[:, :, phase]
        waited = _waited_s(seen, PHASES[phase], spent - bubble if phase == _PP else spent)
        if waited is not None:
            waited[np.isnan(spent)] = np.nan
            waiting[:, phase] = _mean_over_steps(waited)
            occupied[:, phase] -= waiting[:, phase]
    return RankPhases(
        phase_s=occupied,
        bubble_s=bubble_s,
        waiting_s=waiting,
        unattributed_s=_mean_over_steps(unattributed_s(seen)),
        step_s=_mean_over_steps(seen.step_s),
        num_steps=len(seen.steps),
    )


def own_work_s(telemetry: Telemetry) -> Floats:
    """(R, S) seconds of work in which a rank waits for nobody."""
    first, *others = (telemetry.phase_s[:, :, phase] for phase in _OWN)
    return np.asarray(sum(others, first))


def own_work_ratio(telemetry: Telemetry) -> Floats:
    """(R, S) own work relative to the median of the rank's stage in that step; 1 = as its stage.

    Own work and not step time: waiting smears a slow rank over its peers, who then look equally slow.
    """
    work = own_work_s(telemetry)
    ratio = np.full_like(work, np.nan)
    for ranks in telemetry.ranks.stages.values():
        middle = _middle(work[ranks])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio[ranks] = np.where(middle > 0, work[ranks] / middle, np.nan)
    return ratio


def tokens_per_s(telemetry: Telemetry) -> Floats:
    """(S,) tokens of all replicas over the slowest rank's step time.

    One replica's tokens stand in every rank of it: each counts by its share of its replica's ranks.
    """
    seen = ~np.isnan(telemetry.tokens)
    replica_ranks = np.ones(telemetry.world_size)
    for ranks in telemetry.ranks.replicas.values():
        replica_ranks[ranks] = len(ranks)
    tokens = np.where(seen, telemetry.tokens, 0.0) / replica_ranks[:, None]
    is_whole = seen.all(axis=0)
    slowest = _reduce(np.nanmax, telemetry.step_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(is_whole & (slowest > 0), tokens.sum(axis=0) / slowest, np.nan))


def usual(values: Floats, num_steps: int) -> float | None:
    """Median of the last known values of (S,); None before there is one."""
    tail = values[-num_steps:]
    return float(np.nanmedian(tail)) if np.isfinite(tail).any() else None


def loss_by_step(telemetry: Telemetry) -> Floats:
    """(S,) mean of the losses that ranks of the last stage reported."""
    return _reduce(np.nanmean, telemetry.loss)


def _mean_over_steps(values: Floats) -> Floats:
    """(R,) mean over the steps that were reported; NaN for a rank without one. (np.nanmean: five times as long.)"""
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    mean = values.mean(axis=1)
    torn = np.isnan(mean)
    if torn.any():
        is_known = ~np.isnan(values[torn])
        count, total = is_known.sum(axis=1), np.where(is_known, values[torn], 0.0).sum(axis=1)
        mean[torn] = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return np.asarray(mean)


def _middle(values: Floats) -> Floats:
    """(S,) median over axis 0 of what was reported; NaN where nothing was. Most steps are whole, and np.median takes
    half the time of np.nanmedian."""
    middle = np.median(values, axis=0) if values.size else np.full(values.shape[1:], np.nan)
    torn = np.isnan(middle)
    if torn.any():
        middle[torn] = _reduce(np.nanmedian, values[:, torn])
    return np.asarray(middle)


def _reduce(reduce: Callable[..., Any], values: Floats) -> Floats:
    """Reduce axis 0 over what was reported; NaN where nothing was."""
    if values.size == 0:
        return np.full(values.shape[1:], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns of what NaN already says
        return np.asarray(reduce(values, axis=0))
