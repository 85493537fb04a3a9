"""Rehearsal: the same layout with a shrunken model on this machine (docs/reference.md). Every change is listed.

tp, pp and dp stay as asked up to 16 ranks; above that dp is reduced first, then pp, then tp. steps never change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from tpdpdash.cluster.host import host_memory
from tpdpdash.cluster.local import cpu_cluster, with_ranks
from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.job import DEFAULT_STEPS, Job, pins_of
from tpdpdash.layout.layout import Layout, LayoutPins, Schedule
from tpdpdash.layout.prediction import mtp_layers
from tpdpdash.layout.resolve import resolve_layout
from tpdpdash.layout.schedules import NEAREST_IN_TORCH, SCHEDULE_FACTS
from tpdpdash.model.spec import ModelSpec
from tpdpdash.run.change import Change, Reason
from tpdpdash.run.shrink import shrink_model
from tpdpdash.training import Precision, Training

MAX_RANKS = 16
MAX_SEQ_LEN = 128
MAX_MICROBATCHES = 16
_ROUND_SCHEDULES = ("interleaved", "zb-1p")
"""Schedules that torch runs in rounds of equal size: ⌊m / pp⌋ of them, at least one."""
_WORKER_PRECISIONS = ("bf16", "fp16", "fp32")
_DERIVED = {"dp_shard_size": "dp", "etp": "tp", "microbatch_group_size_per_vp_stage": "pp"}
"""Layout keys that are not worth a line while they equal another one, before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A Job that this machine can run, and how it differs from the one that was asked."""

    job: Job
    """Complete: every layout key is fixed, the cluster is this machine, the framework is builtin."""
    changes: tuple[Change, ...]
    """Every difference, in the order of the Job file."""


def rehearse(job: Job, cluster: ClusterSpec) -> Rehearsal:
    """Shrink a Job to `cluster`, this machine as detected. Raises InvalidInputError when the Job itself is not legal,
    or when the built-in worker cannot run even the shrunken one."""
    asked = job.layout()
    degrees = _degrees(asked)
    num_ranks = degrees["tp"] * degrees["pp"] * degrees["dp"]
    here = _cluster(cluster, num_ranks)
    num_model_chunks = _num_model_chunks(asked, degrees["pp"])
    model = shrink_model(job.model, tp=degrees["tp"], pp=degrees["pp"], num_model_chunks=num_model_chunks)
    num_microbatches = _num_microbatches(asked, job.training.global_batch_size, degrees["pp"])
    training = _training(job.model, job.training, asked, degrees, num_microbatches, on_cpu=here.device.is_cpu)
    pins = _pins(asked, degrees, num_microbatches)
    layout = resolve_layout(pins, model, training, num_ranks, here)
    rehearsed = replace(
        job,
        model=model,
        cluster=here,
        training=training,
        pins=pins_of(layout),
        world_follows_layout=False,
        notices=(),
    )
    changes = (
        *_differences("model", job.model, model, _MODEL_REASONS, skip=frozenset({"name", "source"})),
        *_cluster_changes(job, here, asked.world_size),
        *_differences("training", job.training, training, _training_reasons(training)),
        *_layout_changes(asked, layout),
    )
    return Rehearsal(job=rehearsed, changes=changes)


def _degrees(asked: Layout) -> dict[str, int]:
    """tp, pp and dp within MAX_RANKS: dp gives way first, then pp, then tp. cp and ep are not in the worker."""
    tp = min(asked.tp, MAX_RANKS)
    pp = min(asked.pp, MAX_RANKS // tp)
    dp = min(asked.dp, MAX_RANKS // (tp * pp))
    return {"tp": tp, "pp": pp, "dp": dp}


def _num_model_chunks(asked: Layout, pp: int) -> int:
    """As asked, or as many as the nearest schedule of the worker has."""
    if pp == 1:
        return 1
    return (
        SCHEDULE_FACTS[NEAREST_IN_TORCH.get(asked.schedule, asked.schedule)].num_model_chunks or asked.num_model_chunks
    )


def _num_microbatches(asked: Layout, global_batch_size: int, pp: int) -> int:
    """As many as asked, up to MAX_MICROBATCHES or what the schedule needs; whole rounds where torch runs rounds."""
    most = max(MAX_MICROBATCHES, SCHEDULE_FACTS[asked.schedule].microbatches_per_rank * pp)
    count = min(asked.num_microbatches(global_batch_size), most)
    return count // pp * pp if asked.schedule in _ROUND_SCHEDULES and count >= pp else count


def _cluster(cluster: ClusterSpec, num_ranks: int) -> ClusterSpec:
    """As many devices of this machine as there are ranks; CPU ranks where the GPUs are too few."""
    if cluster.device.is_cpu:
        return with_ranks(cluster, num_ranks)
    if cluster.devices_per_node >= num_ranks:
        return replace(cluster, nodes=1, devices_per_node=num_ranks, scale_up_domain_size=num_ranks)
    # Named as described, not as local: to a reader on this machine "local" means its GPUs.
    return replace(cpu_cluster(host_memory(), ranks=num_ranks), asked_device="CPU")


def _training(
    model: ModelSpec, asked: Training, layout: Layout, degrees: dict[str, int], num_microbatches: int, *, on_cpu: bool
) -> Training:
    """A step that is short, in a precision and with an optimizer that the worker has."""
    seq_len = min(asked.seq_len, MAX_SEQ_LEN)
    precision: Precision = (
        "fp32" if on_cpu else "bf16" if asked.precision not in _WORKER_PRECISIONS else asked.precision
    )
    return replace(
        asked,
        seq_len=max(degrees["tp"], seq_len // degrees["tp"] * degrees["tp"]),
        global_batch_size=num_microbatches * layout.micro_batch_size * degrees["dp"],
        steps=asked.steps if asked.steps is not None else DEFAULT_STEPS,
        precision=precision,
        optimizer=asked.optimizer if asked.optimizer in ("adamw", "sgd") else "adamw",
        framework="builtin",
        dropout=0.0,
        mtp_num_layers=0 if mtp_layers(model, asked) else asked.mtp_num_layers,
        packed_seq_len=None,
        tf32=None,
        cuda_graphs="none",
        deterministic=False,
        fp8_activation_inputs=False,
        launch_blocking=False,
        recompute_modules=(),
        trainable="all",
    )


def _pins(asked: Layout, degrees: dict[str, int], num_microbatches: int) -> LayoutPins:
    """The asked layout without what the worker cannot run; the rest takes the worker's own defaults."""
    schedule: Schedule = NEAREST_IN_TORCH.get(asked.schedule, asked.schedule)
    if degrees["pp"] == 1:
        schedule = "none"
    elif schedule == "1f1b" and num_microbatches < degrees["pp"]:
        schedule = "gpipe"  # torch's 1F1B refuses fewer microbatches than stages
    return LayoutPins(
        tp=degrees["tp"],
        pp=degrees["pp"],
        dp=degrees["dp"],
        rank_order=asked.rank_order,
        micro_batch_size=asked.micro_batch_size,
        schedule=schedule,
        num_model_chunks=_num_model_chunks(asked, degrees["pp"]),
        zero_stage=asked.zero_stage if degrees["pp"] == 1 else min(asked.zero_stage, 1),
        dp_shard_size=math.gcd(asked.dp_shard_size, degrees["dp"]),
        sequence_parallel=asked.sequence_parallel and degrees["tp"] > 1,
        recompute=asked.recompute,
    )


