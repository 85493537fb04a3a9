"""The tailing reader: each kind of damaged telemetry is counted and shown as such; memory and time are bounded."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from tpdpdash.telemetry import reader as reader_module
from tpdpdash.telemetry import rows as rows_module
from tpdpdash.telemetry import tail as tail_module
from tpdpdash.telemetry.reader import RunReader
from tpdpdash.telemetry.record import PHASES, rank_file


def line(kind: str, rank: object = 0, **fields: object) -> bytes:
    return json.dumps({"v": 1, "kind": kind, "rank": rank, "t": 100.0, **fields}).encode() + b"\n"


def step(rank: object = 0, number: object = 1, step_s: object = 10.0, **fields: object) -> bytes:
    return line("step", rank, step=number, step_s=step_s, **{"phase_s": {"forward": 4.0}, **fields})


def hello(rank: int = 0, world_size: int = 4, pid: int = 11, host: str = "a", **fields: object) -> bytes:
    return line("hello", rank, pid=pid, host=host, world_size=world_size, **{"coords": {"dp": rank}, **fields})


def append(run: Path, data: bytes, rank: int = 0) -> None:
    path = rank_file(run, rank)
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def read(run: Path, world_size: int = 4) -> reader_module.Telemetry:
    reader = RunReader(run, world_size)
    reader.refresh()
    return reader.snapshot()


def test_arrays_are_rank_by_step_and_unknown_values_are_not_zero(tmp_path: Path) -> None:
    append(tmp_path, hello(0) + step(0, 1, 2.0, loss=5.5, tokens=64) + step(0, 2, 3.0))
    append(tmp_path, hello(1) + step(1, 2, 4.0), rank=1)
    seen = read(tmp_path, world_size=2)
    assert seen.steps.tolist() == [1, 2]
    np.testing.assert_array_equal(seen.step_s, [[2.0, 3.0], [np.nan, 4.0]])
    np.testing.assert_array_equal(seen.loss, [[5.5, np.nan], [np.nan, np.nan]])
    assert seen.phase_s[0, 0, PHASES.index("forward")] == 4.0
    assert seen.phase_s[0, 0, PHASES.index("tp")] == 0.0
    assert seen.ranks[1].coords == {"dp": 1}
    assert seen.missing_ranks == ()


def test_a_line_that_is_completed_later_is_counted_once(tmp_path: Path) -> None:
    """b67."""
    whole = step(1, 1, 11.0)
    append(tmp_path, step(0, 1) + whole[:20])
    reader = RunReader(tmp_path, 2)
    assert reader.refresh()
    assert reader.snapshot().step_s[:, 0].tolist()[0] == 10.0
    assert np.isnan(reader.snapshot().step_s[1, 0])
    append(tmp_path, whole[20:])
    assert reader.refresh()
    assert not reader.refresh()
    seen = reader.snapshot()
    assert seen.step_s.tolist() == [[10.0], [11.0]]
    assert (dict(seen.bad_lines), seen.num_steps) == ({}, 1)


@pytest.mark.parametrize(
    ("data", "bad"),
    [
        pytest.param(step(0).strip() + step(1), {"two_objects": 1}, id="b70-two-objects-on-one-line"),
        pytest.param(step(7), {"rank_out_of_range": 1}, id="b73-rank-beyond-the-world"),
        pytest.param(step(-1) + step("0") + step(True), {"rank_out_of_range": 3}, id="b73-negative-and-text"),
        pytest.param(b'{"rank":0,"step":1,"ms":10}\n', {"unknown_version": 1}, id="a-record-of-another-format"),
        pytest.param(line("gossip"), {"unknown_kind": 1}, id="a-kind-from-the-future"),
        pytest.param(b"[1,2]\n", {"not_object": 1}, id="a-list"),
        pytest.param(b"\0\0\0\0\n\xff\xfe\n", {"not_json": 2}, id="nul-bytes-and-no-utf-8"),
        pytest.param(b"[" * 100_000 + b"\n", {"not_json": 1}, id="nested-too-deeply"),
        pytest.param(b"1" * 10_000 + b"\n", {"not_json": 1}, id="a-number-of-10000-digits"),
        pytest.param(hello(0, coords={"tp": "x"}), {"impossible_value": 1}, id="coordinates-that-are-text"),
        pytest.param(
            line("timeline", step=2, actions=[["F", 0, 0, 0.0]]), {"impossible_value": 1}, id="an-action-cut-short"
        ),
        pytest.param(step(regions="many"), {"impossible_value": 1}, id="a-count-that-is-text"),
        pytest.param(step(loss=10**400), {"impossible_value": 1}, id="a-loss-beyond-any-float"),
    ],
)
def test_a_bad_line_is_counted_by_its_kind_and_nothing_of_it_is_used(
    tmp_path: Path, data: bytes, bad: dict[str, int]
) -> None:
    append(tmp_path, data)
    seen = read(tmp_path)
    assert dict(seen.bad_lines) == bad
    assert seen.num_steps == 0
    assert seen.step_s.shape == (4, 0)


@pytest.mark.parametrize(
    ("step_s", "kind"),
    [
        (float("nan"), "not_finite"),
        (float("inf"), "not_finite"),
        (-5, "impossible_value"),
        (1e308, "impossible_value"),
        ("12", "impossible_value"),
    ],
)
def test_timings_that_cannot_be_are_not_averaged(tmp_path: Path, step_s: object, kind: str) -> None:
    """b75."""
    append(tmp_path, step(0, 1, 10.0) + step(0, 2, step_s))
    seen = read(tmp_path)
    assert dict(seen.bad_lines) == {kind: 1}
    assert seen.steps.tolist() == [1]


def test_a_file_that_is_cut_while_it_is_read_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path, step(0, 1))
    monkeypatch.setattr(tail_module.os, "pread", lambda *_: b"")
    reader = RunReader(tmp_path, 4)
    assert not reader.refresh()
    monkeypatch.undo()
    assert reader.refresh()
    assert reader.snapshot().steps.tolist() == [1]


def test_lines_that_were_read_before_the_file_failed_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "MAX_LINE_BYTES", 300)
    for number in range(1, 9):
        append(tmp_path, step(0, number))
    reader, pread, calls = RunReader(tmp_path, 1), os.pread, []

    def fails_once(descriptor: int, size: int, offset: int) -> bytes:
        calls.append(offset)
        if len(calls) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", fails_once)
    assert reader.refresh()
    assert 0 < len(reader.snapshot().steps) < 8
    assert reader.refresh()
    assert reader.snapshot().steps.tolist() == list(range(1, 9))


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    append(tmp_path, step(0, 1))
    os.mkfifo(rank_file(tmp_path, 1))
    assert read(tmp_path).steps.tolist() == [1]


def test_a_phase_that_is_not_finite_spoils_its_line(tmp_path: Path) -> None:
    append(tmp_path, step(phase_s={"forward": float("nan")}))
    assert dict(read(tmp_path).bad_lines) == {"not_finite": 1}


def test_a_rank_that_two_processes_claim_to_be_is_named(tmp_path: Path) -> None:
    """b72."""
    append(tmp_path, hello(0, pid=11, host="a") + hello(0, pid=22, host="b"))
    append(tmp_path, hello(1) + hello(1), rank=1)  # the same process once more: no duplicate
    assert read(tmp_path).duplicated_ranks == {0}


def test_a_line_of_50_mb_is_skipped_in_bounded_memory(tmp_path: Path) -> None:
    """b76."""
    append(tmp_path, hello(0))
    append(tmp_path, b'{"rank":0,"x":"' + b"y" * 52_428_800)
    reader = RunReader(tmp_path, 4)
    reader.refresh()
    append(tmp_path, b'"}\n' + step(0, 1))
    reader.refresh()
    seen = reader.snapshot()
    assert seen.steps.tolist() == [1]
    assert seen.skipped_bytes > 40_000_000
    assert 0 in seen.ranks


def test_a_line_above_the_limit_is_counted_whether_it_comes_at_once_or_in_parts(tmp_path: Path) -> None:
    long_line = b'{"x":"' + b"y" * 1_500_000 + b'"}\n'
    append(tmp_path, long_line + step(0, 1))
    reader = RunReader(tmp_path, 4)
    reader.refresh()
    append(tmp_path, long_line[:1_200_000])
    reader.refresh()
    append(tmp_path, long_line[1_200_000:] + step(0, 2))
    reader.refresh()
    seen = reader.snapshot()
    assert dict(seen.bad_lines) == {"too_long": 2}
    assert seen.steps.tolist() == [1, 2]


def test_a_flood_is_read_from_its_end_and_only_new_bytes_are_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b77, at a size that a test can afford: limits are lowered, not the file raised to a million lines."""
    monkeypatch.setattr(tail_module, "TAIL_BYTES", 20_000)
    monkeypatch.setattr(tail_module, "HEAD_BYTES", 2_000)
    append(tmp_path, hello(0) + b"".join(step(0, number) for number in range(5_000)))
    reader = RunReader(tmp_path, 4)
    reader.refresh()
    seen = reader.snapshot()
    assert 0 in seen.ranks  # the head says who it is
    assert seen.steps.tolist()[-1] == 4_999
    assert seen.skipped_bytes > 100_000
    assert dict(seen.bad_lines) == {}
    append(tmp_path, step(0, 5_000))
    reader.refresh()
    assert reader.snapshot().steps.tolist()[-1] == 5_000
    assert reader.snapshot().skipped_bytes == seen.skipped_bytes


