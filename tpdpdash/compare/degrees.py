"""The degrees and the batch of a row, made to agree where it is silent or contradicts itself."""

from __future__ import annotations

from dataclasses import dataclass

from tpdpdash.compare.architecture import num_experts_of
from tpdpdash.compare.cells import Cells
from tpdpdash.compare.conditions import MAX_BATCH, MAX_DEVICES, MAX_SEQUENCE, SEQ_LEN
from tpdpdash.compare.table import TOTAL_SPEED
from tpdpdash.units import ceil_div

MAX_STAGES = 4096
ACCUMULATION = ("gradient_accumulation_steps", "gradient_accumulation", "grad_accum", "accum", "num_microbatches")
"""Columns that state the microbatches of a step."""
SPEED_ROUNDING = 0.05
"""By how much a printed time and a printed speed may contradict each other."""
FULL_DEVICE_TOKENS = 16_384
"""Tokens of a microbatch with which a device's products reach their speed; more gain nothing."""


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
            dp = (
                _replicas_by_accumulation(cells) or _replicas_by_speed(cells, split) or _expert_replicas(cells, tp * cp)
            )
    elif world % split:
        cells.infer("num_gpus")
    else:
        dp = world // split
        if stated_dp != dp:
            cells.infer("dp")
    micro, batch = _batch(cells, dp, pp)
    return Degrees(tp=tp, cp=cp, pp=pp, dp=dp, micro_batch_size=micro, global_batch_size=batch)


def _replicas_by_accumulation(cells: Cells) -> int | None:
    """Data parallel ranks by which a global batch is micro-batch · microbatches · ranks; None where one of these is not
    stated, or they do not divide."""
    batch, micro = cells.whole("global_batch", MAX_BATCH), cells.whole("micro_batch", MAX_BATCH)
    steps = next((n for name in ACCUMULATION if (n := cells.whole(name, MAX_BATCH))), None)
    if not (batch and micro and steps) or batch % (micro * steps):
        return None
    replicas = batch // (micro * steps)
    return replicas if replicas <= MAX_DEVICES else None


def _replicas_by_speed(cells: Cells, split: int) -> int | None:
    """Data parallel ranks as the tokens per second of all devices and of each make them; None where one of these is not
    stated, or where they make no whole number."""
    total, speed = _tokens_per_s(cells), cells.measured("tokens_per_sec_per_gpu")
    if not (total and speed):
        return None
    replicas = total / speed / split
    whole = round(replicas)
    return whole if 1 <= whole <= MAX_DEVICES and abs(replicas / whole - 1) <= SPEED_ROUNDING else None


def _tokens_per_s(cells: Cells) -> float | None:
    """Tokens per second of all devices: as stated, else of a batch in its time."""
    stated = cells.measured(TOTAL_SPEED)
    if stated:
        return stated
    step_s = cells.measured("step_time_s")
    batch, seq_len = cells.whole("global_batch", MAX_BATCH), cells.whole("seq_len", MAX_SEQUENCE)
    return batch * seq_len / step_s if step_s and batch and seq_len else None


def _expert_replicas(cells: Cells, ranks: int) -> int:
    """Data parallel ranks that the stated expert parallel degree needs at least, of `ranks` = tp · cp."""
    return ceil_div((cells.whole("ep", MAX_DEVICES) or 1) if num_experts_of(cells) else 1, ranks)


def _degree(cells: Cells, name: str) -> int:
    value = cells.whole(name, MAX_STAGES)
    if not value:
        cells.infer(name)
    return value or 1


def _batch(cells: Cells, dp: int, pp: int) -> tuple[int, int]:
    """(micro-batch, global batch). One that is missing is taken from the other; a replica gets one microbatch at
    least."""
    micro, batch = cells.whole("micro_batch", MAX_BATCH), cells.whole("global_batch", MAX_BATCH)
    if not micro:
        cells.infer("micro_batch")
        micro = _usual_micro_batch(cells, (batch or dp) // dp) if pp == 1 else 1
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


def _usual_micro_batch(cells: Cells, per_replica: int) -> int:
    """Sequences of a microbatch where none are stated and no pipeline wants many: as many as fill a device with
    FULL_DEVICE_TOKENS, a power of two that divides the replica's batch."""
    tokens, micro = cells.whole("seq_len", MAX_SEQUENCE) or SEQ_LEN, 1
    while 2 * micro * tokens <= FULL_DEVICE_TOKENS and per_replica % (2 * micro) == 0:
        micro *= 2
    return micro
