"""Values of the dimensions under one combination of degrees: everything about a layout that is no degree.

Dimensions that decide each other stand in one axis (the schedule, its chunks and the split; ZeRO and its shards). Axes
are ordered from what changes a layer's passes to what changes only where states live, which varies fastest.
"""

from __future__ import annotations

import math

from tpdpdash.job import Job
from tpdpdash.layout.columns import RECOMPUTE_METHODS
from tpdpdash.layout.frameworks import MEGATRON, MEGATRON_OF_2022, PIPELINE_WITHOUT_ZERO_2, known_framework
from tpdpdash.layout.layout import RECOMPUTES, SCHEDULES
from tpdpdash.layout.placement import domain_block
from tpdpdash.layout.prediction import mtp_layers
from tpdpdash.layout.schedules import SCHEDULE_FACTS, schedules_of
from tpdpdash.layout.shard_rules import ZERO_STAGES
from tpdpdash.search.splits import Split, splits_of
from tpdpdash.units import ceil_div, divisors

AXES = (
    ("micro_batch_size",),
    ("sequence_parallel",),
    ("rank_order",),
    ("recompute", "recompute_num_layers", "recompute_method"),
    ("schedule", "num_model_chunks", "split", "account_for_embedding", "account_for_loss"),
    ("zero_stage", "dp_shard_size"),
)
"""Columns of each axis, the slowest axis first."""
Settings = tuple[tuple[float, ...], ...]
"""The rows of one axis: values of its columns."""

STATES_ONLY = (0, 1)
SHARDS_WITHOUT_PIPELINE = PIPELINE_WITHOUT_ZERO_2 | {"megatron-core"}
"""Frameworks whose ZeRO 2 and 3 are searched without a pipeline only: those that refuse the two together, and
Megatron-Core, whose distributed optimizer is ZeRO 1; 2 and 3 are Megatron-FSDP (--data-parallel-sharding-strategy
optim_grads, optim_grads_params), which its guide names as compatible with TP, CP and EP. A pin asks for the others all
the same."""
SHARDS_IN_PART = frozenset({"megatron-core", "deepspeed", "fsdp1", "fsdp2", "jax"})
"""Frameworks that can shard over a part of the replicas: --num-distributed-optimizer-instances, MiCS, HYBRID_SHARD,
a mesh of two data axes."""
OFFLOADS = frozenset({"megatron-core", "megatron-deepspeed", "deepspeed", "fsdp1", "fsdp2"})
"""Frameworks that can keep the optimizer's states in host memory: --optimizer-cpu-offload, ZeRO-Offload, CPUOffload."""
BLOCK_SHARES = (0.25, 0.5, 0.75)
"""Of a stage's layers, those that recompute under full recompute by the block method, besides all of them."""
UNIFORM_BLOCKS = (2, 4)
"""Layers that recompute from one kept input by the uniform method, besides one."""
ALL_LAYERS = math.nan


def offloads(job: Job) -> bool:
    """Whether the job's framework can keep the optimizer's states in host memory."""
    return known_framework(job.training.framework) in OFFLOADS


def micro_batches(job: Job, dp: int) -> Settings:
    """Sequences of a microbatch: divisors of a replica's share; one row where the batch does not divide (refused)."""
    if job.pins.micro_batch_size is not None:
        return ((float(job.pins.micro_batch_size),),)
    share, rest = divmod(job.training.global_batch_size, dp)
    return ((1.0,),) if rest or not share else tuple((float(size),) for size in divisors(share))


def sequence_splits(job: Job, tp: int) -> Settings:
    """Sequence parallelism: on and off where there is tensor parallelism."""
    if job.pins.sequence_parallel is not None:
        return ((float(job.pins.sequence_parallel),),)
    return ((1.0,), (0.0,)) if tp > 1 else ((0.0,),)


