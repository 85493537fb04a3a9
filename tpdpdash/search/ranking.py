"""Order of layouts: by tokens a second, then by simplicity; and which of them no other layout beats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.columns import LayoutColumns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Rows = NDArray[np.intp]


def ranked_order(c: LayoutColumns, step_s: Floats, peak_bytes: Floats) -> Rows:
    """Rows from best to worst: shortest step, then the simplest layout of those that take exactly as long.

    Simpler: fewer model parallel ranks (tp·cp·pp), fewer chunks, less ZeRO, no recompute, less expert parallelism, no
    sequence parallelism, less memory; and at last smaller degrees, so that the order never depends on the search's.
    """
    simplicity = (
        c.tp * c.cp * c.pp,
        c.num_model_chunks,
        c.zero_stage,
        c.recompute,
        c.ep,
        c.sequence_parallel,
        peak_bytes,
        c.pp,
        c.tp,
        c.etp,
        c.micro_batch_size,
    )
    return np.lexsort((*reversed(simplicity), step_s))


def best_of_each(c: LayoutColumns, order: Rows) -> Rows:
    """Positions in `order` of the best row of each (tp, cp, ep, pp, dp), best first."""
    degrees = np.column_stack([c.tp, c.cp, c.ep, c.pp])[order]
    mark = np.zeros(len(order))
    for column in degrees.T:
        mark = mark * (column.max(initial=1.0) + 1) + column
    _, first = np.unique(mark, return_index=True)
    return np.sort(first)


def pareto_front(peak_bytes: Floats, order: Rows) -> Rows:
    """Positions in `order` of the rows that need less memory than every faster (or equally fast, simpler) row."""
    peak = peak_bytes[order]
    least_before = np.concatenate([[np.inf], np.minimum.accumulate(peak)[:-1]])
    return np.flatnonzero(peak < least_before)
