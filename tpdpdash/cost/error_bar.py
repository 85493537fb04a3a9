"""How far an estimate may be off: from the residuals of the nearest kind of measured run.

The half-width of a bar is a quantile of |measured / estimate − 1| over the nearest kind of run that enough rows of
enough sources are of, sources weighing the same: one source's 700 rows say how it differs from itself. Where an
estimate goes beyond everything that was measured the bar is wider. How many rows of a source the bars of all *other*
sources hold stands in docs/accuracy.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.arrays import Floats
from tpdpdash.cost.residuals import Residual, Residuals, RunKind, What, packaged_residuals, run_kind
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import SCHEDULES
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import FRAMEWORKS, Training

COVERED_FRAC = 0.8
"""Share of runs, of a source that nobody has seen, that a bar is meant to hold."""
FULL_SOURCE_ROWS = 8
"""Rows that a source needs to say something of itself; one of fewer rows counts as a part of a source."""
MIN_SOURCES = 3.5
"""Fewer sources say too little of the next one. Tried from 1 to 4: from here on, bars hold three quarters or more of
the runs of a source left out, of step times and of peaks alike (docs/accuracy.md has the figures)."""
WIDER_BY_STRANGENESS = 1.25
"""For each thing that no measured run had (an unknown framework, another device family, another schedule). Assumed:
there is nothing to fit it on."""
WIDER_BY_DOUBLING = 1.1
"""For each doubling of devices, cp or ep beyond the largest measured. Assumed: jitter and messages that grow with the
ranks make 5-10 % a doubling where large runs were measured at all (Megatron-Bridge's and vTrain's weak scaling)."""
UNMEASURED_FRAMEWORKS = frozenset({"builtin"})
"""Of which no published run exists: no error is known but what a machine's calibration finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBar:
    """How far one figure may be off, and how that is known."""

    frac: float
    """Half-width, as a share of the estimate."""
    kind: RunKind
    """What the measured runs have in common with the estimate."""
    rows: int
    """Those runs."""
    sources: int
    """Who published them."""
    wider: float
    """By how much the bar is wider than those runs', for what none of them had; 1 = it is not."""
    is_of_this_machine: bool = False
    """Those runs are short ones with which this machine's calibration checked itself, nobody's publication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nearest:
    """The nearest kind of measured run, and how far its estimates are off."""

    kind: RunKind
    frac: float
    rows: int
    sources: int


def nearest_runs(residuals: Sequence[Residual], kind: RunKind) -> _Nearest | None:
    """The nearest kind that enough sources have runs of; None where no kind has so many. Sources weigh the same, but
    for those of few rows."""
    for wider in kind.wider():
        found = [residual for residual in residuals if residual.is_stated and wider.holds(residual.kind)]
        rows = Counter(residual.source for residual in found)
        sources = sum(source_weight(count) for count in rows.values())
        if sources >= MIN_SOURCES:
            misses = [(run.miss_frac, source_weight(rows[run.source]) / rows[run.source]) for run in found]
            frac = weighted_quantile(misses, quantile_level(sources))
            return _Nearest(kind=wider, frac=frac, rows=len(found), sources=len(rows))
    return None


def source_weight(rows: int) -> float:
    """How much a source counts: as one, or as the share of FULL_SOURCE_ROWS that it has."""
    return min(1.0, rows / FULL_SOURCE_ROWS)


def quantile_level(sources: float) -> float:
    """Level of the quantile of k sources that is meant to hold COVERED_FRAC of the next one's runs: q + q / 2k.

    Few sources understate how much sources differ. Conformal prediction would take q + q / k, which for 4 sources is
    the largest error of all; half of that addition is the least with which sources left out are held as often as meant
    (docs/accuracy.md).
    """
    return min(1.0, COVERED_FRAC + COVERED_FRAC / (2 * max(sources, 1.0)))


def weighted_quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    """The least value at or below which `share` of the weight lies, of (value, weight)."""
    values, weights = np.array(sorted(weighted)).T
    reached = np.cumsum(weights) / weights.sum()
    return float(values[min(int(np.searchsorted(reached, share)), len(values) - 1)])


@cache
def _nearest(residuals: Residuals, what: What, kind: RunKind) -> _Nearest | None:
    return nearest_runs(residuals.of(what), kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """The most that was measured."""

    world_size: int
    cp: int
    ep: int
    schedules: frozenset[str]
    architectures: frozenset[str | None]


@cache
def _reach(residuals: Residuals, what: What) -> _Reach:
    rows = residuals.of(what)
    return _Reach(
        world_size=max(row.world_size for row in rows),
        cp=max(row.cp for row in rows),
        ep=max(row.ep for row in rows),
        schedules=frozenset(row.schedule for row in rows),
        architectures=frozenset(row.kind.architecture for row in rows),
    )


def _wider(reach: _Reach, model: ModelSpec, cluster: ClusterSpec, training: Training, columns: LayoutColumns) -> Floats:
    """Factor (n,) by which bars are wider, for what goes beyond every measured run; or, of experts that tokens are not
    forced to visit evenly, beyond nearly all of them."""
    is_new = (
        training.framework not in FRAMEWORKS,
        cluster.device.architecture not in reach.architectures,
        model.is_moe and training.expert_load_cv > 0,
    )
    unknown = np.array([schedule not in reach.schedules for schedule in SCHEDULES])
    strange = sum(is_new) + unknown[columns.schedule.astype(np.intp)]
    doublings = sum(
        np.maximum(np.log2(each / most), 0.0)
        for each, most in ((columns.world_size, reach.world_size), (columns.cp, reach.cp), (columns.ep, reach.ep))
    )
    return np.asarray(WIDER_BY_STRANGENESS**strange * WIDER_BY_DOUBLING**doublings)


def own_miss_frac(what: What, cluster: ClusterSpec, training: Training) -> float | None:
    """Half-width from the runs with which a calibration checked itself; None where there are too few of them.

    The k-th least of n misses holds the next one with probability k / (n + 1), whatever their distribution (split
    conformal prediction, Vovk 2005): the least k that reaches COVERED_FRAC, of 8 the largest.
    """
    measured = cluster.measured
    if what != "time" or measured is None or training.framework not in UNMEASURED_FRAMEWORKS:
        return None
    misses = sorted(measured.miss_fracs)
    at = math.ceil(COVERED_FRAC * (len(misses) + 1))
    return misses[at - 1] if 0 < at <= len(misses) else None


def _beyond_checked(cluster: ClusterSpec, columns: LayoutColumns) -> Floats:
    """Factor (n,) by which a machine's own bars are wider: for each doubling of the ranks beyond the checked runs'."""
    most = 1 if cluster.measured is None else cluster.measured.checked_ranks
    return np.asarray(WIDER_BY_DOUBLING ** np.maximum(np.log2(columns.world_size / most), 0.0))


def error_fracs(
    what: What,
    model: ModelSpec,
    cluster: ClusterSpec,
    training: Training,
    columns: LayoutColumns,
    residuals: Residuals | None = None,
) -> Floats:
    """Half-widths of the error bars of n layouts (n,), as a share of the estimate; NaN where no error is known: of a
    framework of which nothing was published, and on a CPU, but for step times where a calibration checked itself."""
    if (own := own_miss_frac(what, cluster, training)) is not None:
        return own * _beyond_checked(cluster, columns)
    found = _known(what, model, cluster, training, residuals or packaged_residuals())
    if found is None:
        return np.full(len(columns), np.nan)
    nearest, reach = found
    return nearest.frac * _wider(reach, model, cluster, training, columns)


def error_bar(
    what: What,
    model: ModelSpec,
    cluster: ClusterSpec,
    training: Training,
    columns: LayoutColumns,
    residuals: Residuals | None = None,
) -> ErrorBar | None:
    """The error bar of the first of the layouts, and how it is known; None where no error is."""
    if cluster.measured is not None and (own := own_miss_frac(what, cluster, training)) is not None:
        wider = float(_beyond_checked(cluster, columns)[0])
        rows, kind = len(cluster.measured.miss_fracs), RunKind(framework=training.framework)
        return ErrorBar(frac=own * wider, kind=kind, rows=rows, sources=1, wider=wider, is_of_this_machine=True)
    found = _known(what, model, cluster, training, residuals or packaged_residuals())
    if found is None:
        return None
    nearest, reach = found
    wider = float(_wider(reach, model, cluster, training, columns)[0])
    return ErrorBar(
        frac=nearest.frac * wider, kind=nearest.kind, rows=nearest.rows, sources=nearest.sources, wider=wider
    )


def _known(
    what: What, model: ModelSpec, cluster: ClusterSpec, training: Training, residuals: Residuals
) -> tuple[_Nearest, _Reach] | None:
    kind = run_kind(model, cluster, training)
    if cluster.device.is_cpu or kind.framework in UNMEASURED_FRAMEWORKS:
        return None
    nearest = _nearest(residuals, what, kind)
    return None if nearest is None else (nearest, _reach(residuals, what))
