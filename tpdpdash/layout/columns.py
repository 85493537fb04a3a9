"""LayoutColumns: many layouts as a structure of arrays, one row a layout. A single layout is an array of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from tpdpdash.layout.layout import RECOMPUTES, SCHEDULES, Layout, RecomputeMethod
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

    Codes are indices into SCHEDULES, RECOMPUTES, RECOMPUTE_METHODS and `rank_orders`. Fields mean what Layout says.
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
    offload_optimizer: Flags
    """Optimizer states live in host memory (n,)."""
    offload_activations: Flags
    """Kept activations live in host memory (n,)."""
    stage_layers: Floats
    """Layers of each stage, all chunks together (n, S); 0 where a row has fewer stages than S."""
    stage_mask: Flags
    """Which stages exist (n, S)."""
    rank_orders: tuple[str, ...]
    """The rank orders that occur."""

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def world_size(self) -> Floats:
        """Ranks of each row: tp · cp · pp · dp."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def expert_dp(self) -> Floats:
        """Replicas of each expert shard: tp · cp · dp / (etp · ep)."""
        return self.tp * self.cp * self.dp / (self.etp * self.ep)

    def num_microbatches(self, global_batch_size: int) -> Floats:
        """Microbatches of one step on one replica (n,); a fraction where the batch does not divide."""
        return global_batch_size / (self.micro_batch_size * self.dp)

    def is_schedule(self, name: str) -> Flags:
        """Rows with this schedule."""
        return np.equal(self.schedule, SCHEDULES.index(name))

    def take(self, index: NDArray[Any]) -> LayoutColumns:
        """The rows of an index or boolean mask, stages beyond the largest pp of them cut off."""
        arrays = {name: getattr(self, name)[index] for name in _ARRAYS}
        stages = max(1, int(arrays["stage_mask"].sum(axis=1).max(initial=1)))
        arrays["stage_layers"] = arrays["stage_layers"][:, :stages]
        arrays["stage_mask"] = arrays["stage_mask"][:, :stages]
        return LayoutColumns(**arrays, rank_orders=self.rank_orders)

    def layout(self, row: int) -> Layout:
        """One row as a Layout."""
        values: dict[str, Any] = {name: int(getattr(self, name)[row]) for name in _COUNTS}
        values |= {name: bool(getattr(self, name)[row]) for name in _FLAGS}
        values |= {name: legend[int(getattr(self, name)[row])] for name, legend in _LEGENDS.items()}
        recomputed = float(self.recompute_num_layers[row])
        stages = self.stage_layers[row][self.stage_mask[row]]
        return Layout(
            **values,
            rank_order=self.rank_orders[int(self.rank_order[row])],
            recompute_num_layers=None if np.isnan(recomputed) else int(recomputed),
            layers_per_stage=tuple(int(layers) for layers in stages),
        )

    @classmethod
    def from_layouts(cls, layouts: Sequence[Layout]) -> LayoutColumns:
        """One row a layout, in their order."""
        arrays: dict[str, Any] = {n: np.array([getattr(x, n) for x in layouts], np.float64) for n in _COUNTS}
        arrays |= {n: np.array([getattr(x, n) for x in layouts], np.bool_) for n in _FLAGS}
        for name, legend in _LEGENDS.items():
            arrays[name] = np.array([legend.index(getattr(x, name)) for x in layouts], np.uint8)
        orders = tuple(dict.fromkeys(x.rank_order for x in layouts))
        given = [x.recompute_num_layers for x in layouts]
        stages = max((len(x.layers_per_stage) for x in layouts), default=1) or 1
        layers = np.zeros((len(layouts), stages))
        mask = np.zeros((len(layouts), stages), np.bool_)
        for row, layout in enumerate(layouts):
            layers[row, : len(layout.layers_per_stage)] = layout.layers_per_stage
            mask[row, : len(layout.layers_per_stage)] = True
        return cls(
            **arrays,
            rank_order=np.array([orders.index(x.rank_order) for x in layouts], np.uint8),
            rank_orders=orders,
            recompute_num_layers=np.array([np.nan if n is None else n for n in given], np.float64),
            stage_layers=layers,
            stage_mask=mask,
        )

    @classmethod
    def build(cls, *, num_layers: int, rank_orders: tuple[str, ...] | None = None, **given: Any) -> LayoutColumns:
        """Columns from arrays or scalars by field name, broadcast against each other.

        What is not given takes the default of Layout; etp, dp_shard_size, the group size, schedule and
        sequence_parallel follow the degrees as in a Job. `stage_layers` with `stage_mask` may be given (n, S);
        otherwise each row gets the most even split.
        """
        split = [given.pop(name, None) for name in ("stage_layers", "stage_mask")]
        orders = rank_orders or (Layout().rank_order,)
        values = _with_defaults(given)
        rows = np.broadcast_shapes(*(np.shape(value) for value in values.values()), (1,))
        arrays = {n: np.broadcast_to(np.asarray(v, _DTYPES[n]), rows).copy() for n, v in values.items()}
        if split[0] is None:
            flags = arrays["account_for_embedding"], arrays["account_for_loss"]
            split = list(stage_columns(num_layers, arrays["pp"], *flags))
        return cls(**arrays, stage_layers=split[0], stage_mask=split[1], rank_orders=orders)

    @classmethod
    def joined(cls, parts: Sequence[LayoutColumns]) -> LayoutColumns:
        """The rows of several columns one after the other."""
        orders = tuple(dict.fromkeys(order for part in parts for order in part.rank_orders))
        stages = max(part.stage_layers.shape[1] for part in parts)
        arrays: dict[str, Any] = {n: np.concatenate([getattr(p, n) for p in parts]) for n in (*_COUNTS, *_FLAGS)}
        for name in (*_LEGENDS, "recompute_num_layers"):
            arrays[name] = np.concatenate([getattr(part, name) for part in parts])
        codes = [np.array([orders.index(o) for o in part.rank_orders], np.uint8)[part.rank_order] for part in parts]
        for name in ("stage_layers", "stage_mask"):
            widen = [(getattr(part, name), stages - part.stage_layers.shape[1]) for part in parts]
            arrays[name] = np.concatenate([np.pad(a, ((0, 0), (0, more))) for a, more in widen])
        return cls(**arrays, rank_order=np.concatenate(codes), rank_orders=orders)


_LEGENDS: dict[str, tuple[str, ...]] = {
    "schedule": SCHEDULES,
    "recompute": RECOMPUTES,
    "recompute_method": RECOMPUTE_METHODS,
}
_ARRAYS = tuple(f.name for f in fields(LayoutColumns) if f.name != "rank_orders")
_FLAGS = tuple(f.name for f in fields(Layout) if f.type == "bool")
_COUNTS = tuple(f.name for f in fields(Layout) if f.type == "int")
_DTYPES: dict[str, Any] = {
    **dict.fromkeys((*_COUNTS, "recompute_num_layers"), np.float64),
    **dict.fromkeys(_FLAGS, np.bool_),
    **dict.fromkeys((*_LEGENDS, "rank_order"), np.uint8),
}


def _with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    plain = Layout()
    values: dict[str, Any] = {name: getattr(plain, name) for name in (*_COUNTS, *_FLAGS)}
    values |= {"rank_order": 0, "recompute": 0, "recompute_method": 0, "recompute_num_layers": np.nan}
    values |= given
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
