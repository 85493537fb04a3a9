"""Order of layouts by step time; the simplest of the near-equal ones; and which no other layout beats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import SCHEDULES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Rows = NDArray[np.intp]

NEAR_FRAC = 0.005
"""What a pick may be slower than the fastest: steps closer than this are near-equal, and simplicity decides. A limit on
what is given away, set below the 1 % that no set of measured runs is met better than; `cost.comparison.tie_frac` is
what estimates can tell apart, twenty times as wide: inside of it the faster estimate still is the better guess, and to
give all of it up for simplicity would cost speed."""
BY_SIMPLICITY = ("none", "1f1b", "gpipe", "interleaved", "zb-1p", "zb-2p", "zb-v", "dualpipe-v", "dualpipe")
"""Schedules from the simplest on."""
_SCHEDULE_PLACE = np.array([BY_SIMPLICITY.index(name) for name in SCHEDULES])


def simplicity(c: LayoutColumns, peak_bytes: Floats) -> Rows:
    """Place of each row from the simplest (0) on, (n,).

    Simpler, in this order: nothing offloaded; fewer kinds of parallelism (tp, cp, pp, ep above 1); fewer model parallel
    ranks tp · cp · pp; a simpler schedule, fewer chunks, Megatron's own group size; no recompute, then selective, all
    layers, some layers; less ZeRO, no HSDP; even stages; less expert parallelism; the usual rank order; no sequence
    parallelism; less memory; and at last smaller degrees, so that the order never depends on the search's.
    """
    keys = (
        _number(c.offload_optimizer, c.offload_activations),
        _number(c.tp > 1, c.cp > 1, c.pp > 1, c.ep > 1),
        c.tp * c.cp * c.pp,
        _SCHEDULE_PLACE[c.schedule],
        c.num_model_chunks,
        c.microbatch_group_size_per_vp_stage != c.pp,
        c.recompute + ~np.isnan(c.recompute_num_layers),
        c.zero_stage,
        c.dp_shard_size < c.dp,
        _unevenness(c),
        _number(c.account_for_embedding, c.account_for_loss),
        c.ep,
        c.rank_order,
        c.sequence_parallel,
        peak_bytes,
        c.pp,
        c.tp,
        c.etp,
        c.micro_batch_size,
        c.dp_shard_size,
        c.recompute_num_layers,
        c.recompute_method,
        c.microbatch_group_size_per_vp_stage,
        c.account_for_embedding,
        c.split_layers[c.split, 0],
    )
    place = np.empty(len(c), np.intp)
    place[np.lexsort(tuple(reversed(keys)))] = np.arange(len(c))
    return place


def _number(*flags: NDArray[np.bool_]) -> Rows:
    """How many of some flags are set (n,)."""
    return np.asarray(np.sum(flags, axis=0, dtype=np.intp))


def _unevenness(c: LayoutColumns) -> Floats:
    """Layers between the largest and the smallest stage (n,)."""
    exists = np.arange(c.split_layers.shape[1]) < c.split_stages[:, None]
    least = np.where(exists, c.split_layers, np.inf).min(axis=1, initial=np.inf)
    return np.asarray((c.split_layers.max(axis=1, initial=0.0) - least)[c.split])


def ranked_order(step_s: Floats, place: Rows) -> Rows:
    """Rows from the fastest to the slowest, equal ones by simplicity. place: of `simplicity`."""
    return np.lexsort((place, step_s))


def simplest_of_each(near: NDArray[np.bool_], of: Rows, place: Rows) -> Rows:
    """The simplest of the rows `near` in each set, in the order of the rows. of: the set of each row, from 0."""
    rows = np.flatnonzero(near)
    rows = rows[np.argsort(place[rows])]
    return np.sort(rows[np.unique(of[rows], return_index=True)[1]])


def near_equal_in_set(step_s: Floats, of: Rows) -> NDArray[np.bool_]:
    """Rows that are near-equal to the fastest of their set (n,). of: the set of each row, from 0."""
    fastest = np.full(int(of.max(initial=0)) + 1, np.inf)
    np.minimum.at(fastest, of, step_s)
    return np.asarray(step_s <= fastest[of] * (1 + NEAR_FRAC), np.bool_)


def combinations(c: LayoutColumns) -> Rows:
    """Number of each row's combination of tp, cp, ep, pp and dp, from 0 (n,)."""
    mark = np.zeros(len(c))
    for column in (c.tp, c.cp, c.ep, c.pp):
        mark = mark * (column.max(initial=1.0) + 1) + column
    return np.asarray(np.unique(mark, return_inverse=True)[1].reshape(-1))


def pareto_front(step_s: Floats, peak_bytes: Floats) -> Rows:
    """Rows that need less memory than every faster one, fastest first; of equal rows the first."""
    order = np.lexsort((peak_bytes, step_s))
    peak = peak_bytes[order]
    least_before = np.concatenate([[np.inf], np.minimum.accumulate(peak)[:-1]])
    return order[peak < least_before]


def on_front(step_s: Floats, peak_bytes: Floats) -> NDArray[np.bool_]:
    """Rows than which no faster one needs less memory (n,): the front with all that is equal to it."""
    order = np.lexsort((peak_bytes, step_s))
    kept = np.zeros(len(order), np.bool_)
    kept[order] = peak_bytes[order] <= np.minimum.accumulate(peak_bytes[order])
    return kept