def test_a_truncated_file_begins_anew_and_the_two_runs_are_not_mixed(tmp_path: Path) -> None:
    """b78."""
    append(tmp_path, hello(0) + b"".join(step(0, number, 99.0) for number in range(100)))
    reader = RunReader(tmp_path, 4)
    reader.refresh()
    rank_file(tmp_path, 0).write_bytes(b"".join(step(0, number, 1.0) for number in range(5)))
    reader.refresh()
    seen = reader.snapshot()
    assert seen.steps.tolist() == [0, 1, 2, 3, 4]
    assert seen.step_s[0].tolist() == [1.0] * 5
    assert seen.restarts == 1


def test_a_file_rewritten_to_a_greater_length_is_noticed_too(tmp_path: Path) -> None:
    append(tmp_path, step(0, 1, 99.0))
    reader = RunReader(tmp_path, 4)
    reader.refresh()
    rank_file(tmp_path, 0).write_bytes(b"".join(step(0, number, 1.0) for number in range(7, 12)))
    reader.refresh()
    assert reader.snapshot().steps.tolist() == [7, 8, 9, 10, 11]
    assert reader.snapshot().restarts == 1


def test_a_rotated_file_is_read_from_its_start_and_other_ranks_are_kept(tmp_path: Path) -> None:
    append(tmp_path, step(0, 1, 99.0))
    append(tmp_path, step(1, 1, 3.0), rank=1)
    reader = RunReader(tmp_path, 4)
    reader.refresh()
    rank_file(tmp_path, 0).rename(tmp_path / "old")
    append(tmp_path, step(0, 1, 2.0))
    reader.refresh()
    assert reader.snapshot().step_s[:2, 0].tolist() == [2.0, 3.0]


