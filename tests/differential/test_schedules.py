"""Action lists against torch.distributed.pipelining's own, for many numbers of ranks and microbatches."""

from __future__ import annotations

import inspect
from typing import Any
from unittest import mock

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from tpdpdash.layout.schedules import SCHEDULE_FACTS, part_of
from tpdpdash.schedule.actions import schedule_actions

TORCH = {
    "gpipe": torch_schedules.ScheduleGPipe,
    "1f1b": torch_schedules.Schedule1F1B,
    "interleaved": torch_schedules.ScheduleInterleaved1F1B,
    "zb-1p": torch_schedules.ScheduleInterleavedZeroBubble,
    "zb-v": torch_schedules.ScheduleZBVZeroBubble,
    "dualpipe-v": torch_schedules.ScheduleDualPipeV,
}


def stage(pp: int, chunks: int, index: int) -> Any:
    """What torch asks of a stage when it lays out a schedule."""
    made = mock.Mock(group_size=pp, num_stages=pp * chunks, group_rank=0, stage_index=index, is_first=not index)
    made.submod = None
    made.has_backward = True
    return made


def torch_order(schedule: str, pp: int, m: int, chunks: int) -> list[list[str]]:
    """torch's computations of each rank: stage, kind, microbatch; a pair as one."""
    kind = TORCH[schedule]
    if schedule in ("gpipe", "1f1b"):
        made = kind(stage(pp, 1, 0), m, loss_fn=mock.Mock())
        order = made._get_pipeline_order()
    else:
        folded = SCHEDULE_FACTS[schedule].placement == "fold"
        indices = [0, 2 * pp - 1] if folded else [chunk * pp for chunk in range(chunks)]
        order = kind([stage(pp, chunks, index) for index in indices], m, loss_fn=mock.Mock()).pipeline_order
    told = [[str(action) for action in order[rank] if action is not None] for rank in range(pp)]
    return [[action for action in own if "REDUCE_GRAD" not in action] for own in told]


def own_order(schedule: str, pp: int, m: int, chunks: int) -> list[list[str]]:
    """Our action lists in torch's words."""
    placement = SCHEDULE_FACTS[schedule].placement
    ranks = []
    for rank, actions in enumerate(schedule_actions(schedule, pp, m, chunks)):
        words = [f"{part_of(placement, pp, rank, a.chunk)}{a.kind}{a.microbatch}" for a in actions]
        told: list[str] = []
        for place, action in enumerate(actions):
            if action.paired:
                told.append(f"({words[place]};{words[place + 1]})OVERLAP_F_B")
            elif not (place and actions[place - 1].paired):
                told.append(words[place])
        ranks.append(told)
    return ranks


def one_chunk_microbatches(pp: int) -> list[int]:
    """Microbatches that torch divides over rounds of about pp."""
    return [m for m in sorted({1, 2, pp, 2 * pp - 1, 2 * pp, 3 * pp, 5 * pp}) if m % max(1, m // pp) == 0]


@pytest.mark.parametrize("schedule", ["gpipe", "zb-1p"])
@pytest.mark.parametrize("pp", [2, 3, 4, 7, 8])
def test_schedules_of_one_chunk_equal_torch(schedule: str, pp: int) -> None:
    for m in one_chunk_microbatches(pp):
        assert own_order(schedule, pp, m, 1) == torch_order(schedule, pp, m, 1)


@pytest.mark.parametrize("pp", [2, 3, 4, 7, 8])
def test_1f1b_equals_torch_whose_printed_order_counts_the_last_ranks_forwards_from_1(pp: int) -> None:
    """What torch runs counts from 0; only the order that it prints is off by one on the last rank."""
    for m in (m for m in one_chunk_microbatches(pp) if m >= pp):
        own, printed = own_order("1f1b", pp, m, 1), torch_order("1f1b", pp, m, 1)
        assert own[:-1] == printed[:-1]
        assert [f"{pp - 1}F{i + 1}" for i in range(m)] == [a for a in printed[-1] if "F" in a]
        assert [a for a in own[-1] if "B" in a] == [a for a in printed[-1] if "B" in a]


@pytest.mark.parametrize("pp", [2, 3, 4, 7, 8])
def test_zb_v_equals_torch_with_few_microbatches_too(pp: int) -> None:
    for m in (1, 2, pp, 2 * pp - 2, 2 * pp - 1, 2 * pp, 4 * pp + 1):
        assert own_order("zb-v", pp, m, 2) == torch_order("zb-v", pp, m, 2)


@pytest.mark.parametrize("pp", [2, 3, 4, 7, 8])
def test_dualpipe_v_equals_torch_pairs_included(pp: int) -> None:
    for m in (2 * pp, 2 * pp + 1, 3 * pp, 5 * pp + 2):
        assert own_order("dualpipe-v", pp, m, 2) == torch_order("dualpipe-v", pp, m, 2)


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("pp", [2, 4, 5])
def test_interleaving_equals_torch_where_the_group_is_its_round(pp: int, chunks: int) -> None:
    """Megatron's group is pp unless given, torch's is m divided by the rounds: the same where pp divides m."""
    for m in (pp, 2 * pp, 4 * pp):
        assert own_order("interleaved", pp, m, chunks) == torch_order("interleaved", pp, m, chunks)


def test_torch_has_no_schedule_that_is_not_compared() -> None:
    known = {name for name, kind in inspect.getmembers(torch_schedules, inspect.isclass) if name.startswith("Schedule")}
    assert known == {kind.__name__ for kind in TORCH.values()} | {"ScheduleLoopedBFS"}
