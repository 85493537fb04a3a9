"""The rollup: a reader's answer is the same with it and without it, and a rollup that is not whole is not used."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_telemetry_reader import append, hello, line, read, step

from tpdpdash.telemetry import files as files_module
from tpdpdash.telemetry import rollup as rollup_module
from tpdpdash.telemetry import rollup_reader
from tpdpdash.telemetry import rows as rows_module
from tpdpdash.telemetry.files import RankFiles
from tpdpdash.telemetry.profiling import PROFILE_EVENTS
from tpdpdash.telemetry.reader import RunReader, Telemetry
from tpdpdash.telemetry.record import rank_file, telemetry_dir
from tpdpdash.telemetry.rollup import STATE, RollupWriter, rollup_dir
from tpdpdash.telemetry.rollup_reader import read_rollup


class Keeper:
    """What the supervisor does with telemetry, without its processes."""

    def __init__(self, run: Path, world_size: int = 2) -> None:
        telemetry_dir(run).mkdir(exist_ok=True)
        self.files = RankFiles(telemetry_dir(run), world_size)
        self.writer = RollupWriter(telemetry_dir(run), world_size)

    def update(self) -> None:
        news = self.files.read()
        for ranks in news.begun_anew.values():
            self.writer.forget(ranks)
        for each, record in self.files.records(news):
            self.writer.take(record, each)

    def write(self) -> None:
        self.update()
        self.writer.close(self.files)
        assert self.writer.problem is None


def assert_equal(first: Telemetry, second: Telemetry) -> None:
    for each in fields(Telemetry):
        left, right = getattr(first, each.name), getattr(second, each.name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right, err_msg=each.name)
        else:
            assert left == right, each.name


def without_rollup(run: Path, world_size: int = 2) -> Telemetry:
    hidden = run / "hidden"
    rollup_dir(telemetry_dir(run)).rename(hidden)
    try:
        return read(run, world_size)
    finally:
        hidden.rename(rollup_dir(telemetry_dir(run)))


def busy_run(run: Path, steps: int = 40, world_size: int = 2) -> None:
    """Every kind of record, some of them bad."""
    for rank in range(world_size):
        data = hello(rank, world_size) + line("event", rank, name="building") + b"\0\0not json\n"
        data += line("event", rank, name="profiling", step=7) + line("event", rank, name="profiled", step=7)
        for number in range(1, steps + 1):
            data += step(rank, number, 1.0 + number / 7, t=100.0 + number, loss=None if rank else 3.0 / number)
            if number % 10 == 2:
                data += line("timeline", rank, step=number, actions=[["F", 0, i, 0.1, 0.2] for i in range(3)])
        data += line("heartbeat", rank, step=steps, phase="dp", last_collective="dp all_reduce", collectives=rank)
        append(run, data + line("event", rank, name="checkpoint", lost_records=rank), rank)


def test_a_reader_answers_the_same_with_the_rollup_and_without(tmp_path: Path) -> None:
    busy_run(tmp_path)
    Keeper(tmp_path).write()
    assert_equal(read(tmp_path, 2), without_rollup(tmp_path))
    assert len(read(tmp_path, 2).steps) == 40


def test_what_the_rollup_holds_is_not_parsed_again_and_the_rest_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_run(tmp_path)
    Keeper(tmp_path).write()
    whole = step(0, 42, 5.0)
    append(tmp_path, step(0, 41, 4.0) + whole[:30])
    seen: list[bytes] = []
    parse = files_module.parse_line
    monkeypatch.setattr(
        files_module, "parse_line", lambda each, world_size: (seen.append(each), parse(each, world_size))[1]
    )
    reader = RunReader(tmp_path, 2)
    reader.refresh()
    assert sum(b'"step_s"' in each for each in seen) == 1
    append(tmp_path, whole[30:])
    reader.refresh()
    assert reader.snapshot().step_s[0, -2:].tolist() == [4.0, 5.0]
    monkeypatch.undo()
    assert_equal(reader.snapshot(), without_rollup(tmp_path))


def test_a_line_that_was_not_complete_when_the_rollup_was_written_is_read_whole(tmp_path: Path) -> None:
    whole = step(0, 2, 7.0)
    append(tmp_path, hello(0, 2) + step(0, 1) + whole[:40])
    Keeper(tmp_path).write()
    append(tmp_path, whole[40:])
    assert read(tmp_path, 2).step_s[0].tolist() == [10.0, 7.0]


def test_a_long_run_keeps_two_files_and_the_last_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MAX_STEPS", 16)
    monkeypatch.setattr(rollup_module, "MAX_TIMELINE_BYTES", 500)
    keeper = Keeper(tmp_path)
    for begin in range(1, 200, 10):
        for rank in range(2):
            for number in range(begin, begin + 10):
                timeline = line("timeline", rank, step=number, actions=[["F", 0, 0, 0.1, 0.2]])
                append(tmp_path, step(rank, number) + timeline, rank)
        keeper.write()
    names = sorted(path.name for path in rollup_dir(telemetry_dir(tmp_path)).iterdir())
    assert [sum(name.startswith(kind) for name in names) for kind in ("steps", "timelines", "state")] == [2, 2, 1]
    with_rollup, plain = read(tmp_path, 2), without_rollup(tmp_path)
    assert with_rollup.steps.tolist() == list(range(185, 201))
    np.testing.assert_array_equal(with_rollup.step_s, plain.step_s)
    assert (with_rollup.num_steps, plain.num_steps) == (200, 200)


def test_a_rank_that_began_anew_is_forgotten_in_the_rollup_too(tmp_path: Path) -> None:
    busy_run(tmp_path)
    keeper = Keeper(tmp_path)
    keeper.update()
    rank_file(tmp_path, 1).write_bytes(hello(1, 2) + b"".join(step(1, number, 1.0) for number in range(1, 4)))
    keeper.update()
    append(tmp_path, line("timeline", 0, step=52, actions=[["F", 0, 0, 0.1, 0.2]]))
    keeper.write()
    reader = RunReader(tmp_path, 2)
    reader.refresh()
    seen = reader.snapshot()
    assert seen.restarts == 1
    assert np.isfinite(seen.step_s[1]).sum() == 3
    assert {step for step, by_rank in seen.timelines.items() if 1 in by_rank} == set()
    assert 52 in seen.timelines


def test_the_first_run_in_a_folder_that_begins_anew_whole_leaves_nothing(tmp_path: Path) -> None:
    busy_run(tmp_path)
    keeper = Keeper(tmp_path)
    keeper.update()
    for rank in range(2):
        rank_file(tmp_path, rank).write_bytes(hello(rank, 2) + step(rank, 1, 2.0))
    keeper.write()
    seen = read(tmp_path, 2)
    assert (seen.steps.tolist(), seen.num_steps, seen.events) == ([1], 1, ())


def damaged_states(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Ways in which a rollup is not what was written."""
    state, steps = folder / STATE, folder / "steps-00000"
    header, *lines = state.read_bytes().split(b"\n")
    document = json.loads(header)

    def changed(**changes: object) -> Callable[[], object]:
        return lambda: state.write_bytes(b"\n".join([json.dumps({**document, **changes}).encode(), *lines]))

    yield "no state", state.unlink
    yield "an empty state", lambda: state.write_bytes(b"")
    yield "a torn state", lambda: state.write_bytes(state.read_bytes()[:-700])
    yield "zeros", lambda: steps.write_bytes(bytes(steps.stat().st_size))
    yield "a torn file", lambda: steps.write_bytes(steps.read_bytes()[:-1])
    yield "a missing file", steps.unlink
    yield "another version", changed(v=2)
    yield "another world", changed(world_size=3)
    yield "other columns", changed(columns=["t"])
    yield "a name outside", changed(steps=[{"name": "../rank-00000.jsonl", "size": 1, "crc": 1}])
    yield "no number", changed(num_steps="many")
    yield "a negative place", changed(files={"rank-00000.jsonl": {"offset": -1}})
    yield "a size beyond any file", changed(steps=[{"name": "steps-00000", "size": 1 << 70, "crc": 1}])
    yield "a size beyond any memory", changed(steps=[{"name": "steps-00000", "size": 1 << 40, "crc": 1}])
    yield "a count beyond any place", changed(num_steps=1 << 70)
    yield "not an object", lambda: state.write_bytes(b"[1]\n")
    yield "nested too deeply", lambda: state.write_bytes(b"[" * 100_000)
    yield "a state without an end", lambda: os.truncate(state, 1 << 30)