# ------------------------------------------------------------------------------------------ changes

_SIZES = frozenset({"num_layers", "hidden_size", "num_attention_heads", "num_kv_heads", "head_dim"})
_MODEL_REASONS: dict[str, Reason] = dict.fromkeys([*_SIZES, "ffn_hidden_size", "vocab_size"], "shrunken")


def _training_reasons(rehearsed: Training) -> dict[str, Reason]:
    shrunken: dict[str, Reason] = dict.fromkeys(("seq_len", "global_batch_size"), "shrunken")
    return {**shrunken, "steps": "default", "precision": "cpu" if rehearsed.precision == "fp32" else "worker"}


def _differences(
    table: str, asked: Any, rehearsed: Any, reasons: dict[str, Reason], skip: frozenset[str] = frozenset()
) -> list[Change]:
    """One Change for each field that differs; a reason that is not given is the worker."""
    changes = []
    for field in fields(asked):
        before, after = getattr(asked, field.name), getattr(rehearsed, field.name)
        if before != after and field.name not in skip:
            reason = reasons.get(field.name, "worker")
            if reason == "shrunken" and after > before:
                reason = "worker"  # it has no replicated KV heads: there are as many as TP ranks
            changes.append(Change(key=f"{table}.{field.name}", asked=before, rehearsed=after, reason=reason))
    return changes


def _cluster_changes(job: Job, here: ClusterSpec, asked_world_size: int) -> list[Change]:
    """Another device and another number of them."""
    changes = []
    if job.cluster.device.name != here.device.name:
        names = {"asked": job.cluster.device.name, "rehearsed": here.device.name}
        changes.append(Change(key="cluster.device", **names, reason="here"))
    asked_size = (
        (1, asked_world_size) if job.world_follows_layout else (job.cluster.nodes, job.cluster.devices_per_node)
    )
    sizes = zip(("nodes", "devices_per_node"), asked_size, (here.nodes, here.devices_per_node), strict=True)
    return changes + [
        Change(key=f"cluster.{key}", asked=before, rehearsed=after, reason="here")
        for key, before, after in sizes
        if before != after
    ]


def _layout_changes(asked: Layout, rehearsed: Layout) -> list[Change]:
    reasons: dict[str, Reason] = dict.fromkeys(("tp", "pp", "dp"), "here")
    reasons |= dict.fromkeys(("layers_per_stage", "sequence_parallel"), "follows")
    if rehearsed.schedule in ("none", "gpipe"):
        reasons["schedule"] = "follows"
    equal = {
        name
        for name, other in _DERIVED.items()
        if getattr(asked, name) == getattr(asked, other) and getattr(rehearsed, name) == getattr(rehearsed, other)
    }
    unused = {"microbatch_group_size_per_vp_stage"} if asked.num_model_chunks == 1 else set()
    return _differences("layout", asked, rehearsed, reasons, skip=frozenset(equal | unused))
