"""Action lists: in which order each pipeline rank runs its passes, as Megatron-LM, torch and DeepSeek order them."""

from __future__ import annotations

from tpdpdash.layout.layout import SCHEDULES
from tpdpdash.layout.microbatch_rules import group_fits
from tpdpdash.layout.schedules import SCHEDULE_FACTS
from tpdpdash.schedule.action import Action
from tpdpdash.schedule.closed_form import warmup_forwards
from tpdpdash.schedule.split_actions import dualpipe_actions, dualpipe_v_actions, zb_v_actions, zero_bubble_actions


def schedule_actions(
    schedule: str, pp: int, num_microbatches: int, num_model_chunks: int = 1, group: int | None = None
) -> list[list[Action]]:
    """The actions of each rank, in order. `group`: microbatches that a chunk runs before the next one; pp unless given.

    The numbers are those of a legal layout: `check_layout` says in words what is wrong with others; here they raise
    ValueError. Source: Megatron-LM schedules.py (gpipe, 1f1b, interleaved), the others in split_actions.py; golden:
    pp_truth.jsonl.
    """
    m, v, g = num_microbatches, num_model_chunks, pp if group is None else group
    _refuse_impossible(schedule, pp, m, v, g)
    match schedule:
        case "zb-1p" | "zb-2p":
            return zero_bubble_actions(pp, m, 1 if schedule == "zb-1p" else 2)
        case "zb-v":
            return zb_v_actions(pp, m)
        case "dualpipe-v":
            return dualpipe_v_actions(pp, m)
        case "dualpipe":
            return dualpipe_actions(pp, m)
    table = schedule_table(m, v, g)
    forwards = [Action("F", chunk, microbatch) for microbatch, chunk in table]
    backwards = [Action("B", v - 1 - chunk, microbatch) for microbatch, chunk in table]
    code = SCHEDULES.index(schedule)
    warmups = [int(warmup_forwards(code, pp, m, v, g, rank)) for rank in range(pp)]
    return [_merged(forwards, backwards, warmup) for warmup in warmups]


def _refuse_impossible(schedule: str, pp: int, num_microbatches: int, num_model_chunks: int, group: int) -> None:
    """Numbers of which no action list can be made."""
    m, v = num_microbatches, num_model_chunks
    possible = schedule in SCHEDULE_FACTS and min(pp, m, v) >= 1
    if possible:
        facts = SCHEDULE_FACTS[schedule]
        possible = v == facts.num_model_chunks or (facts.num_model_chunks is None and v > 1)
        possible = possible and m >= facts.microbatches_per_rank * pp and not (facts.is_even and (pp % 2 or m % 2))
    if possible and schedule == "interleaved":
        possible = pp > 1 and group_fits(m, group, pp)
    if not possible:
        numbers = f"pp={pp}, num_microbatches={m}, num_model_chunks={v}, group={group}"
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


def _merged(forwards: list[Action], backwards: list[Action], warmup: int) -> list[Action]:
    """Warm-up forwards, then one forward and one backward in turn, then the backwards that are left."""
    remaining = len(forwards) - warmup
    steady = [action for pair in zip(forwards[warmup:], backwards[:remaining], strict=True) for action in pair]
    return forwards[:warmup] + steady + backwards[remaining:]