def test_a_rollup_that_is_not_whole_is_not_used_and_the_answer_is_the_same(tmp_path: Path) -> None:
    busy_run(tmp_path)
    Keeper(tmp_path).write()
    plain, folder = without_rollup(tmp_path), rollup_dir(telemetry_dir(tmp_path))
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    for what, damage in damaged_states(folder):
        damage()
        assert read_rollup(telemetry_dir(tmp_path), 2) is None, what
        assert_equal(read(tmp_path, 2), plain)
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
    assert read_rollup(telemetry_dir(tmp_path), 2) is not None


def test_bytes_behind_those_that_the_state_names_are_passed_over(tmp_path: Path) -> None:
    busy_run(tmp_path)
    Keeper(tmp_path).write()
    with (rollup_dir(telemetry_dir(tmp_path)) / "steps-00000").open("ab") as file:
        file.write(b"half a block")
    assert read_rollup(telemetry_dir(tmp_path), 2) is not None
    assert_equal(read(tmp_path, 2), without_rollup(tmp_path))


def test_files_that_were_replaced_since_are_read_instead(tmp_path: Path) -> None:
    busy_run(tmp_path)
    Keeper(tmp_path).write()
    rank_file(tmp_path, 0).write_bytes(hello(0, 2) + step(0, 1, 2.0))
    assert_equal(read(tmp_path, 2), without_rollup(tmp_path))


