"""What a column of layouts holds where it is not given: Layout's own default, or what follows from the degrees."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from tpdpdash.layout.layout import SCHEDULES, Layout
from tpdpdash.layout.schedules import TWO_CHUNKS, is_among

FLAGS = tuple(f.name for f in fields(Layout) if f.type == "bool")
COUNTS = tuple(f.name for f in fields(Layout) if f.type == "int")
"""Columns of flags, and of whole numbers."""


def with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """All columns but the splits: what was given, and for the rest the default of Layout, or what follows from it."""
    plain = Layout()
    values: dict[str, Any] = {name: getattr(plain, name) for name in (*COUNTS, *FLAGS)}
    values |= {"rank_order": 0, "recompute": 0, "recompute_method": 0, "recompute_num_layers": np.nan}
    values |= {"num_model_chunks": np.where(is_among(np.asarray(given.get("schedule", 0), np.intp), TWO_CHUNKS), 2, 1)}
    values |= given
    follows = ("etp", "dp_shard_size", "microbatch_group_size_per_vp_stage", "schedule", "sequence_parallel")
    if all(name in given for name in follows):
        return values
    degrees = {name: values[name] for name in ("tp", "pp", "dp", "num_model_chunks")}
    return values | following_keys(**degrees) | given


def following_keys(*, tp: Any, pp: Any, dp: Any, num_model_chunks: Any) -> dict[str, Any]:
    """The keys that follow from others where they are not given, for one layout or for many rows: numbers or arrays;
    the schedule is an index into SCHEDULES."""
    none, interleaved, plain = (SCHEDULES.index(name) for name in ("none", "interleaved", "1f1b"))
    piped = np.where(np.greater(num_model_chunks, 1), interleaved, plain)
    return {
        "etp": tp,
        "dp_shard_size": dp,
        "microbatch_group_size_per_vp_stage": pp,
        "schedule": np.where(np.equal(pp, 1), none, piped),
        "sequence_parallel": np.greater(tp, 1),
    }
