"""Rows that agree in everything that a formula reads are priced once.

A search varies the cheap keys fastest, so that such rows follow each other: a run starts where any column differs from
the row before. Only neighbours are compared; rows that are equal but apart are priced twice, never wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpdpdash.cost.arrays import Part, rows_of
from tpdpdash.layout.columns import LayoutColumns, equal_runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.intp]

PASSES = frozenset({"micro_batch_size", "sequence_parallel", "recompute", "overlap_tp", "overlap_ep"})
"""Columns that decide what a pass over a layer does: groups of ranks do not depend on them."""
PIPELINE = frozenset(
    {
        *("schedule", "num_model_chunks", "microbatch_group_size_per_vp_stage", "recompute_num_layers"),
        *("recompute_method", "account_for_embedding", "account_for_loss", "split", "offload_activations"),
    }
)
"""Columns that decide which layers stand where and which of them recompute: one layer's passes do not read them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """n rows as runs of equal ones."""

    first: Rows
    """First row of each run (runs,)."""
    of_row: Rows
    """Run of each row (n,)."""

    @property
    def every_row(self) -> bool:
        """No two neighbours are equal."""
        return len(self.first) == len(self.of_row)

    def firsts(self, part: Part) -> Part:
        """An array, or a structure of arrays, with a row for each run instead of one for each row."""
        return part if self.every_row else rows_of(part, self.first)

    def spread(self, part: Part) -> Part:
        """The other way round: what was computed for each run, for each row."""
        return part if self.every_row else rows_of(part, self.of_row)


_ONE_ROW = Runs(first=np.zeros(1, np.intp), of_row=np.zeros(1, np.intp))


def runs_of(arrays: Sequence[NDArray[Any]]) -> Runs:
    """Runs over which all of some arrays (n,) or (n, …) are equal; NaN equals nothing."""
    if np.size(arrays[0]) == 1:
        return _ONE_ROW
    first, of_row = equal_runs(arrays)
    return Runs(first=first, of_row=of_row)


def column_runs(columns: LayoutColumns, ignoring: frozenset[str]) -> Runs:
    """Runs of layouts that differ at most in the columns `ignoring`."""
    if len(columns) == 1:
        return _ONE_ROW
    first, of_row = columns.runs(ignoring)
    return Runs(first=first, of_row=of_row)
