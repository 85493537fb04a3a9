"""The search: every layout of a job priced, ranked, refused with a reason; and what would fit when nothing does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tpdpdash.cost.estimate import Estimates, estimate, estimate_layout, peak_bytes
from tpdpdash.cost.result import Estimate
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.rules import refusal_codes
from tpdpdash.search.ranking import (
    best_of_each,
    pareto_front,
    ranked_order,
)
from tpdpdash.search.refusals import Miss, Refusal, RefusalCounter
from tpdpdash.search.space import layout_grids, layout_space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Progress = Callable[[int, int], None]
KEPT_ROWS = 200
"""The best rows that are kept, besides the best of each combination of degrees and the front."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What the search found."""

    job: Job
    """What was asked."""
    considered: int
    """Distinct layouts evaluated as a row, refused ones included."""
    feasible: int
    """Layouts that are legal and fit."""
    seconds: float
    """Time of the search."""
    ranked: Estimates | None
    """Feasible layouts, best first: the best KEPT_ROWS, the best variant of each combination of degrees, and the front;
    None when nothing fits."""
    variants: NDArray[np.intp]
    """Rows of `ranked` that are the best of their tp, cp, ep, pp and dp, best first."""
    front: NDArray[np.intp]
    """Rows of `ranked` that no other layout beats in both memory and speed, fastest first."""
    refusals: dict[str, Refusal]
    """Layouts that cannot run, by reason, the commonest first; OUT_OF_MEMORY is a reason like any other."""
    closest: Estimate | None
    """Of the legal layouts that do not fit, the one that needs the least memory; None when all of them fit."""

    @property
    def best(self) -> Estimate | None:
        """The best layout; None when nothing fits."""
        return None if self.ranked is None else self.ranked.row(0)

    @property
    def refused(self) -> dict[str, int]:
        """Number of layouts refused by each reason."""
        return {reason: refusal.count for reason, refusal in self.refusals.items()}

    @property
    def closest_bytes_short(self) -> float | None:
        """Bytes by which the closest layout misses; None when something fits or nothing is legal."""
        if self.feasible or self.closest is None:
            return None
        return -self.closest.spare_bytes

    def top(self, count: int) -> list[Estimate]:
        """The best `count` layouts with all their stages."""
        if self.ranked is None:
            return []
        return [self.ranked.row(i) for i in range(min(count, len(self.ranked)))]

    def to_json(self, top: int = 20) -> dict[str, Any]:
        """`tpdpdash plan --json`."""
        search = {"considered": self.considered, "feasible": self.feasible, "seconds": self.seconds}
        if self.closest_bytes_short is not None:
            search["closest_bytes_short"] = self.closest_bytes_short
        return {
            "search": search,
            "layouts": [layout.to_json() for layout in self.top(top)],
            "refused": self.refused,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kept:
    """Feasible layouts that can still be in the answer, best first."""

    columns: LayoutColumns
    step_s: Floats
    peak_bytes: Floats

    def take(self, index: NDArray[np.intp]) -> _Kept:
        return _Kept(columns=self.columns.take(index), step_s=self.step_s[index], peak_bytes=self.peak_bytes[index])

    def worth_keeping(self, keep: int) -> _Kept:
        """The best `keep` rows, the best of each combination of degrees, and the front."""
        order = ranked_order(self.columns, self.step_s, self.peak_bytes)
        wanted = np.zeros(len(order), np.bool_)
        wanted[:keep] = True
        wanted[best_of_each(self.columns, order)] = True
        wanted[pareto_front(self.peak_bytes, order)] = True
        return self.take(order[wanted])

    def joined(self, other: _Kept) -> _Kept:
        return _Kept(
            columns=LayoutColumns.joined([self.columns, other.columns]),
            step_s=np.concatenate([self.step_s, other.step_s]),
            peak_bytes=np.concatenate([self.peak_bytes, other.peak_bytes]),
        )


@dataclass(slots=True)
class _Search:
    """What is kept while chunks go by; bounded, however large the space."""

    job: Job
    keep: int
    considered: int = 0
    feasible: int = 0
    kept: _Kept | None = None
    closest: Miss | None = None
    refusals: RefusalCounter = field(default_factory=RefusalCounter)

    def add(self, columns: LayoutColumns) -> None:
        """Price one chunk: rules first, memory of what is legal, time of what fits."""
        model, cluster, training = self.job.model, self.job.cluster, self.job.training
        codes = refusal_codes(model, training, cluster, columns)
        self.considered += len(columns)
        self.refusals.add_rules(self.job, columns, codes)
        legal = columns.take(np.flatnonzero(codes == 0))
        if not len(legal):
            return
        peak = peak_bytes(model, cluster, training, legal)
        fits = peak <= cluster.device.usable_bytes
        if not fits.all():
            self._add_misses(legal, peak, int((~fits).sum()))
        if fits.any():
            self._add_feasible(legal.take(np.flatnonzero(fits)))

    def _add_misses(self, legal: LayoutColumns, peak: Floats, count: int) -> None:
        row = int(np.argmin(np.where(peak > self.job.cluster.device.usable_bytes, peak, np.inf)))
        miss = Miss(layout=legal.layout(row), peak_bytes=float(peak[row]))
        self.refusals.add_misses(self.job.cluster, count, miss)
        if self.closest is None or miss.peak_bytes < self.closest.peak_bytes:
            self.closest = miss

    def _add_feasible(self, columns: LayoutColumns) -> None:
        job = self.job
        found = estimate(job.model, job.cluster, job.training, columns, every_stage=False)
        self.feasible += len(columns)
        new = _Kept(columns=columns, step_s=found.step_s, peak_bytes=found.peak_bytes).worth_keeping(self.keep)
        self.kept = new if self.kept is None else self.kept.joined(new).worth_keeping(self.keep)


def plan(job: Job, *, top: int = 20, progress: Progress | None = None) -> Plan:
    """Search the whole space of a job. Raises InvalidInputError when its pinned degrees do not make up the world.

    progress: called with (rows done, rows in all) after each chunk.
    """
    started = time.perf_counter()
    grids = layout_grids(job)
    total = sum(grid.rows for grid in grids)
    search = _Search(job, max(top, KEPT_ROWS))
    for columns in layout_space(job, grids):
        search.add(columns)
        if progress is not None:
            progress(search.considered, total)
    return _result(search, time.perf_counter() - started)


def _result(search: _Search, seconds: float) -> Plan:
    job, kept, closest = search.job, search.kept, search.closest
    none = np.zeros(0, np.intp)
    order = none if kept is None else np.arange(len(kept.step_s))
    return Plan(
        job=job,
        considered=search.considered,
        feasible=search.feasible,
        seconds=seconds,
        ranked=None
        if kept is None
        else estimate(job.model, job.cluster, job.training, kept.columns, every_stage=False),
        variants=none if kept is None else best_of_each(kept.columns, order),
        front=none if kept is None else pareto_front(kept.peak_bytes, order),
        refusals=search.refusals.by_reason(),
        closest=None if closest is None else _estimate_of(job, closest.layout),
    )


def _estimate_of(job: Job, layout: Layout) -> Estimate:
    return estimate_layout(job.model, job.cluster, job.training, LayoutColumns.from_layouts([layout]))
