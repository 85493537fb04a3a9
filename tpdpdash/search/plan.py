"""The search: every layout of a job priced, ranked, refused with a reason; and what would fit when nothing does."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.ma  # the first np.unique loads it, and fails where two threads come to it at once

from tpdpdash.cost.estimate import Estimates, estimate, estimate_layout, peak_bytes, step_seconds
from tpdpdash.cost.result import OUT_OF_MEMORY, Estimate
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.rules import refusal_codes
from tpdpdash.search.choices import offloads
from tpdpdash.search.kept import Kept
from tpdpdash.search.margins import Margin, margins
from tpdpdash.search.ranking import near_equal_in_set, pareto_front
from tpdpdash.search.refusals import Miss, Refusal, RefusalCounter
from tpdpdash.search.space import CHUNK_ROWS, Grid, Space, chunk_columns, chunks_of, space_of
from tpdpdash.units import MIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

Progress = Callable[[int, int], None]
KEPT_ROWS = 200
"""The fastest rows that are kept, besides near-equal ones, the best of each combination of degrees and the front."""
FEW_FEASIBLE = 10
"""With fewer layouts that fit, offloading is tried: it is slower wherever the device's memory suffices."""
THREADS = 2
"""Chunks priced at once. The answer does not depend on it."""
CHUNKS, FEWEST_ROWS = 2, 8192
"""A small space is cut into so many chunks of its rows, of so many rows at least: each costs some thousand calls of
numpy, whatever it holds."""
LARGEST_LEARNT_BYTES = 31 * MIB
"""Just below what glibc still learns from: 32 MiB with what it puts around a block."""


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
    """Feasible layouts, the fastest first, equal ones by simplicity: the fastest KEPT_ROWS, what is near-equal to the
    fastest, what is near-equal to the fastest of each combination of degrees, and the front; None when nothing fits."""
    pick: int
    """The row of `ranked` to run: the simplest of those near-equal to the fastest (search.ranking)."""
    picked: Estimate | None
    """That layout with all its stages; None when nothing fits."""
    variants: NDArray[np.intp]
    """A row of `ranked` for each tp, cp, ep, pp and dp, fastest first: the simplest of those near-equal to its fastest;
    the pick for its own."""
    front: NDArray[np.intp]
    """Rows of `ranked` that no other layout beats in both memory and speed, fastest first."""
    refusals: dict[str, Refusal]
    """Layouts that cannot run, by reason, the commonest first; OUT_OF_MEMORY is a reason like any other."""
    closest: Estimate | None
    """Of the legal layouts that do not fit, the one that needs the least memory; None when all of them fit."""

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

    @property
    def near(self) -> int:
        """Layouts whose steps are near-equal to the fastest's, that one included."""
        if self.ranked is None:
            return 0
        steps = self.ranked.step_s
        return int(np.count_nonzero(near_equal_in_set(steps, np.zeros(len(steps), np.intp))))

    def top_rows(self, count: int) -> list[int]:
        """Rows of `ranked` that stand for it: the `count` fastest, the pick in the last one's place where it is further
        down; never without the fastest."""
        rows = [] if self.ranked is None else list(range(min(count, len(self.ranked))))
        return [*rows[: max(1, count - 1)], self.pick] if rows and self.pick > rows[-1] else rows

    def top(self, count: int) -> list[Estimate]:
        """`count` layouts with all their stages, the fastest first, the pick among them."""
        return [] if self.ranked is None else [self.ranked.row(row) for row in self.top_rows(count)]

    def margins(self, count: int) -> list[Margin]:
        """What each of `top` loses against the fastest."""
        return [] if self.ranked is None else margins(self.ranked, self.top_rows(count))

    def to_json(self, top: int = 20) -> dict[str, Any]:
        """`tpdpdash plan --json`; `margins` has an entry for each layout, `pick` is the place of one of them."""
        rows, layouts = self.top_rows(top), self.top(top)
        search = {"considered": self.considered, "feasible": self.feasible, "seconds": self.seconds}
        search |= {"near": self.near, "pick": rows.index(self.pick)} if rows else {}
        if self.closest_bytes_short is not None:
            search["closest_bytes_short"] = self.closest_bytes_short
        return {
            "search": search,
            "layouts": [layout.to_json() for layout in layouts],
            "margins": [each.to_json() for each in self.margins(top)],
            "refused": self.refused,
        }


@dataclass(slots=True)
class _Search:
    """What is kept while chunks go by; bounded, however large the space."""

    job: Job
    keep: int
    considered: int = 0
    feasible: int = 0
    kept: Kept | None = None
    refusals: RefusalCounter = field(default_factory=RefusalCounter)

    def add(self, chunk: _Chunk) -> None:
        """Take in one chunk. The order of the chunks decides which example of a refusal is kept, nothing else."""
        self.considered += len(chunk.columns)
        self.refusals.add_rules(self.job, chunk.columns, chunk.codes)
        if chunk.miss is not None:
            self.refusals.add_misses(self.job.cluster, chunk.misses, chunk.miss)
        if chunk.kept is not None:
            self.feasible += chunk.feasible
            joined = chunk.kept if self.kept is None else self.kept.joined(chunk.kept)
            self.kept = joined.worth_keeping(self.keep)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chunk:
    """What became of some layouts."""

    columns: LayoutColumns
    """All of them."""
    codes: NDArray[np.int16]
    """The rule that each breaks first, as refusal_codes gives it."""
    misses: int = 0
    """Legal ones that do not fit."""
    miss: Miss | None = None
    """Of those, the one that needs the least memory."""
    feasible: int = 0
    """Those that are legal and fit."""
    kept: Kept | None = None
    """The feasible ones that can be in the answer."""


