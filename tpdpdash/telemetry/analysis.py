"""What the records mean: where each rank's time went, who waited for whom, who is slow. Pure functions.

Shapes: R ranks, S steps, P phases (record.PHASES). Times in seconds; NaN where a rank has told nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpdpdash.telemetry.record import COLLECTIVE_PHASES, PHASES
from tpdpdash.telemetry.snapshot import Floats, Telemetry

OWN_WORK = ("data", "forward", "backward", "loss", "optimizer")
"""Phases in which a rank waits for nobody."""
_DENSE_GRID = ("tp", "cp", "dp", "pp")
_EXPERT_GRID = ("etp", "ep", "edp", "pp")
_COLLECTIVE = tuple(index for index, name in enumerate(PHASES) if name in COLLECTIVE_PHASES)
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
class RankPhases:
    """Mean seconds of each rank over a window of steps. The parts add up to step_s."""

    phase_s: Floats
    """(R, P) occupied: own work, and the transferring part of collectives."""
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


def step_band(telemetry: Telemetry) -> StepBand:
    """The least, middle and greatest step time over the ranks that reported, step by step."""
    spent = telemetry.step_s
    low, middle, high = (_reduce(reduce, spent) for reduce in (np.nanmin, np.nanmedian, np.nanmax))
    return StepBand(steps=telemetry.steps, min_s=low, median_s=middle, max_s=high)


def unattributed_s(telemetry: Telemetry) -> Floats:
    """(R, S) step_s − Σ phase_s: what the probe's regions do not cover."""
    return np.asarray(telemetry.step_s - telemetry.phase_s.sum(axis=2))


def groups_of(telemetry: Telemetry, kind: str) -> list[list[int]]:
    """Ranks that differ in `kind` only: the groups of that kind, learnt from the hello records.

    Experts have a grid of their own (etp × ep × edp × pp): a place in it says nothing about a dense group.
    """
    grid = _EXPERT_GRID if kind in ("ep", "etp", "edp") else _DENSE_GRID
    members: dict[tuple[int | None, ...], list[int]] = {}
    for rank, info in telemetry.ranks.items():
        rest = tuple(info.coords.get(name) for name in grid if name != kind)
        members.setdefault(rest, []).append(rank)
    return list(members.values())


def split_waiting(telemetry: Telemetry) -> tuple[Floats, Floats]:
    """(R, S, P) transferring and waiting: seconds in each collective phase, parted by comparing a group's ranks.

    The quickest rank of a group came last and waited for nobody: its time is the transfer, and what another rank
    spends beyond it is waiting. For pp this counts the idle time that the schedule plans as waiting too.
    Needs every rank of the group in a step; where one is missing nothing is called waiting.
    """
    transferring = telemetry.phase_s.copy()
    waiting = np.zeros_like(transferring)
    for phase in _COLLECTIVE:
        for group in groups_of(telemetry, PHASES[phase]):
            if len(group) > 1:
                spent = telemetry.phase_s[group, :, phase]
                quickest = spent.min(axis=0)  # NaN where a rank is missing
                waited = np.where(np.isnan(quickest), 0.0, spent - quickest)
                waiting[group, :, phase] = waited
                transferring[group, :, phase] = spent - waited
    waiting[np.isnan(transferring)] = np.nan
    return transferring, waiting


def rank_phases(telemetry: Telemetry, last_steps: int | None = None) -> RankPhases:
    """Means over the last steps (all that are kept, if None), transfer and waiting apart."""
    window = slice(-last_steps if last_steps else None, None)
    transferring, waiting = split_waiting(telemetry)
    return RankPhases(
        phase_s=_mean_over_steps(transferring[:, window]),
        waiting_s=_mean_over_steps(waiting[:, window]),
        unattributed_s=_mean_over_steps(unattributed_s(telemetry)[:, window]),
        step_s=_mean_over_steps(telemetry.step_s[:, window]),
        num_steps=len(telemetry.steps[window]),
    )


