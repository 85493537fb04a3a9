"""Hung: who holds the others up, in which group; a long step, a checkpoint and a finished run are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from made_telemetry import beat, made, places

from tpdpdash.telemetry.growth import growing_ranks
from tpdpdash.telemetry.hang import find_hang
from tpdpdash.telemetry.snapshot import Heartbeat, Telemetry


def paused(telemetry: Telemetry, pause_s: float, **beats: Heartbeat) -> tuple[Telemetry, float]:
    """The run so long after its last step; r0, r1, … replace heartbeats, the others are fresh."""
    now = float(np.nanmax(telemetry.t + telemetry.step_s)) + pause_s
    fresh = {rank: replace(old, t=now - 0.5) for rank, old in telemetry.heartbeats.items()}
    given = {int(name[1:]): replace(each, t=now + each.t) for name, each in beats.items()}
    return replace(telemetry, heartbeats={**fresh, **given}), now


def test_a_rank_that_never_enters_the_collective_is_named_with_its_group_and_its_last_collective() -> None:
    stuck = beat(-0.5, phase="backward", last_collective="tp all_gather", collectives=8)
    telemetry, now = paused(made(places(tp=2, dp=2)), 12, r3=stuck)
    found = find_hang(telemetry, now)
    assert found is not None
    (held,) = found.culprits
    assert (held.rank, held.phase, held.last_collective, held.is_silent) == (3, "backward", "tp all_gather", False)
    assert (held.kind, held.group, held.awaited) == ("dp", (1, 3), "dp all_reduce")
    assert (found.last_step, round(found.pause_s)) == (20, 12)


def test_a_stopped_process_is_known_by_its_silence() -> None:
    telemetry, now = paused(made(places(dp=2)), 12, r1=beat(-11, phase="dp"))
    found = find_hang(telemetry, now)
    assert found is not None
    assert [(held.rank, held.is_silent, held.group) for held in found.culprits] == [(1, True, (0, 1))]


def test_a_process_that_stopped_before_its_first_heartbeat_is_known_by_its_steps() -> None:
    telemetry, now = paused(made(places(dp=3)), 12)
    beats = {rank: beat for rank, beat in telemetry.heartbeats.items() if rank != 1}
    found = find_hang(replace(telemetry, heartbeats=beats), now)
    assert found is not None
    assert [(held.rank, held.is_silent, held.group) for held in found.culprits] == [(1, True, (0, 1, 2))]


def test_a_clock_that_was_set_back_hides_no_hang() -> None:
    telemetry = made(places(dp=2))
    telemetry.t[:, 15:] -= 3600
    now = float(np.nanmax(telemetry.t[:, -1] + telemetry.step_s[:, -1])) + 12
    beats = {rank: replace(beat, t=now - 0.5) for rank, beat in telemetry.heartbeats.items()}
    found = find_hang(replace(telemetry, heartbeats=beats), now)
    assert found is not None
    assert round(found.pause_s) == 12


def test_where_all_wait_the_one_that_entered_fewer_collectives_is_named() -> None:
    telemetry, now = paused(made(places(dp=4)), 30, r2=beat(-0.5, collectives=7))
    found = find_hang(telemetry, now)
    assert found is not None
    assert [held.rank for held in found.culprits] == [2]
    telemetry, now = paused(made(places(dp=4)), 30)
    found = find_hang(telemetry, now)
    assert found is not None
    assert found.culprits == ()


def test_a_pause_is_called_a_hang_only_beyond_ten_seconds_and_five_steps_and_the_longest_step() -> None:
    for telemetry, pause, hangs in (
        (made(places(dp=2)), 9, False),
        (made(places(dp=2)), 11, True),
        (made(places(dp=2), phase_s={"forward": 10.0}), 45, False),
        (made(places(dp=2), phase_s={"forward": 10.0}), 55, True),
    ):
        seen, now = paused(telemetry, pause)
        assert (find_hang(seen, now) is not None) == hangs, pause
    odd = made(places(dp=2))
    odd.step_s[:, 12] = 40.0
    odd.t[:, 13:] += 40.0
    seen, now = paused(odd, 30)
    assert find_hang(seen, now) is None


def test_r124_progress_is_steps_a_load_of_100_percent_is_none() -> None:
    """Five minutes without a step of 1.08 s, on devices that said they were busy all the time: nobody asks them."""
    seen, now = paused(made(places(dp=4), phase_s={"forward": 1.08}), 300)
    found = find_hang(seen, now)
    assert found is not None
    assert (round(found.pause_s), found.last_step) == (300, 20)


def test_r125_a_run_whose_agent_only_repeats_itself_for_eight_hours_hangs() -> None:
    """Whatever the log repeats and however fresh the heartbeats are: no step has ended."""
    seen, now = paused(made(places(dp=2)), 8 * 3600)
    found = find_hang(seen, now)
    assert found is not None
    assert found.pause_s == 8 * 3600


def test_before_the_first_step_in_a_checkpoint_and_after_the_end_nothing_hangs() -> None:
    seen, now = paused(made(places(dp=2)), 60, r0=beat(-0.5, phase="checkpoint"))
    assert find_hang(seen, now) is None
    assert find_hang(seen, now + 100) is not None
    ended = replace(made(places(dp=2)), last_event={0: "finished", 1: "finished"})
    assert find_hang(*paused(ended, 60)) is None
    assert find_hang(made(places(dp=2), steps=1), 0.0) is None


def test_memory_that_grows_step_by_step_names_its_rank_and_rate() -> None:
    seen = made(places(dp=2), steps=24)
    seen.memory_bytes[1] += 8e6 * np.arange(24)
    (grown,) = growing_ranks(seen)
    assert grown.rank == 1
    assert abs(grown.bytes_per_step - 8e6) < 2e6
    assert grown.others_bytes_per_step == 0


def test_memory_that_begins_to_grow_late_is_told_soon_and_a_slow_leak_at_last() -> None:
    seen = made(places(dp=2), steps=200)
    seen.memory_bytes[1, 180:] += 8e6 * np.arange(20)
    assert [grown.rank for grown in growing_ranks(seen)] == [1]
    slow = made(places(dp=2), steps=200)
    slow.memory_bytes[0] += 0.2e6 * np.arange(200)
    assert [grown.rank for grown in growing_ranks(slow)] == [0]


def test_memory_that_settles_jumps_once_or_shakes_is_no_leak() -> None:
    seen = made(places(dp=4), steps=24)
    seen.memory_bytes[0] += 1e8 * (1 - np.exp(-np.arange(24) / 4))
    seen.memory_bytes[1, 10:] += 3e8
    seen.memory_bytes[2] *= 1 + 0.02 * np.sin(np.arange(24))
    seen.memory_bytes[3, :11] = np.nan
    assert growing_ranks(seen) == []
    assert growing_ranks(made(places(dp=2), steps=8)) == []


def test_a_rank_that_writes_a_deep_profile_is_not_called_hung_for_two_minutes() -> None:
    seen, now = paused(made(places(dp=2)), 60, r0=beat(-0.5, phase="profiling"))
    assert find_hang(seen, now) is None
    seen, now = paused(made(places(dp=2)), 180, r0=beat(-0.5, phase="profiling"))
    assert find_hang(seen, now) is not None
