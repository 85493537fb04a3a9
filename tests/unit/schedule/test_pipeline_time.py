"""Timeline and closed form on cases that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from pipelines import closed

from tpdpdash.layout.layout import SCHEDULES
from tpdpdash.schedule.action import Action
from tpdpdash.schedule.actions import schedule_actions
from tpdpdash.schedule.closed_form import microbatches_in_flight, pipeline_seconds
from tpdpdash.schedule.timeline import BACKWARD, FORWARD, Timeline, simulate


def busy_s(timeline: Timeline, rank: int) -> float:
    """Seconds in which a rank works."""
    return float(timeline.duration_s[timeline.rank == rank].sum())


def test_two_stages_two_microbatches_by_hand() -> None:
    timeline = simulate(schedule_actions("1f1b", 2, 2), [1.0, 1.0], [2.0, 2.0])
    first = timeline.rank == 0
    assert timeline.start_s[first].tolist() == [0.0, 1.0, 4.0, 7.0]
    assert timeline.start_s[~first].tolist() == [1.0, 2.0, 4.0, 5.0]
    assert timeline.kind[first].tolist() == [FORWARD, FORWARD, BACKWARD, BACKWARD]
    assert timeline.total_s == 9.0 == closed("1f1b", [1.0, 1.0], [2.0, 2.0], 2)
    assert busy_s(timeline, 0) == busy_s(timeline, 1) == 6.0


def test_transfers_delay_the_neighbour_but_do_not_occupy_the_rank() -> None:
    timeline = simulate(schedule_actions("gpipe", 2, 2), [1.0, 1.0], [2.0, 2.0], 0.5)
    assert timeline.start_s[timeline.rank == 1].tolist() == [1.5, 2.5, 3.5, 5.5]
    assert timeline.total_s == 10.0 == closed("gpipe", [1.0, 1.0], [2.0, 2.0], 2, x=0.5)


def test_a_heavy_last_stage_sets_the_pace() -> None:
    forward, backward = [1.0, 1.0, 2.0], [2.0, 2.0, 4.0]
    assert closed("1f1b", forward, backward, 8) == 3 + 3 + 8 * 6
    assert simulate(schedule_actions("1f1b", 3, 8), forward, backward).total_s == 3 + 3 + 8 * 6


def test_a_heavy_first_stage_hides_the_drain_of_the_others() -> None:
    forward, backward = [3.0, 1.0], [6.0, 2.0]
    assert closed("1f1b", forward, backward, 8) == 8 * 9
    assert simulate(schedule_actions("1f1b", 2, 8), forward, backward).total_s == 8 * 9


def test_stages_beyond_a_rows_pipeline_do_not_count() -> None:
    forward = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    mask = np.array([[True, True, False, False], [True] * 4])
    noisy = np.where(mask, forward, 1e9)
    seconds = pipeline_seconds(
        schedule=np.array([SCHEDULES.index("1f1b"), SCHEDULES.index("interleaved")]),
        forward_s=noisy,
        backward_s=2 * noisy,
        stage_mask=mask,
        num_microbatches=8,
        num_model_chunks=np.array([1.0, 2.0]),
    )
    assert seconds.tolist() == [(8 + 1) * 3, 8 * 3 + 3 * 3 / 2]


def test_one_stage_takes_its_microbatches_one_after_the_other() -> None:
    assert closed("none", [1.0], [2.0], 5) == 15.0
    assert closed("none", [1.0], [2.0], 1) == 3.0


def test_chunks_may_have_their_own_times() -> None:
    timeline = simulate(schedule_actions("interleaved", 2, 2, 2), [[1.0, 2.0], [1.0, 3.0]], [[1.0, 1.0], [1.0, 1.0]])
    assert busy_s(timeline, 0) == 2 * (1 + 2 + 1 + 1)
    assert busy_s(timeline, 1) == 2 * (1 + 3 + 1 + 1)


def test_lists_that_wait_for_each_other_are_an_error() -> None:
    with pytest.raises(ValueError, match="wait for each other"):
        simulate([[Action("B", 0, 0), Action("F", 0, 0)]], [1.0], [1.0])


def test_an_empty_schedule_takes_no_time() -> None:
    assert simulate([[]], [1.0], [1.0]).total_s == 0.0


def test_zero_bubble_schedules_hold_what_their_papers_say() -> None:
    """arXiv:2401.10241 table 1: ZB-H1 as 1F1B's first stage, ZB-H2 2p − 1; arXiv:2405.15362: ZB-V p; DeepSeek-V3 table
    2: DualPipe p + 1 stages' worth of activations, two stages a rank."""
    held = {
        name: [float(microbatches_in_flight(SCHEDULES.index(name), 8, 64, v, s)) for s in (0, 3, 7)]
        for name, v in (("1f1b", 1), ("zb-1p", 1), ("zb-2p", 1), ("zb-v", 2), ("dualpipe-v", 2), ("dualpipe", 1))
    }
    assert held["1f1b"] == [8, 5, 1]
    assert held["zb-1p"] == held["zb-v"] == [8, 8, 8]
    assert held["zb-2p"] == [15, 15, 15]
    assert held["dualpipe-v"] == [8.5, 8.5, 8.5]
    assert held["dualpipe"] == [4.5, 4.5, 4.5]
    assert microbatches_in_flight(SCHEDULES.index("zb-2p"), 8, 4, 1, 0) == 4