def test_a_copy_of_the_folder_is_opened_by_its_rollup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    busy_run(tmp_path / "a")
    Keeper(tmp_path / "a").write()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = []
    monkeypatch.setattr(
        "tpdpdash.telemetry.reader.read_rollup", lambda *asked: found.append(read_rollup(*asked)) or found[-1]
    )
    assert_equal(read(tmp_path / "b", 2), read(tmp_path / "a", 2))
    assert all(each is not None for each in found)


def test_a_disk_that_refuses_ends_the_rollup_and_nothing_else(tmp_path: Path) -> None:
    busy_run(tmp_path)
    keeper = Keeper(tmp_path)
    rollup_dir(telemetry_dir(tmp_path)).write_text("in the way")
    keeper.update()
    keeper.writer.close(keeper.files)
    assert keeper.writer.problem is not None
    append(tmp_path, step(0, 41))
    keeper.update()
    keeper.writer.flush_if_due(keeper.files)
    assert read(tmp_path, 2).steps.tolist() == list(range(1, 42))


def test_a_disk_that_is_too_slow_ends_the_rollup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollup_module, "MAX_WAITING_BYTES", 100)
    monkeypatch.setattr(rollup_module, "MIN_INTERVAL_S", 0.0)
    busy_run(tmp_path)
    keeper = Keeper(tmp_path)

    class Stuck:
        def is_alive(self) -> bool:
            return True

    keeper.writer._writing = Stuck()  # type: ignore[assignment]
    keeper.update()
    keeper.writer.flush_if_due(keeper.files)
    assert keeper.writer.problem == "the disk is too slow"
    assert keeper.writer._waiting_bytes == 0


def test_more_processes_of_a_rank_than_are_kept_are_still_two_and_the_last_one_counts(tmp_path: Path) -> None:
    append(tmp_path, b"".join(hello(0, 2, pid=pid) for pid in range(1, 20)) + step(0, 1))
    Keeper(tmp_path).write()
    seen = read(tmp_path, 2)
    assert (seen.duplicated_ranks, seen.ranks[0].pid) == ({0}, 19)
    assert_equal(seen, without_rollup(tmp_path))


