"""The layouts that a search keeps while its chunks go by: those that can still be in the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.search.ranking import (
    combinations,
    near_equal_in_set,
    on_front,
    ranked_order,
    simplest_of_each,
    simplicity,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """Feasible layouts that can still be in the answer."""

    columns: LayoutColumns
    """n layouts."""
    step_s: Floats
    """Their steps (n,)."""
    peak_bytes: Floats
    """Memory of their fullest stages (n,)."""

    def take(self, index: NDArray[np.intp]) -> Kept:
        """The rows of an index."""
        return Kept(columns=self.columns.take(index), step_s=self.step_s[index], peak_bytes=self.peak_bytes[index])

    def worth_keeping(self, keep: int) -> Kept:
        """The fastest `keep` rows, the rows near-equal to the fastest of their combination of degrees (one of them is
        its simplest), and the front."""
        wanted = near_equal_in_set(self.step_s, combinations(self.columns))
        wanted |= on_front(self.step_s, self.peak_bytes)
        if len(wanted) > keep:
            wanted |= self.step_s <= np.partition(self.step_s, keep)[keep]
        else:
            wanted[:] = True
        return self.take(np.flatnonzero(wanted))

    def ranked(self) -> Kept:
        """The rows, fastest first."""
        return self.take(ranked_order(self.step_s, simplicity(self.columns, self.peak_bytes)))

    def picks(self) -> tuple[int, NDArray[np.intp]]:
        """(the simplest row near-equal to the fastest, the same of each combination of degrees) of ranked rows."""
        place, of = simplicity(self.columns, self.peak_bytes), combinations(self.columns)
        one_set = np.zeros_like(of)
        pick = int(simplest_of_each(near_equal_in_set(self.step_s, one_set), one_set, place)[0])
        candidates = near_equal_in_set(self.step_s, of) & (of != of[pick])
        candidates[pick] = True
        return pick, simplest_of_each(candidates, of, place)

    def joined(self, other: Kept) -> Kept:
        """The rows of both, one after the other."""
        return Kept(
            columns=LayoutColumns.joined([self.columns, other.columns]),
            step_s=np.concatenate([self.step_s, other.step_s]),
            peak_bytes=np.concatenate([self.peak_bytes, other.peak_bytes]),
        )
