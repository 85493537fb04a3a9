"""The layout of a row: degrees, batch, schedule, sharding and recompute, completed where the row is silent."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from tpdpdash.compare.cells import Cells, UnreadableRowError
from tpdpdash.compare.conditions import MAX_BATCH, MAX_DEVICES
from tpdpdash.compare.notes import (
    expert_tp,
    has_flag,
    is_megatron_command_line,
    option,
    shard_group,
    whole_option,
)
from tpdpdash.layout.layout import SCHEDULES, Layout, LayoutPins
from tpdpdash.layout.resolve import draft_layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

MAX_STAGES, MAX_CHUNKS = 4096, 512
RECOMPUTES = {"none": "none", "selective": "selective", "full": "full", "uniform": "full", "block": "full"}
SCHEDULE_WORDS = {"zbv": "zb-v", "zb-1": "zb-1p", "zb-2": "zb-2p", "1f1b-i": "interleaved", "dualpipev": "dualpipe-v"}
ZERO_WORDS = {"fsdp": 3, "hsdp": 3, "fsdp1": 3, "fsdp2": 3, "ddp": 0, "none": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How many devices there are and how the batch is divided over them."""

    tp: int
    """Tensor parallel."""
    cp: int
    """Context parallel."""
    pp: int
    """Pipeline parallel."""
    dp: int
    """Data parallel."""
    micro_batch_size: int
    """Sequences of a microbatch."""
    global_batch_size: int
    """Sequences of a step."""

    @property
    def num_devices(self) -> int:
        """World size."""
        return self.tp * self.cp * self.pp * self.dp


def degrees_of(cells: Cells) -> Degrees:
    """Degrees and batch. Where the stated figures contradict each other, the world size decides dp; where the other
    degrees do not divide the world, they decide the world."""
    tp, cp, pp = (_degree(cells, name) for name in ("tp", "cp", "pp"))
    stated_dp, world = cells.whole("dp", MAX_DEVICES), cells.whole("num_gpus", MAX_DEVICES)
    split = tp * cp * pp
    dp = stated_dp or 1
    if not world:
        cells.infer("num_gpus")
        if not stated_dp:
            cells.infer("dp")
    elif world % split:
        cells.infer("num_gpus")
    else:
        dp = world // split
        if stated_dp != dp:
            cells.infer("dp")
    micro, batch = _batch(cells, dp)
    return Degrees(tp=tp, cp=cp, pp=pp, dp=dp, micro_batch_size=micro, global_batch_size=batch)


def _degree(cells: Cells, name: str) -> int:
    value = cells.whole(name, MAX_STAGES)
    if not value:
        cells.infer(name)
    return value or 1


