"""The space of layouts of a job, as chunks of columns with bounded memory.

Every key that is pinned is fixed; every other one is a dimension: tp, cp, pp, ep, etp here, the rest in `choices`. dp
is what the world leaves. A flag that changes no figure is no dimension: sequence parallelism at tp 1, ZeRO at one
replica, chunks at one stage, etp at tp 1, experts of a dense model, a rank order under which groups sit as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tpdpdash.faults import InvalidInputError
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns, equal_runs, split_table
from tpdpdash.layout.frameworks import overlap_keys
from tpdpdash.layout.grid import rank_order_faults
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER, SCHEDULES, LayoutPins
from tpdpdash.layout.microbatch_rules import least_group_size
from tpdpdash.layout.placement import domain_block, members_per_block
from tpdpdash.layout.resolve import draft_layout
from tpdpdash.search.choices import AXES, Settings, micro_batches, pipelines, recomputes, sequence_splits, shards
from tpdpdash.search.splits import Split
from tpdpdash.units import divisors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CHUNK_ROWS = 65536
"""Rows evaluated at once: enough that numpy's price of a call is nothing beside its rows', few enough for the
processor's last cache."""
MIN_TOKENS_PER_CONTEXT_RANK = 4096
"""Without a pin, context parallelism is searched as long as every rank keeps this many tokens of a sequence, from
16,384 tokens on: below, it only divides work that tensor and data parallelism divide better."""
LONG_SEQUENCE = 16384
MAX_CONTEXT_PARALLEL = 64
OTHER_RANK_ORDER = "tp-cp-ep-pp-dp"
"""Megatron's other habit: a pipeline's stages next to each other. Searched where some group then sits differently."""
PLACED_GROUPS = ("cp", "pp", "dp", "dp-cp", "ep", "expert-tp", "expert-dp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One combination of degrees and the values of the other dimensions under it."""

    degrees: dict[str, int]
    """tp, cp, pp, dp, ep, etp."""
    axes: tuple[Settings, ...]
    """Rows of each of AXES; their product is the layouts."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Settings of each axis."""
        return tuple(map(len, self.axes))

    @property
    def rows(self) -> int:
        """Layouts of this combination."""
        count = 1
        for settings in self.axes:
            count *= len(settings)
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All layouts of a job."""

    grids: tuple[Grid, ...]
    """Every combination of degrees."""
    splits: tuple[Split, ...]
    """The stage splits that their rows name by number."""
    rank_orders: tuple[str, ...]
    """The rank orders that their rows name by number."""

    @property
    def rows(self) -> int:
        """Layouts in all."""
        return sum(grid.rows for grid in self.grids)


def space_of(job: Job) -> Space:
    """All combinations of degrees, ordered by pp, so that a chunk's stages are about as many.

    Raises InvalidInputError when the pinned degrees do not make up the world.
    """
    combinations = _combinations(job)
    if not combinations:
        raise InvalidInputError(draft_layout(job.pins, job.model, job.training, job.cluster.world_size).faults)
    codes: dict[Split, int] = {}
    orders = _orders_of(job, combinations)
    by_pp = {
        pp: (recomputes(job, pp), pipelines(job, pp, codes)) for pp in dict.fromkeys(d["pp"] for d in combinations)
    }
    grids = [
        Grid(
            degrees=degrees,
            axes=(
                micro_batches(job, degrees["dp"]),
                sequence_splits(job, degrees["tp"]),
                ((0.0,), (1.0,)) if two_orders else ((0.0,),),
                *by_pp[degrees["pp"]],
                shards(job, degrees),
            ),
        )
        for degrees, two_orders in zip(combinations, orders, strict=True)
    ]
    return Space(grids=tuple(grids), splits=tuple(codes), rank_orders=_rank_orders(job))


def _combinations(job: Job) -> list[dict[str, int]]:
    model, training, pins = job.model, job.training, job.pins
    world, found = job.cluster.world_size, []
    for pp in _degrees(pins.pp, world, model.num_layers):
        for tp in _degrees(pins.tp, world // pp, model.num_attention_heads):
            for cp in _context_degrees(pins, training.seq_len, world // (pp * tp)):
                dp = world // (pp * tp * cp)
                if pins.dp not in (None, dp) or pp * tp * cp * dp != world:
                    continue
                for ep, etp in _expert_degrees(job, tp, tp * cp * dp):
                    found.append({"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "etp": etp})
    order = pins.rank_order
    return found if order is None else [degrees for degrees in found if not rank_order_faults(order, degrees)]


def _degrees(pinned: int | None, world: int, limit: int) -> list[int]:
    """Values of one degree: the pin where it divides the world, or the world's divisors up to a limit."""
    if pinned is not None:
        return [pinned] if pinned >= 1 and world % pinned == 0 else []
    return [d for d in divisors(world) if d <= limit]


def _context_degrees(pins: LayoutPins, seq_len: int, world: int) -> list[int]:
    """Values of cp: the pin; for long sequences the world's divisors that leave each rank enough tokens; else 1."""
    if pins.cp is not None:
        return _degrees(pins.cp, world, pins.cp)
    if seq_len < LONG_SEQUENCE:
        return [1]
    most = min(seq_len // MIN_TOKENS_PER_CONTEXT_RANK, MAX_CONTEXT_PARALLEL)
    return [d for d in divisors(world) if d <= most and d & (d - 1) == 0]


def _expert_degrees(job: Job, tp: int, ranks: int) -> list[tuple[int, int]]:
    """(ep, etp): for a mixture of experts the divisors of its experts and etp 1 or tp, as far as the grid divides."""
    pins = job.pins
    if not job.model.is_moe:
        return [(pins.ep or 1, pins.etp or tp)]
    experts = [pins.ep] if pins.ep is not None else divisors(job.model.num_experts)
    inside = [pins.etp] if pins.etp is not None else sorted({1, tp})
    pairs = [(ep, etp) for ep in experts for etp in inside if ranks % (ep * etp) == 0]
    return pairs or [(experts[0], inside[0])]


def _rank_orders(job: Job) -> tuple[str, ...]:
    return (DEFAULT_RANK_ORDER, OTHER_RANK_ORDER) if job.pins.rank_order is None else (job.pins.rank_order,)


def _orders_of(job: Job, combinations: list[dict[str, int]]) -> list[bool]:
    """For each combination whether both rank orders are searched: where a group has other members in a scale-up domain
    under the other one, and it keeps the pipelines of experts and of dense layers the same. Megatron asks that of
    dense models too, to whose experts context parallel ranks are replicas."""
    block = domain_block(job.cluster)
    if job.pins.rank_order is not None or job.cluster.world_size <= block:
        return [False] * len(combinations)
    values: dict[str, Any] = {name: np.array([d[name] for d in combinations]) for name in combinations[0]}
    usual, other = (
        LayoutColumns.build(num_layers=job.model.num_layers, rank_orders=(order,), **values)
        for order in (DEFAULT_RANK_ORDER, OTHER_RANK_ORDER)
    )
    differs = np.zeros(len(usual), np.bool_)
    for kind in PLACED_GROUPS:
        differs |= members_per_block(usual, kind, block) != members_per_block(other, kind, block)
    return [bool(each) for each in differs & (usual.expert_dp == usual.dp) & (usual.pp > 1)]


def chunks_of(space: Space, chunk_rows: int) -> Iterator[list[Grid]]:
    """The grids in groups of about `chunk_rows` layouts; at least a quarter of that where the number of stages changes,
    so that few rows are padded to the stages of others."""
    waiting: list[Grid] = []
    rows = 0
    for grid in space.grids:
        deeper = waiting and grid.degrees["pp"] != waiting[-1].degrees["pp"]
        if rows >= chunk_rows or (deeper and rows >= chunk_rows // 4):
            yield waiting
            waiting, rows = [], 0
        waiting.append(grid)
        rows += grid.rows
    if waiting:
        yield waiting


def chunk_columns(job: Job, space: Space, grids: Sequence[Grid]) -> LayoutColumns:
    """The rows of several combinations, one after the other."""
    shapes = [grid.shape for grid in grids]
    counts = [grid.rows for grid in grids]
    values: dict[str, Any] = {
        name: np.repeat(np.array([grid.degrees[name] for grid in grids], np.float64), counts)
        for name in grids[0].degrees
    }
    for place, names in enumerate(AXES):
        settings = np.array([row for grid in grids for row in grid.axes[place]])
        starts = np.cumsum([0, *(shape[place] for shape in shapes)])[:-1]
        which = np.concatenate([_product(shape)[place] + start for shape, start in zip(shapes, starts, strict=True)])
        values |= {name: settings[which, k] for k, name in enumerate(names)}
    values["split"] = values["split"].astype(np.intp)
    values |= _fixed(job) | split_table([split.layers for split in space.splits])
    values.setdefault("microbatch_group_size_per_vp_stage", _groups(job, values))
    return LayoutColumns.build(num_layers=job.model.num_layers, rank_orders=space.rank_orders, **values)


@lru_cache(maxsize=256)
def _product(shape: tuple[int, ...]) -> NDArray[np.intp]:
    """Setting of each axis in each row of a product, (axes, rows), the last axis varying fastest."""
    return np.indices(shape, np.intp).reshape(len(shape), -1)


def _groups(job: Job, values: dict[str, Any]) -> Floats:
    """Microbatches that a chunk runs before the next: pp, or where Megatron refuses that the next size it takes."""
    pp = values["pp"]
    microbatches = job.training.global_batch_size / (values["micro_batch_size"] * values["dp"])
    refused = (values["schedule"] == SCHEDULES.index("interleaved")) & (microbatches > pp) & (microbatches % pp > 0)
    rows = np.flatnonzero(refused & (microbatches == np.floor(microbatches)))
    if not len(rows):
        return np.asarray(pp)
    first, of_row = equal_runs([microbatches[rows], pp[rows]])
    counts = zip(microbatches[rows[first]].tolist(), pp[rows[first]].tolist(), strict=True)
    found = pp.copy()
    found[rows] = np.array([least_group_size(int(m), int(p)) for m, p in counts], np.float64)[of_row]
    return np.asarray(found)


def _fixed(job: Job) -> dict[str, Any]:
    """Keys that are no dimension: the pin, or the framework's habit."""
    pins = job.pins
    fixed: dict[str, Any] = dict(overlap_keys(job.training.framework))
    names = (
        "microbatch_group_size_per_vp_stage",
        *("overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_ep"),
        *("offload_optimizer", "offload_activations"),
    )
    return fixed | {name: getattr(pins, name) for name in names if getattr(pins, name) is not None}
