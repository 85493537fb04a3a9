"""The space of layouts of a job, as chunks of columns with bounded memory.

Every key that is pinned is fixed; every other one is a dimension: tp, cp, pp, ep, etp, micro-batch, chunks, ZeRO,
recompute, sequence parallelism. dp is what the world leaves. A flag that changes no figure is no dimension: sequence
parallelism at tp 1, ZeRO at one replica, chunks at one stage, etp at tp 1, experts of a dense model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tpdpdash.faults import InvalidInputError
from tpdpdash.job import Job
from tpdpdash.layout.columns import RECOMPUTE_METHODS, LayoutColumns
from tpdpdash.layout.frameworks import known_framework, overlap_keys
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER, RECOMPUTES, SCHEDULES, LayoutPins
from tpdpdash.layout.resolve import draft_layout
from tpdpdash.units import divisors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CHUNK_ROWS = 16384
"""Rows evaluated at once: their columns stay in the processor's cache."""
MIN_TOKENS_PER_CONTEXT_RANK = 4096
"""Without a pin, context parallelism is searched as long as every rank keeps this many tokens of a sequence, from
16,384 tokens on: below, it only divides work that tensor and data parallelism divide better."""
LONG_SEQUENCE = 16384
MAX_CONTEXT_PARALLEL = 64
ACCOUNTS = ("account_for_embedding", "account_for_loss")
ZERO_STAGES = (0.0, 1.0, 2.0, 3.0)
STATES_ONLY = (0.0, 1.0)
SHARDS_WITHOUT_PIPELINE = frozenset({"megatron-core"})
"""Frameworks whose ZeRO 2 and 3 are searched without a pipeline only. Megatron-Core's distributed optimizer is ZeRO 1;
2 and 3 are Megatron-FSDP (--data-parallel-sharding-strategy optim_grads, optim_grads_params), which its guide names as
compatible with TP, CP and EP. A pin asks for the others all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One combination of degrees and the values of the other dimensions under it."""

    degrees: dict[str, int]
    """tp, cp, pp, dp, ep, etp."""
    choices: dict[str, tuple[float, ...]]
    """Values of each other dimension; their product is the rows."""

    @property
    def rows(self) -> int:
        """Layouts of this combination."""
        count = 1
        for values in self.choices.values():
            count *= len(values)
        return count