def test_a_long_run_keeps_its_last_steps_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MAX_STEPS", 16)
    append(tmp_path, b"".join(step(0, number) for number in range(50)))
    seen = read(tmp_path)
    assert seen.steps.tolist() == list(range(34, 50))
    assert (seen.num_steps, seen.dropped_steps) == (50, 34)


def test_a_step_far_in_the_future_hides_none_of_the_others(tmp_path: Path) -> None:
    append(tmp_path, step(0, 1) + step(0, 2) + step(0, 10**11))
    seen = read(tmp_path)
    assert seen.steps.tolist() == [1, 2, 10**11]
    assert seen.dropped_steps == 0


def test_events_heartbeats_and_timelines_are_kept(tmp_path: Path) -> None:
    append(tmp_path, hello(0) + line("event", name="building"))
    append(tmp_path, line("heartbeat", step=3, phase="dp", last_collective="dp all_reduce", collectives=9))
    for number in range(2, 30):
        append(tmp_path, line("timeline", step=number, actions=[["F", 0, 1, 0.5, 0.25]]))
    seen = read(tmp_path)
    assert (seen.last_event[0], seen.events) == ("building", ((100.0, 0, "building"),))
    assert (seen.heartbeats[0].phase, seen.heartbeats[0].last_collective) == ("dp", "dp all_reduce")
    assert list(seen.timelines) == list(range(22, 30))
    assert seen.timelines[29][0] == (("F", 0, 1, 0.5, 0.25),)
    assert seen.last_t == 100.0