def _priced(job: Job, space: Space, grids: Sequence[Grid], keep: int) -> _Chunk:
    """Rules first, memory of what is legal, time of what fits. Reads nothing but its arguments: chunks can be priced in
    any order, several at once."""
    model, cluster, training = job.model, job.cluster, job.training
    columns = chunk_columns(job, space, grids)
    codes = refusal_codes(model, training, cluster, columns)
    legal = columns.take(np.flatnonzero(codes == 0))
    if not len(legal):
        return _Chunk(columns=columns, codes=codes)
    peak = peak_bytes(model, cluster, training, legal)
    fits = peak <= cluster.device.usable_bytes
    feasible, kept = legal.take(np.flatnonzero(fits)), None
    if len(feasible):
        step_s = step_seconds(model, cluster, training, feasible)
        kept = Kept(columns=feasible, step_s=step_s, peak_bytes=peak[fits]).worth_keeping(keep)
    miss = None
    if not fits.all():
        row = int(np.argmin(np.where(fits, np.inf, peak)))
        miss = Miss(layout=legal.layout(row), peak_bytes=float(peak[row]))
    misses = int(np.count_nonzero(~fits))
    return _Chunk(columns=columns, codes=codes, misses=misses, miss=miss, feasible=len(feasible), kept=kept)


def plan(job: Job, *, top: int = 20, progress: Progress | None = None) -> Plan:
    """Search the whole space of a job. Raises InvalidInputError when its pinned degrees do not make up the world.

    Where fewer than FEW_FEASIBLE layouts fit, all are tried again with the optimizer's states in host memory.
    progress: called with (rows done, rows in all) after each chunk.
    """
    started = time.perf_counter()
    search = _Search(job, max(top, KEPT_ROWS))
    _search_space(search, job, progress)
    if search.feasible < FEW_FEASIBLE and job.pins.offload_optimizer is None and offloads(job):
        _search_space(search, replace(job, pins=replace(job.pins, offload_optimizer=True)), progress)
    return _result(search, time.perf_counter() - started)


def _keep_freed_memory() -> None:
    """Have glibc keep what is freed, up to 64 MiB a thread, for the next array: it gives arrays of half a megabyte back
    to the system, whose fresh pages then take a quarter of the search. It learns what to keep from the largest block
    that was freed, up to this one's size (malloc.c, mmap_threshold); elsewhere this does nothing."""
    np.empty(LARGEST_LEARNT_BYTES, np.uint8)


def _search_space(search: _Search, job: Job, progress: Progress | None) -> None:
    """Add a job's whole space, THREADS chunks at a time; numpy computes without holding Python's lock."""
    _keep_freed_memory()
    space = space_of(job)
    total = search.considered + space.rows
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque[Future[_Chunk]] = deque()
        for grids in chunks_of(space, min(CHUNK_ROWS, max(FEWEST_ROWS, space.rows // CHUNKS))):
            waiting.append(pool.submit(_priced, job, space, grids, search.keep))
            if len(waiting) > THREADS:
                _take_in(search, waiting, total, progress)
        while waiting:
            _take_in(search, waiting, total, progress)


def _take_in(search: _Search, waiting: deque[Future[_Chunk]], total: int, progress: Progress | None) -> None:
    """The oldest chunk: in the order of the space, whichever thread was quicker."""
    search.add(waiting.popleft().result())
    if progress is not None:
        progress(search.considered, total)


def _result(search: _Search, seconds: float) -> Plan:
    job, refusals = search.job, search.refusals.by_reason()
    miss, closest = refusals.get(OUT_OF_MEMORY), None
    if miss is not None:
        closest = estimate_layout(job.model, job.cluster, job.training, LayoutColumns.from_layouts([miss.layout]))
    kept = None if search.kept is None else search.kept.ranked()
    none = np.zeros(0, np.intp)
    ranked = None if kept is None else estimate(job.model, job.cluster, job.training, kept.columns, every_stage=False)
    pick, variants = (0, none) if kept is None else kept.picks()
    return Plan(
        job=job,
        considered=search.considered,
        feasible=search.feasible,
        seconds=seconds,
        ranked=ranked,
        pick=pick,
        picked=None if ranked is None else ranked.row(pick),
        variants=variants,
        front=none if kept is None else pareto_front(kept.step_s, kept.peak_bytes),
        refusals=refusals,
        closest=closest,
    )