def recomputes(job: Job, pp: int) -> Settings:
    """(form, layers that recompute, method): every form over all layers; with Megatron's methods also full recompute of
    some of a stage's layers (block), or of several from one input (uniform)."""
    pins = job.pins
    forms = RECOMPUTES if pins.recompute is None else (pins.recompute,)
    method = float(RECOMPUTE_METHODS.index(pins.recompute_method or "uniform"))
    number = ALL_LAYERS if pins.recompute_num_layers is None else float(pins.recompute_num_layers)
    found = [(float(RECOMPUTES.index(form)), number, method) for form in forms]
    partial = known_framework(job.training.framework) in MEGATRON and pins.recompute_num_layers is None
    if "full" in forms and partial:
        layers = ceil_div(job.model.num_layers, pp)
        numbers = {"uniform": UNIFORM_BLOCKS, "block": sorted({round(share * layers) for share in BLOCK_SHARES})}
        found += [
            (float(RECOMPUTES.index("full")), float(number), float(RECOMPUTE_METHODS.index(name)))
            for name in RECOMPUTE_METHODS
            if pins.recompute_method in (None, name)
            for number in numbers[name]
            if 1 <= number < layers
        ]
    return tuple(found)


def pipelines(job: Job, pp: int, split_code: dict[Split, int]) -> Settings:
    """(schedule, chunks, split, what it accounts for): every split under each schedule, interleaved with every number
    of chunks that divides the stages. split_code: numbers of the splits, to which new ones are added."""
    asked = [
        (schedule, chunks, split)
        for schedule in _schedules(job, pp)
        for split in splits_of(job, pp, schedule)
        for chunks in _chunks(job, pp, schedule, split)
    ]
    if not asked:  # what is pinned and cannot be stands there once, to be refused
        chunks = job.pins.num_model_chunks or 1
        schedule = job.pins.schedule or ("interleaved" if chunks > 1 else "1f1b")
        asked = [(schedule, chunks, splits_of(job, pp, schedule)[0])]
    return tuple(
        (
            float(SCHEDULES.index(schedule)),
            float(chunks),
            float(split_code.setdefault(split, len(split_code))),
            float(split.account_for_embedding),
            float(split.account_for_loss),
        )
        for schedule, chunks, split in asked
    )


def _schedules(job: Job, pp: int) -> tuple[str, ...]:
    if pp == 1:
        return ("none",)
    return schedules_of(job.training.framework) if job.pins.schedule is None else (job.pins.schedule,)


def _chunks(job: Job, pp: int, schedule: str, split: Split) -> list[int]:
    """Model chunks to try: what the schedule needs, or the divisors of the stages; the pin where it is one of them."""
    needed, pinned = SCHEDULE_FACTS[schedule].num_model_chunks, job.pins.num_model_chunks
    dividing = divisors(split.common_units(mtp_layers(job.model, job.training)))[1:] if len(split.layers) == pp else []
    wanted = dividing if needed is None else [needed]
    if pinned is None or pinned in wanted:
        return wanted if pinned is None else [pinned]
    return [pinned] if job.pins.schedule is not None or pp == 1 else []


def shards(job: Job, degrees: dict[str, int]) -> Settings:
    """(ZeRO stage, ranks over which it shards): all replicas, or those of one node or one scale-up domain (HSDP)."""
    pins, dp, framework = job.pins, degrees["dp"], known_framework(job.training.framework)
    states_only = framework in MEGATRON_OF_2022 or (degrees["pp"] > 1 and framework in SHARDS_WITHOUT_PIPELINE)
    stages: tuple[int, ...] = (1,) if dp * degrees["cp"] == 1 else STATES_ONLY if states_only else ZERO_STAGES
    if pins.zero_stage is not None:
        stages = (pins.zero_stage,)
    if pins.dp_shard_size is not None:
        return tuple((float(stage), float(pins.dp_shard_size)) for stage in stages)
    blocks = {job.cluster.devices_per_node, domain_block(job.cluster)} if framework in SHARDS_IN_PART else set()
    inside = {block // (degrees["tp"] * degrees["cp"]) for block in blocks}
    sizes = [dp, *sorted(size for size in inside if 1 < size < dp and dp % size == 0)]
    return tuple((float(stage), float(size)) for size in sizes for stage in stages if stage or size == dp)