def test_a_rank_whose_last_event_is_long_ago_keeps_it(tmp_path: Path) -> None:
    append(tmp_path, hello(1, 2) + line("event", 1, name="building"), rank=1)
    keeper = Keeper(tmp_path)
    keeper.update()
    append(tmp_path, hello(0, 2) + b"".join(line("event", name=f"e{i}") for i in range(rollup_module.MAX_EVENTS)))
    keeper.write()
    seen = read(tmp_path, 2)
    assert dict(seen.last_event) == {0: f"e{rollup_module.MAX_EVENTS - 1}", 1: "building"}
    assert len(seen.events) == rollup_module.MAX_EVENTS


def test_a_deep_profile_is_remembered_however_many_events_follow(tmp_path: Path) -> None:
    append(tmp_path, hello(0, 1) + b"".join(step(0, number) for number in range(1, 6)))
    append(tmp_path, line("event", name="profiled", step=2))
    keeper = Keeper(tmp_path, 1)
    keeper.update()
    append(tmp_path, b"".join(line("event", name="checkpoint", step=i) for i in range(rollup_module.MAX_EVENTS)))
    keeper.write()
    seen = read(tmp_path, 1)
    assert [(note.step, note.event) for note in seen.profiles] == [(2, "profiled")]
    assert seen.undisturbed().steps.tolist() == [1, 4, 5]
    assert dict(seen.last_event) == {0: "checkpoint"}
    assert_equal(seen, without_rollup(tmp_path, 1))


def test_a_rank_that_began_anew_has_neither_events_nor_profiles_of_the_former_run(tmp_path: Path) -> None:
    for rank in (0, 1):
        append(tmp_path, hello(rank, 2) + step(rank, 1) + line("event", rank, name="profiled", step=1), rank)
    keeper, followed = Keeper(tmp_path), RunReader(tmp_path, 2)
    keeper.update()
    followed.refresh()
    rank_file(tmp_path, 0).unlink()
    append(tmp_path, hello(0, 2, pid=2) + line("event", name="building"))
    keeper.write()
    followed.refresh()
    seen = read(tmp_path, 2)
    assert [(note.rank, note.step) for note in seen.profiles] == [(1, 1)]
    assert sorted((rank, name) for _, rank, name in seen.events) == [(0, "building"), (1, "profiled")]
    assert (followed.snapshot().events, followed.snapshot().profiles) == (seen.events, seen.profiles)


pieces = st.lists(
    st.tuples(st.sampled_from(["step", "timeline", "hello", "event", "profile", "heartbeat", "bad"]),
              st.integers(0, 2), st.integers(0, 60), st.booleans()),
    max_size=40,
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(told=pieces, cut=st.integers(0, 40))
def test_whatever_is_told_and_wherever_the_rollup_ends_the_answers_are_equal(
    tmp_path_factory: pytest.TempPathFactory, told: list[tuple[str, int, int, bool]], cut: int
) -> None:
    run = tmp_path_factory.mktemp("run")
    keeper = Keeper(run, 3)
    for i, (kind, rank, number, looks) in enumerate(told):
        made = {
            "step": step(rank, number, 1.0 + i, loss_is_finite=number % 5 != 0, lost_records=number % 3),
            "timeline": line("timeline", rank, step=number % 8, actions=[["F", 0, i, 0.1, 0.2]]),
            "hello": hello(rank, 3, pid=1 + number % 2),
            "event": line("event", rank, name=f"e{i}"),
            "profile": line("event", rank, name=PROFILE_EVENTS[i % 3], step=number if number % 7 else None),
            "heartbeat": line("heartbeat", rank, step=number, phase="dp", collectives=i),
            "bad": b"{\n",
        }
        append(run, made[kind], rank)
        if looks and i < cut:
            keeper.update()
        if i == cut:
            keeper.write()
    if cut >= len(told):
        keeper.write()
    with_rollup, plain = read(run, 3), without_rollup(run, 3)
    assert_equal(with_rollup, plain)
    assert rollup_reader.read_rollup(telemetry_dir(run), 3) is not None