def _batch(cells: Cells, dp: int) -> tuple[int, int]:
    """(micro-batch, global batch). One that is missing is taken from the other; a replica gets one microbatch at
    least."""
    micro, batch = cells.whole("micro_batch", MAX_BATCH), cells.whole("global_batch", MAX_BATCH)
    if not micro:
        cells.infer("micro_batch")
        micro = 1
    if not batch:
        cells.infer("global_batch")
        batch = micro * dp
    if batch < micro * dp:
        cells.infer("micro_batch")
        micro = max(1, batch // dp)
    if batch % (micro * dp):
        cells.infer("global_batch")
        batch = max(1, round(batch / (micro * dp))) * micro * dp
    return micro, batch


def layout_of(cells: Cells, degrees: Degrees, model: ModelSpec, training: Training, devices_per_node: int) -> Layout:
    """The complete layout: what the row states, what its framework does by habit, and design defaults for the rest."""
    given: dict[str, Any] = {name: getattr(degrees, name) for name in ("tp", "cp", "pp", "dp", "micro_batch_size")}
    given |= _expert_pins(cells, degrees, model)
    given |= _pipeline_pins(cells, degrees, model)
    given |= _shard_pins(cells, degrees, training, devices_per_node)
    given |= _recompute_pins(cells)
    given |= _overlap_pins(cells)
    return draft_layout(LayoutPins(**given), model, training, degrees.num_devices).layout


def _expert_pins(cells: Cells, degrees: Degrees, model: ModelSpec) -> dict[str, Any]:
    """Expert degrees. A Megatron command line splits experts over TP unless it says otherwise; recipes do not, where
    they spread experts over ranks. A degree that does not divide experts and ranks is cut down to one that does."""
    if not model.is_moe:
        return {}
    notes, spread = cells.text("notes"), degrees.tp * degrees.cp * degrees.dp
    stated = cells.whole("ep", MAX_DEVICES)
    if not stated:
        cells.infer("ep")
        stated = model.num_experts if "DeepEP" in notes else 1
    etp = expert_tp(notes)
    if etp is None and degrees.tp > 1:
        cells.infer("etp")
    etp = etp or (1 if stated > 1 and not is_megatron_command_line(notes) else degrees.tp)
    etp = gcd(etp, spread)
    ep = gcd(stated, model.num_experts, spread // etp)
    if ep != stated:
        cells.infer("ep")
    return {"ep": ep, "etp": etp}


def _pipeline_pins(cells: Cells, degrees: Degrees, model: ModelSpec) -> dict[str, Any]:
    """Schedule, chunks and layer split. Layers that divide over the stages only with embedding and loss counted as a
    layer each are split so (Megatron's account-for flags, BigScience's and the zero-bubble paper's habit)."""
    if degrees.pp == 1:
        return {"num_model_chunks": 1}
    chunks = cells.whole("vpp", MAX_CHUNKS) or 1
    stated = cells.word("schedule")
    schedule = SCHEDULE_WORDS.get(stated, stated)
    if schedule == "interleaved" and chunks == 1:
        cells.infer("vpp")
        chunks = _likely_chunks(model.num_layers, degrees.pp)
    if (
        schedule not in SCHEDULES
        or schedule == "none"
        or (schedule == "1f1b" and chunks > 1)
        or (schedule == "interleaved" and chunks == 1)
    ):
        cells.infer("schedule")
        schedule = "interleaved" if chunks > 1 else "1f1b"
    pins: dict[str, Any] = {"num_model_chunks": chunks, "schedule": schedule}
    first = whole_option(cells.text("notes"), "decoder-first-pipeline-num-layers")
    if first:
        return {**pins, "first_stage_layers": first}
    if model.num_layers % degrees.pp:
        cells.infer("layers_per_stage")
        if (model.num_layers + 2) % degrees.pp == 0:
            pins |= {"account_for_embedding": True, "account_for_loss": True}
    return pins


def _likely_chunks(num_layers: int, pp: int) -> int:
    """Chunks of an interleaved schedule that does not say how many: as few as divide a stage's layers, 2 or more."""
    each = max(1, num_layers // pp)
    return next((chunks for chunks in range(2, each + 1) if each % chunks == 0), 1)


def _shard_pins(cells: Cells, degrees: Degrees, training: Training, devices_per_node: int) -> dict[str, Any]:
    """ZeRO stage and the ranks that it shards over: HSDP over a node unless said."""
    cell, notes = cells.word("zero_stage_or_fsdp"), cells.text("notes")
    zero = ZERO_WORDS.get(cell)
    if zero is None:
        zero = cells.whole("zero_stage_or_fsdp", 3)
    if zero is None:
        cells.infer("zero_stage_or_fsdp")
        zero = 3 if training.framework in ("fsdp1", "fsdp2", "jax") else 1
    pins: dict[str, Any] = {"zero_stage": zero}
    instances = whole_option(notes, "num-distributed-optimizer-instances") or 1
    size = cells.whole("dp_shard_size", MAX_DEVICES) or shard_group(notes)
    if not size and cell == "hsdp":
        cells.infer("dp_shard_size")
        size = devices_per_node
    size = min(size or degrees.dp // instances, degrees.dp)
    if size > 0 and degrees.dp % size == 0:
        pins["dp_shard_size"] = size
    if "full CPU offload" in notes:
        pins["offload_optimizer"] = True
    return pins


def _recompute_pins(cells: Cells) -> dict[str, Any]:
    stated = cells.word("recompute")
    if stated not in RECOMPUTES:
        if stated:
            raise UnreadableRowError("bad_value", "recompute", stated)
        cells.infer("recompute")
    pins: dict[str, Any] = {"recompute": RECOMPUTES.get(stated, "none")}
    notes = cells.text("notes")
    method, layers = option(notes, "recompute-method"), whole_option(notes, "recompute-num-layers")
    if pins["recompute"] == "full" and method in ("uniform", "block"):
        pins |= {"recompute_method": method, "recompute_num_layers": layers or 1}
    return pins


def _overlap_pins(cells: Cells) -> dict[str, Any]:
    """Sequence parallelism and overlap. A Megatron command line overlaps only what it names."""
    pins: dict[str, Any] = {}
    sequence = cells.flag("sequence_parallel")
    if sequence is None:
        cells.infer("sequence_parallel")
    else:
        pins["sequence_parallel"] = sequence
    if cells.flag("async_tp"):
        pins["overlap_tp"] = True
    notes = cells.text("notes")
    if is_megatron_command_line(notes):
        pins["overlap_grad_reduce"] = has_flag(notes, "overlap-grad-reduce")
        pins["overlap_param_gather"] = has_flag(notes, "overlap-param-gather")
    return pins
