"""The last steps of all ranks as arrays of fixed size; rows of steps are put in many at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tpdpdash.telemetry.rows import COLUMNS, FORGET, ROW_BYTES, SCALARS
from tpdpdash.telemetry.snapshot import Floats

Rows = NDArray[np.void]
_STEP_S = SCALARS.index("step_s")
_ROW = np.dtype([("step", "<i8"), ("rank", "<i8"), ("values", "<f8", (len(COLUMNS),))])


def rows_of(data: bytes) -> Rows:
    """Rows of telemetry.rows; a torn last one is left out."""
    return np.frombuffer(data, dtype=_ROW, count=len(data) // ROW_BYTES)


class Rings:
    """Rank × step (× phase) arrays: a step has the column step mod capacity, and a newer step takes it over."""

    def __init__(self, world_size: int, capacity: int) -> None:
        self.world_size = world_size
        self.capacity = capacity
        self.num_steps = 0
        """Steps that were seen in all."""
        # A quantity lies together: a figure is made of few of them, over all ranks and steps.
        self._cells: Floats = np.full((len(COLUMNS), world_size, capacity), np.nan)
        self.step_of_column = np.full(capacity, -1, dtype=np.int64)

    def put(self, rows: Rows) -> None:
        """Take rows in the order in which they came. Rows of steps that are dropped already are passed over."""
        marks = np.flatnonzero(rows["step"] == FORGET)
        begin = 0
        for mark in marks.tolist():
            self._put_steps(rows[begin:mark])
            self.forget([int(rows["rank"][mark])])
            begin = mark + 1
        self._put_steps(rows[begin:])

    def _put_steps(self, rows: Rows) -> None:
        steps = rows["step"]
        seen = np.unique(steps)
        self.num_steps += int((seen > self.step_of_column[seen % self.capacity]).sum())
        newest = self.step_of_column.copy()
        np.maximum.at(newest, steps % self.capacity, steps)
        self._clear(newest > self.step_of_column)
        self.step_of_column = newest
        rows = rows[steps == newest[steps % self.capacity]]
        self._cells[:, rows["rank"], rows["step"] % self.capacity] = rows["values"].T

    def _clear(self, columns: NDArray[np.bool_]) -> None:
        self._cells[:, :, columns] = np.nan

    def forget(self, ranks: list[int]) -> None:
        """These ranks began anew: what they told counts no more, nor do steps that nobody else told."""
        self._cells[:, ranks] = np.nan
        is_empty = (self.step_of_column >= 0) & np.isnan(self._cells[_STEP_S]).all(axis=0)
        self.step_of_column[is_empty] = -1
        self.num_steps -= int(is_empty.sum())

    def by_step(self) -> tuple[NDArray[np.int64], dict[str, Floats]]:
        """The steps that are kept, ascending, and a copy of what was told of each: the scalars (R, S), phase_s
        (R, S, P)."""
        order = np.argsort(self.step_of_column, kind="stable")
        order = order[self.step_of_column[order] >= 0]
        cells = np.take(self._cells, order, axis=2)
        told = dict(zip(SCALARS, cells, strict=False))
        return self.step_of_column[order], {**told, "phase_s": np.moveaxis(cells[len(SCALARS) :], 0, -1)}