def unattributed_share(telemetry: Telemetry) -> Floats:
    """(R,) share of all kept step time that no region covers."""
    return _share(unattributed_s(telemetry), telemetry.step_s)


def other_share(telemetry: Telemetry) -> Floats:
    """(R,) share of all kept step time in regions without a name here."""
    return _share(telemetry.phase_s[:, :, PHASES.index("other")], telemetry.step_s)


def probe_share(telemetry: Telemetry) -> Floats:
    """(R,) bound on the probe's share of the step: regions · cost of one region / step time."""
    cost = np.full(telemetry.world_size, np.nan)
    for rank, info in telemetry.ranks.items():
        cost[rank] = info.region_cost_s
    return np.asarray(cost * _share(telemetry.regions, telemetry.step_s))


def own_work_s(telemetry: Telemetry) -> Floats:
    """(R, S) seconds of work in which a rank waits for nobody."""
    return np.asarray(telemetry.phase_s[:, :, list(_OWN)].sum(axis=2))


def own_work_ratio(telemetry: Telemetry) -> Floats:
    """(R, S) own work relative to the median of the rank's stage in that step; 1 = as its stage.

    Own work and not step time: waiting smears a slow rank over its peers, who then look equally slow.
    """
    work = own_work_s(telemetry)
    ratio = np.full_like(work, np.nan)
    for ranks in _stages(telemetry).values():
        middle = _reduce(np.nanmedian, work[ranks])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio[ranks] = np.where(middle > 0, work[ranks] / middle, np.nan)
    return ratio


def tokens_per_s(telemetry: Telemetry) -> Floats:
    """(S,) tokens of all replicas over the slowest rank's step time.

    One replica's tokens stand in every rank of it: each counts by its share of its replica's ranks.
    """
    seen = ~np.isnan(telemetry.tokens)
    replica_ranks = np.ones(telemetry.world_size)
    for ranks in _replicas(telemetry).values():
        replica_ranks[ranks] = len(ranks)
    tokens = np.where(seen, telemetry.tokens, 0.0) / replica_ranks[:, None]
    is_whole = seen.all(axis=0)
    slowest = _reduce(np.nanmax, telemetry.step_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(is_whole & (slowest > 0), tokens.sum(axis=0) / slowest, np.nan))


def loss_by_step(telemetry: Telemetry) -> Floats:
    """(S,) mean of the losses that ranks of the last stage reported."""
    return _reduce(np.nanmean, telemetry.loss)


def _stages(telemetry: Telemetry) -> Mapping[int, list[int]]:
    stages: dict[int, list[int]] = {}
    for rank, info in telemetry.ranks.items():
        stages.setdefault(info.coords.get("pp", 0), []).append(rank)
    return stages


def _replicas(telemetry: Telemetry) -> Mapping[int, list[int]]:
    replicas: dict[int, list[int]] = {}
    for rank, info in telemetry.ranks.items():
        replicas.setdefault(info.coords.get("dp", 0), []).append(rank)
    return replicas


def _share(part: Floats, whole: Floats) -> Floats:
    """Σ part / Σ whole over the steps that have both; NaN where there is none."""
    known = ~np.isnan(part) & ~np.isnan(whole)
    total = np.where(known, whole, 0.0).sum(axis=1)
    spent = np.where(known, part, 0.0).sum(axis=1)
    return np.asarray(np.divide(spent, total, out=np.full(len(total), np.nan), where=total > 0))


def _mean_over_steps(values: Floats) -> Floats:
    """Mean over axis 1; NaN for a rank without a step."""
    return _reduce(np.nanmean, np.moveaxis(values, 1, 0))


def _reduce(reduce: Callable[..., Any], values: Floats) -> Floats:
    """Reduce axis 0 over what was reported; NaN where nothing was."""
    if values.size == 0:
        return np.full(values.shape[1:], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns of what NaN already says
        return np.asarray(reduce(values, axis=0))