def layout_grids(job: Job) -> list[Grid]:
    """All combinations of degrees, ordered by pp, so that a chunk's stages are about as many.

    Raises InvalidInputError when the pinned degrees do not make up the world.
    """
    model, training, pins = job.model, job.training, job.pins
    world = job.cluster.world_size
    grids = []
    for pp in _degrees(pins.pp, world, model.num_layers):
        for tp in _degrees(pins.tp, world // pp, model.num_attention_heads):
            for cp in _context_degrees(pins, training.seq_len, world // (pp * tp)):
                dp = world // (pp * tp * cp)
                if pins.dp not in (None, dp) or pp * tp * cp * dp != world:
                    continue
                for ep, etp in _expert_degrees(job, tp, tp * cp * dp):
                    degrees = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "etp": etp}
                    grids.append(Grid(degrees=degrees, choices=_choices(job, degrees)))
    if not grids:
        draft = draft_layout(pins, model, training, world)
        raise InvalidInputError(draft.faults)
    return grids


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


def _choices(job: Job, degrees: dict[str, int]) -> dict[str, tuple[float, ...]]:
    """Values of the other dimensions under one combination of degrees."""
    pins = job.pins
    alone = degrees["dp"] * degrees["cp"] == 1
    recompute = range(len(RECOMPUTES)) if pins.recompute is None else (RECOMPUTES.index(pins.recompute),)
    states_only = degrees["pp"] > 1 and known_framework(job.training.framework) in SHARDS_WITHOUT_PIPELINE
    zero = (1.0,) if alone else STATES_ONLY if states_only else ZERO_STAGES
    sequence = (True, False) if degrees["tp"] > 1 else (False,)
    return {
        "micro_batch_size": _micro_batches(job, degrees["dp"]),
        "num_model_chunks": _chunks(job, degrees["pp"]),
        "zero_stage": zero if pins.zero_stage is None else (float(pins.zero_stage),),
        "recompute": tuple(float(code) for code in recompute),
        "sequence_parallel": sequence if pins.sequence_parallel is None else (pins.sequence_parallel,),
    }


def _micro_batches(job: Job, dp: int) -> tuple[float, ...]:
    """Sequences of a microbatch: divisors of a replica's share; one row where the batch does not divide (refused)."""
    if job.pins.micro_batch_size is not None:
        return (float(job.pins.micro_batch_size),)
    share, rest = divmod(job.training.global_batch_size, dp)
    return (1.0,) if rest or not share else tuple(float(size) for size in divisors(share))


def _accounts(job: Job, pp: int) -> tuple[bool, bool]:
    """(account_for_embedding, account_for_loss): as pinned; else set where the layers do not divide and embedding and
    loss, or the loss alone, fill the gap (126 layers on 16 stages, 61 on 31), so that stages can have chunks."""
    pins = job.pins
    split = (pins.layers_per_stage, pins.first_stage_layers, pins.last_stage_layers)
    flags = (pins.account_for_embedding, pins.account_for_loss)
    layers = job.model.num_layers
    if flags != (None, None) or any(given is not None for given in split) or pp == 1 or not layers % pp:
        return bool(flags[0]), bool(flags[1])
    if (layers + 2) % pp == 0 and layers + 2 > pp:
        return True, True
    return False, (layers + 1) % pp == 0 and layers + 1 > pp


def _chunks(job: Job, pp: int) -> tuple[float, ...]:
    """Model chunks: divisors of a stage's layers where stages are even (embedding and loss counted where they are
    layers of the split); no chunks under a schedule without them."""
    pins = job.pins
    if pins.num_model_chunks is not None:
        return (float(pins.num_model_chunks),)
    layers, rest = divmod(job.model.num_layers + sum(_accounts(job, pp)), pp)
    uneven = rest or any(
        getattr(pins, name) is not None for name in ("layers_per_stage", "first_stage_layers", "last_stage_layers")
    )
    if pp == 1 or uneven or pins.schedule not in (None, "interleaved"):
        return (1.0,)
    chunks = tuple(float(v) for v in divisors(layers))
    return chunks if pins.schedule is None else chunks[1:] or (1.0,)


def layout_space(job: Job, grids: list[Grid] | None = None, chunk_rows: int = CHUNK_ROWS) -> Iterator[LayoutColumns]:
    """The job's layouts in chunks of about `chunk_rows`."""
    waiting: list[Grid] = []
    rows = 0
    for grid in layout_grids(job) if grids is None else grids:
        waiting.append(grid)
        rows += grid.rows
        if rows >= chunk_rows:
            yield _columns(job, waiting)
            waiting, rows = [], 0
    if waiting:
        yield _columns(job, waiting)


def _columns(job: Job, grids: list[Grid]) -> LayoutColumns:
    """The rows of several combinations, one after the other."""
    counts = np.array([grid.rows for grid in grids])
    values: dict[str, Any] = {
        name: np.repeat(np.array([grid.degrees[name] for grid in grids], np.float64), counts)
        for name in ("tp", "cp", "pp", "dp", "ep", "etp")
    }
    products = [np.meshgrid(*grid.choices.values(), indexing="ij") for grid in grids]
    for k, name in enumerate(grids[0].choices):
        values[name] = np.concatenate([product[k].reshape(-1) for product in products])
    values |= _fixed(job)
    if job.pins.schedule is not None:
        values["schedule"] = np.where(values["pp"] > 1, SCHEDULES.index(job.pins.schedule), SCHEDULES.index("none"))
    layers, mask, accounts = _stages(job, values["pp"])
    values |= accounts
    order = (job.pins.rank_order or DEFAULT_RANK_ORDER,)
    return LayoutColumns.build(
        num_layers=job.model.num_layers, rank_orders=order, stage_layers=layers, stage_mask=mask, **values
    )


def _fixed(job: Job) -> dict[str, Any]:
    """Keys that are no dimension: the pin, or the framework's habit."""
    pins = job.pins
    fixed: dict[str, Any] = dict(overlap_keys(job.training.framework))
    names = (
        *("microbatch_group_size_per_vp_stage", "dp_shard_size", "recompute_num_layers"),
        *("overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "offload_optimizer", "offload_activations"),
    )
    fixed |= {name: getattr(pins, name) for name in names if getattr(pins, name) is not None}
    if pins.recompute_method is not None:
        fixed["recompute_method"] = RECOMPUTE_METHODS.index(pins.recompute_method)
    return fixed


def _stages(job: Job, pp: Floats) -> tuple[Floats, NDArray[np.bool_], dict[str, NDArray[np.bool_]]]:
    """(layers of each row's stages, which exist, what the split accounts for): the split that resolving a Job gives,
    once for each pp, gathered to the rows."""
    depths, which = np.unique(pp, return_inverse=True)
    widest = int(depths[-1])
    table = np.zeros((len(depths), widest))
    mask = np.zeros((len(depths), widest), np.bool_)
    flags = np.array([_accounts(job, int(depth)) for depth in depths], np.bool_)
    accounts = {name: flags[which, k] for k, name in enumerate(ACCOUNTS)}
    for row, depth in enumerate(depths):
        given = _split_pins(job.pins) | dict(zip(ACCOUNTS, map(bool, flags[row]), strict=True))
        split = replace(LayoutPins(), pp=int(depth), **given)
        layers = draft_layout(split, job.model, job.training, None).layout.layers_per_stage
        known = layers[: int(depth)]
        table[row, : len(known)] = known
        mask[row, : int(depth)] = True
    return table[which], mask[which], accounts


def _split_pins(pins: LayoutPins) -> dict[str, Any]:
    """The pins that decide the stage split."""
    names = ("layers_per_stage", "first_stage_layers", "last_stage_layers")
    return {name: getattr(pins, name) for name in names if getattr(pins, name) is not None}
