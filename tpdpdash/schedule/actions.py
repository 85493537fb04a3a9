"""Action lists: in which order each pipeline rank runs its forwards and backwards, as Megatron-LM orders them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tpdpdash.layout.layout import SCHEDULES
from tpdpdash.layout.pipeline_rules import PRICED_SCHEDULES, group_fits
from tpdpdash.schedule.closed_form import warmup_forwards


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

    The numbers are those of a legal layout: `check_layout` says in words what is wrong with others; here they raise
    ValueError. Source: Megatron-LM schedules.py; golden: pp_truth.jsonl.
    """
    m, v, g = num_microbatches, num_model_chunks, pp if group is None else group
    _refuse_impossible(schedule, pp, m, v, g)
    if schedule == "gpipe":
        return [_forwards(m) + _backwards(m) for _ in range(pp)]
    table = schedule_table(m, v, g)
    forwards = [Action("F", chunk, microbatch) for microbatch, chunk in table]
    backwards = [Action("B", v - 1 - chunk, microbatch) for microbatch, chunk in table]
    code = SCHEDULES.index(schedule)
    warmups = [int(warmup_forwards(code, pp, m, v, g, rank)) for rank in range(pp)]
    return [_merged(forwards, backwards, warmup) for warmup in warmups]


def _refuse_impossible(schedule: str, pp: int, num_microbatches: int, num_model_chunks: int, group: int) -> None:
    """Numbers of which no action list can be made."""
    possible = schedule in PRICED_SCHEDULES and min(pp, num_microbatches, num_model_chunks) >= 1
    if schedule == "interleaved":
        possible = possible and pp > 1 and group_fits(num_microbatches, group, pp)
    else:
        possible = possible and num_model_chunks == 1
    if not possible:
        numbers = f"pp={pp}, num_microbatches={num_microbatches}, num_model_chunks={num_model_chunks}, group={group}"
        raise ValueError(f"schedule={schedule!r} has no action lists for {numbers}; check_layout names what is legal")


def schedule_table(num_microbatches: int, num_model_chunks: int, group: int) -> list[tuple[int, int]]:
    """The order of (microbatch, chunk) in which a rank runs its forwards; with one chunk, microbatch after microbatch.

    Source: Megatron-LM schedules.py, get_schedule_table.
    """
    return [
        (microbatch, chunk)
        for first in range(0, num_microbatches, group)
        for chunk in range(num_model_chunks)
        for microbatch in range(first, min(first + group, num_microbatches))
    ]


def _forwards(count: int) -> list[Action]:
    return [Action("F", 0, microbatch) for microbatch in range(count)]


def _backwards(count: int) -> list[Action]:
    return [Action("B", 0, microbatch) for microbatch in range(count)]


def _merged(forwards: list[Action], backwards: list[Action], warmup: int) -> list[Action]:
    """Warm-up forwards, then one forward and one backward in turn, then the backwards that are left."""
    remaining = len(forwards) - warmup
    steady = [action for pair in zip(forwards[warmup:], backwards[:remaining], strict=True) for action in pair]
    return forwards[:warmup] + steady + backwards[remaining:]
