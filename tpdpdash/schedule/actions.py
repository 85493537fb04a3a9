"""Action lists: in which order each pipeline rank runs its forwards and backwards, as Megatron-LM orders them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.layout.pipeline_rules import PRICED_SCHEDULES, nearest_group_sizes
from tpdpdash.layout.world import range_faults


class Action(NamedTuple):
    """One forward or backward of one microbatch through one model chunk."""

    kind: Literal["F", "B"]
    """Forward or backward."""
    chunk: int
    """Model chunk on this rank, from 0; model part = chunk · pp + rank."""
    microbatch: int
    """Microbatch, from 0."""


def schedule_actions(
    schedule: str, pp: int, num_microbatches: int, num_model_chunks: int = 1, group: int | None = None
) -> list[list[Action]]:
    """The actions of each rank, in order. `group`: microbatches that a chunk runs before the next one; pp unless given.

    Raises InvalidInputError for a schedule without action lists here, and where Megatron refuses the numbers.
    Source: Megatron-LM schedules.py; golden: pp_truth.jsonl.
    """
    faults = schedule_faults(schedule, pp, num_microbatches, num_model_chunks, group)
    if faults:
        raise InvalidInputError(faults)
    if schedule == "interleaved":
        return _interleaved(pp, num_microbatches, num_model_chunks, group or pp)
    if schedule == "gpipe":
        return [_forwards(num_microbatches) + _backwards(num_microbatches) for _ in range(pp)]
    return [_one_f_one_b(warmup_microbatches(pp, rank, num_microbatches), num_microbatches) for rank in range(pp)]


def warmup_microbatches(
    pp: int,
    rank: int,
    num_microbatches: int,
    num_model_chunks: int = 1,
    group: int | None = None,
    *,
    overlap_expert_messages: bool = False,
) -> int:
    """Forwards (of a chunk) that a rank runs before its first backward; Megatron overlaps expert messages by one more.

    1F1B: pp − rank − 1. Interleaved: 2·(pp − rank − 1) + (v − 1)·group. Never more than there are.
    Source: Megatron-LM schedules.py, get_pp_rank_microbatches.
    """
    later = pp - rank - 1
    if num_model_chunks == 1:
        return min(later, num_microbatches)
    warmup = 2 * later + (num_model_chunks - 1) * (group or pp) + overlap_expert_messages
    return min(warmup, num_microbatches * num_model_chunks)


def schedule_table(num_microbatches: int, num_model_chunks: int, group: int) -> list[tuple[int, int]]:
    """The order of (microbatch, chunk) in which an interleaved rank runs its forwards.

    Source: Megatron-LM schedules.py, get_schedule_table.
    """
    return [
        (microbatch, chunk)
        for first in range(0, num_microbatches, group)
        for chunk in range(num_model_chunks)
        for microbatch in range(first, min(first + group, num_microbatches))
    ]


def schedule_faults(
    schedule: str, pp: int, num_microbatches: int, num_model_chunks: int, group: int | None
) -> list[Fault]:
    """What no action list can be made of."""
    counts = {"pp": pp, "num_microbatches": num_microbatches, "num_model_chunks": num_model_chunks}
    faults = range_faults(counts)
    if schedule not in PRICED_SCHEDULES:
        nearest = "1f1b" if num_model_chunks == 1 else "interleaved"
        return [_fault("schedule", "schedule_not_priced", schedule, choices=PRICED_SCHEDULES, nearest=nearest)]
    if faults:
        return faults
    if schedule == "interleaved" and pp == 1:
        return [_fault("schedule", "interleaved_without_pipeline", schedule, pp=pp, nearest="none")]
    if schedule == "interleaved":
        return _group_faults(pp, num_microbatches, pp if group is None else group)
    if num_model_chunks > 1:
        code = "chunks_without_interleaving"
        return [_fault("num_model_chunks", code, num_model_chunks, schedule=schedule, nearest=1)]
    return []


def _group_faults(pp: int, num_microbatches: int, group: int) -> list[Fault]:
    name, m = "microbatch_group_size_per_vp_stage", num_microbatches
    if m < pp:
        values = {"microbatches": m, "pp": pp, "nearest": "1f1b", "nearest_batch": pp}
        return [_fault("schedule", "interleaved_few_microbatches", "interleaved", **values)]
    nearest = nearest_group_sizes(m, pp, min(max(group, pp), m))
    if not pp <= group <= m:
        return [_fault(name, "group_size_out_of_range", group, low=pp, high=m, nearest=nearest)]
    if group in nearest:
        return []
    left = m % group
    values = {"microbatches": m, "remainder": left, "pp": pp, "nearest": nearest}
    return [_fault(name, "group_remainder", group, **values, nearest_batch=(m - left, m - left + group))]


def _fault(name: str, code: str, value: object, **values: object) -> Fault:
    return Fault(code=code, field=f"layout.{name}", value=value, values=values)


def _forwards(count: int) -> list[Action]:
    return [Action("F", 0, microbatch) for microbatch in range(count)]


def _backwards(count: int) -> list[Action]:
    return [Action("B", 0, microbatch) for microbatch in range(count)]


def _one_f_one_b(warmup: int, num_microbatches: int) -> list[Action]:
    return _merged(_forwards(num_microbatches), _backwards(num_microbatches), warmup)


def _merged(forwards: list[Action], backwards: list[Action], warmup: int) -> list[Action]:
    """Warm-up forwards, then one forward and one backward in turn, then the backwards that are left."""
    remaining = len(forwards) - warmup
    steady = [action for pair in zip(forwards[warmup:], backwards[:remaining], strict=True) for action in pair]
    return forwards[:warmup] + steady + backwards[remaining:]


def _interleaved(pp: int, num_microbatches: int, num_model_chunks: int, group: int) -> list[list[Action]]:
    table = schedule_table(num_microbatches, num_model_chunks, group)
    forwards = [Action("F", chunk, microbatch) for microbatch, chunk in table]
    backwards = [Action("B", num_model_chunks - 1 - chunk, microbatch) for microbatch, chunk in table]
    warmups = [warmup_microbatches(pp, rank, num_microbatches, num_model_chunks, group) for rank in range(pp)]
    return [_merged(forwards, backwards, warmup) for warmup in warmups]
