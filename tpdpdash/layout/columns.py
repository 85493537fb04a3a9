"""LayoutColumns: many layouts as a structure of arrays, one row a layout. A single layout is an array of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from tpdpdash.elementwise import choose
from tpdpdash.layout.column_defaults import COUNTS, FLAGS, with_defaults
from tpdpdash.layout.layout import RECOMPUTES, SCHEDULES, Layout, RecomputeMethod
from tpdpdash.layout.schedules import FOLDED, MIRRORED, is_among
from tpdpdash.layout.stages import stage_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Codes = NDArray[np.uint8]

RECOMPUTE_METHODS: tuple[str, ...] = get_args(RecomputeMethod)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutColumns:
    """n layouts. Every array has n rows; degrees and sizes are float64, so that no product of them can overflow.

    Codes are indices into SCHEDULES, RECOMPUTES, RECOMPUTE_METHODS, `rank_orders` and the splits. Fields mean what
    Layout says.
    """

    tp: Floats
    """Tensor parallel degree (n,)."""
    cp: Floats
    """Context parallel degree (n,)."""
    pp: Floats
    """Pipeline parallel degree (n,)."""
    dp: Floats
    """Data parallel degree (n,)."""
    ep: Floats
    """Expert parallel degree (n,)."""
    etp: Floats
    """Tensor parallel degree inside an expert (n,)."""
    rank_order: Codes
    """Index into `rank_orders` (n,)."""
    micro_batch_size: Floats
    """Sequences in one microbatch (n,)."""
    schedule: Codes
    """Index into SCHEDULES (n,)."""
    num_model_chunks: Floats
    """Model chunks on each rank (n,)."""
    microbatch_group_size_per_vp_stage: Floats
    """Microbatches that a chunk runs before the next chunk (n,)."""
    zero_stage: Floats
    """What DP shards: 0, 1, 2 or 3 (n,)."""
    dp_shard_size: Floats
    """Ranks over which ZeRO shards (n,)."""
    sequence_parallel: Flags
    """Norms and dropout split along the sequence over TP (n,)."""
    recompute: Codes
    """Index into RECOMPUTES (n,)."""
    recompute_num_layers: Floats
    """Layers of each stage that recompute (n,); NaN = all of them (None in a Layout)."""
    recompute_method: Codes
    """Index into RECOMPUTE_METHODS (n,)."""
    account_for_embedding: Flags
    """The embedding counts as one layer in the split (n,)."""
    account_for_loss: Flags
    """The head and loss count as one layer in the split (n,)."""
    overlap_grad_reduce: Flags
    """Gradient reduction overlaps backward (n,)."""
    overlap_param_gather: Flags
    """Parameter gathering overlaps forward (n,)."""
    overlap_tp: Flags
    """TP messages overlap GEMMs (n,)."""
    overlap_ep: Flags
    """Expert messages run beside another microbatch's computation (n,)."""
    offload_optimizer: Flags
    """Optimizer states live in host memory (n,)."""
    offload_activations: Flags
    """Kept activations live in host memory (n,)."""
    split: NDArray[np.intp]
    """Stage split: row of `split_layers` (n,)."""
    split_layers: Floats
    """The splits that occur, each once: layers of each stage, all chunks together (splits, S), 0 beyond the last."""
    split_stages: NDArray[np.intp]
    """Stages of each split (splits,)."""
    rank_orders: tuple[str, ...]
    """The rank orders that occur."""

    def __len__(self) -> int:
        return np.size(self.tp)

    @property
    def plain(self) -> LayoutColumns:
        """The same; of a single row every (n,) is numpy's number instead of an array of one, for formulas alone."""
        if len(self) != 1:
            return self
        only = {name: getattr(self, name)[0] for name in ROW_FIELDS}
        return LayoutColumns(**only, **{name: getattr(self, name) for name in _SHARED})

    @property
    def stage_layers(self) -> Floats:
        """Layers of each stage of each row (n, S); 0 where a row has fewer stages than S."""
        return self.split_layers[self.split, : self._most_stages]

    @property
    def stage_mask(self) -> Flags:
        """Which stages exist (n, S)."""
        return np.arange(self._most_stages) < self.split_stages[self.split][:, None]

    @property
    def _most_stages(self) -> int:
        return max(1, int(self.split_stages[self.split].max(initial=1)))

    @property
    def splits(self) -> list[tuple[int, ...]]:
        """Every split as Layout.layers_per_stage."""
        pairs = zip(self.split_layers.astype(int).tolist(), self.split_stages.tolist(), strict=True)
        return [tuple(layers[:stages]) for layers, stages in pairs]

    @property
    def largest_stage(self) -> Floats:
        """Layers of each row's largest stage (n,)."""
        return np.asarray(self.split_layers.max(axis=1, initial=0.0)[self.split])

    @property
    def world_size(self) -> Floats:
        """Ranks of each row: tp · cp · pp · dp."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def expert_dp(self) -> Floats:
        """Replicas of each expert shard: tp · cp · dp / (etp · ep)."""
        return self.tp * self.cp * self.dp / (self.etp * self.ep)

    @property
    def parts_per_rank(self) -> Floats:
        """Parts of the model that each rank runs one after the other: its chunks, under DualPipe two stages (n,)."""
        return choose(is_among(self.schedule, MIRRORED), 2.0, self.num_model_chunks)

    def num_microbatches(self, global_batch_size: int) -> Floats:
        """Microbatches of one step on one replica (n,); a fraction where the batch does not divide."""
        return global_batch_size / (self.micro_batch_size * self.dp)

    def is_schedule(self, name: str) -> Flags:
        """Rows with this schedule."""
        return np.equal(self.schedule, SCHEDULES.index(name))

    def take(self, index: NDArray[Any]) -> LayoutColumns:
        """The rows of an index or boolean mask; the splits stay as they are."""
        rows = np.flatnonzero(index) if index.dtype == np.bool_ else index
        arrays = {name: getattr(self, name).take(rows) for name in ROW_FIELDS}
        return LayoutColumns(**arrays, **{name: getattr(self, name) for name in _SHARED})

    def runs(self, ignoring: frozenset[str] = frozenset()) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """(first row of each run, run of each row): runs of neighbours that differ at most in the columns
        `ignoring`."""
        compared = [getattr(self, name) for name in ROW_FIELDS if name not in ignoring | _WITH_NAN]
        return equal_runs(compared + [np.nan_to_num(getattr(self, name), nan=-1.0) for name in _WITH_NAN - ignoring])

    def layout(self, row: int) -> Layout:
        """One row as a Layout."""
        values: dict[str, Any] = {name: int(getattr(self, name)[row]) for name in COUNTS}
        values |= {name: bool(getattr(self, name)[row]) for name in FLAGS}
        values |= {name: legend[int(getattr(self, name)[row])] for name, legend in _LEGENDS.items()}
        recomputed = float(self.recompute_num_layers[row])
        split = int(self.split[row])
        stages = self.split_layers[split, : self.split_stages[split]]
        return Layout(
            **values,
            rank_order=self.rank_orders[int(self.rank_order[row])],
            recompute_num_layers=None if np.isnan(recomputed) else int(recomputed),
            layers_per_stage=tuple(int(layers) for layers in stages),
        )

    @classmethod
    def from_layouts(cls, layouts: Sequence[Layout]) -> LayoutColumns:
        """One row a layout, in their order."""
        arrays: dict[str, Any] = {n: np.array([getattr(x, n) for x in layouts], np.float64) for n in COUNTS}
        arrays |= {n: np.array([getattr(x, n) for x in layouts], np.bool_) for n in FLAGS}
        for name, legend in _LEGENDS.items():
            arrays[name] = np.array([legend.index(getattr(x, name)) for x in layouts], np.uint8)
        orders = tuple(dict.fromkeys(x.rank_order for x in layouts))
        given = [x.recompute_num_layers for x in layouts]
        splits = {x.layers_per_stage: None for x in layouts}
        places = {split: place for place, split in enumerate(splits)}
        return cls(
            **arrays,
            rank_order=np.array([orders.index(x.rank_order) for x in layouts], np.uint8),
            rank_orders=orders,
            recompute_num_layers=np.array([np.nan if n is None else n for n in given], np.float64),
            split=np.array([places[x.layers_per_stage] for x in layouts], np.intp),
            **split_table(list(splits)),
        )

    @classmethod
    def build(cls, *, num_layers: int, rank_orders: tuple[str, ...] | None = None, **given: Any) -> LayoutColumns:
        """Columns from arrays or scalars by field name, broadcast against each other.

        What is not given takes the default of Layout; etp, dp_shard_size, the group size, schedule and
        sequence_parallel follow the degrees as in a Job. `split` with `split_layers` and `split_stages` may be given;
        otherwise each row gets the most even split.
        """
        splits: dict[str, Any] = {name: given.pop(name) for name in _SPLIT_FIELDS if name in given}
        orders = rank_orders or (Layout().rank_order,)
        values = with_defaults(given)
        rows = np.broadcast_shapes(*(np.shape(value) for value in values.values()), (1,))
        arrays = {n: _filled(np.asarray(v, _DTYPES[n]), rows) for n, v in values.items()}
        return cls(**arrays, **(splits or _even_splits(num_layers, arrays)), rank_orders=orders)

    @classmethod
    def joined(cls, parts: Sequence[LayoutColumns]) -> LayoutColumns:
        """The rows of several columns one after the other."""
        orders = tuple(dict.fromkeys(order for part in parts for order in part.rank_orders))
        arrays: dict[str, Any] = {n: np.concatenate([getattr(p, n) for p in parts]) for n in (*COUNTS, *FLAGS)}
        for name in (*_LEGENDS, "recompute_num_layers"):
            arrays[name] = np.concatenate([getattr(part, name) for part in parts])
        codes = [np.array([orders.index(o) for o in part.rank_orders], np.uint8)[part.rank_order] for part in parts]
        places: dict[tuple[int, ...], int] = {}
        moved = [np.array([places.setdefault(s, len(places)) for s in part.splits], np.intp) for part in parts]
        return cls(
            **arrays,
            rank_order=np.concatenate(codes),
            rank_orders=orders,
            split=np.concatenate([to[part.split] for to, part in zip(moved, parts, strict=True)]),
            **split_table(list(places)),
        )


def split_table(splits: Sequence[Sequence[float]]) -> dict[str, Any]:
    """split_layers and split_stages of LayoutColumns for some splits."""
    stages = np.array([len(split) for split in splits], np.intp)
    layers = np.zeros((len(splits), int(stages.max(initial=1))))
    for place, split in enumerate(splits):
        layers[place, : len(split)] = split
    return {"split_layers": layers, "split_stages": stages}


def _filled(values: NDArray[Any], rows: tuple[int, ...]) -> NDArray[Any]:
    """The values, one a row."""
    return values if values.shape == rows else np.broadcast_to(values, rows).copy()


def _even_splits(num_layers: int, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """split, split_layers and split_stages of the most even split of each row."""
    names = ("pp", "account_for_embedding", "account_for_loss")
    keys = [arrays[name] for name in names] + [is_among(arrays["schedule"], FOLDED)]
    cases, split = np.unique(np.column_stack(keys), axis=0, return_inverse=True)
    layers, mask = stage_columns(num_layers, *cases.T)
    return {"split": split.reshape(-1), "split_layers": layers, "split_stages": mask.sum(axis=1)}


def equal_runs(arrays: Sequence[NDArray[Any]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(first row of each run, run of each row): runs of neighbours over which all of some arrays (n,) or (n, …) are
    equal; NaN equals nothing."""
    starts = np.zeros(len(arrays[0]), np.bool_)
    starts[:1] = True
    for array in arrays:
        differs = array[1:] != array[:-1]
        starts[1:] |= differs if differs.ndim == 1 else differs.any(axis=tuple(range(1, differs.ndim)))
    return np.flatnonzero(starts), np.cumsum(starts) - 1


_LEGENDS: dict[str, tuple[str, ...]] = {
    "schedule": SCHEDULES,
    "recompute": RECOMPUTES,
    "recompute_method": RECOMPUTE_METHODS,
}
_SPLIT_FIELDS = ("split", "split_layers", "split_stages")
_SHARED = ("split_layers", "split_stages", "rank_orders")
ROW_FIELDS = tuple(f.name for f in fields(LayoutColumns) if f.name not in _SHARED)
SHARDING = frozenset(
    {"zero_stage", "dp_shard_size", "offload_optimizer", "overlap_grad_reduce", "overlap_param_gather"}
)
"""Columns that decide where states live and how they travel: a pass over the layers does not read them."""
_WITH_NAN = frozenset({"recompute_num_layers"})
"""Columns in which NaN is a value like any other: equal to itself."""
_DTYPES: dict[str, Any] = {
    **dict.fromkeys((*COUNTS, "recompute_num_layers"), np.float64),
    **dict.fromkeys(FLAGS, np.bool_),
    **dict.fromkeys((*_LEGENDS, "rank_order"), np.uint8),
}