def test_a_snapshot_does_not_change_when_more_is_read(tmp_path: Path) -> None:
    append(tmp_path, step(0, 1, 1.0))
    reader = RunReader(tmp_path, 4)
    reader.refresh()
    before = reader.snapshot()
    append(tmp_path, step(0, 1, 2.0))
    reader.refresh()
    assert before.step_s[0].tolist() == [1.0]


def test_a_run_without_telemetry_is_empty_and_all_ranks_are_missing(tmp_path: Path) -> None:
    seen = read(tmp_path)
    assert (seen.num_steps, seen.missing_ranks, seen.last_t) == (0, (0, 1, 2, 3), None)


def test_a_job_that_begins_anew_shows_its_first_steps_although_the_former_one_was_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b78 with several ranks: a step of the former run must not keep the column of a new one."""
    monkeypatch.setattr(rows_module, "MAX_STEPS", 16)
    for rank in range(2):
        append(tmp_path, hello(rank) + b"".join(step(rank, number, 99.0) for number in range(50)), rank=rank)
    reader = RunReader(tmp_path, 2)
    reader.refresh()
    for rank in range(2):
        anew = hello(rank) + b"".join(step(rank, number, 1.0) for number in range(1, 4))
        rank_file(tmp_path, rank).write_bytes(anew)
    reader.refresh()
    seen = reader.snapshot()
    assert seen.steps.tolist() == [1, 2, 3]
    assert seen.step_s.tolist() == [[1.0] * 3] * 2
    assert set(seen.ranks) == {0, 1}


def test_timelines_are_kept_within_a_number_of_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MAX_ACTIONS", 100)
    for number in range(2, 8):
        actions = [["F", 0, microbatch, 0.5, 0.25] for microbatch in range(30)]
        append(tmp_path, line("timeline", step=number, actions=actions))
    assert list(read(tmp_path).timelines) == [5, 6, 7]


def test_a_file_that_cannot_be_read_counts_once_and_hides_no_other(tmp_path: Path) -> None:
    append(tmp_path, step(1, 1), rank=1)
    rank_file(tmp_path, 0).mkdir()
    reader = RunReader(tmp_path, 2)
    for _ in range(3):
        reader.refresh()
    seen = reader.snapshot()
    assert (dict(seen.bad_lines), seen.steps.tolist()) == ({"unreadable": 1}, [1])


@pytest.mark.parametrize("name", ["host", "name", "phase"])
def test_a_name_that_no_screen_could_show_is_not_kept(tmp_path: Path, name: str) -> None:
    long_name = {name: "x" * 100_000}
    record = {"host": hello(**long_name), "name": line("event", **long_name), "phase": line("heartbeat", **long_name)}
    append(tmp_path, record[name])
    assert dict(read(tmp_path).bad_lines) == {"impossible_value": 1}


def test_the_last_steps_are_a_window_of_the_same_telemetry(tmp_path: Path) -> None:
    append(tmp_path, hello(0) + b"".join(step(0, number, float(number)) for number in range(1, 6)))
    seen = read(tmp_path)
    last = seen.last(2)
    assert (last.steps.tolist(), last.step_s[0].tolist(), last.phase_s.shape[:2]) == ([4, 5], [4.0, 5.0], (4, 2))
    assert last.dropped_steps == 3
    assert seen.last(None) is seen
    assert seen.last(9) is seen
