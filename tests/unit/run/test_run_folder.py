"""Run folders, status files and the reader's judgement: nothing that stands in a folder breaks a reader."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from run_statuses import own_status, status_of

from tpdpdash.faults import InvalidInputError
from tpdpdash.run import history, preflight, processes, request, stop
from tpdpdash.run.folder import (
    RunFolder,
    asked_to_stop_by,
    find_run,
    new_run_folder,
    read_json,
    run_ids,
    runs_root,
    write_json,
)
from tpdpdash.run.history import count_runs, list_runs, read_state
from tpdpdash.run.processes import ProcessId, belongs_to_run, identify, processes_of_run
from tpdpdash.run.request import RunRequest, start_request
from tpdpdash.run.status import FirstFailure, RunStatus
from tpdpdash.run.stop import stop_run
from tpdpdash.telemetry.process import start_time_s


def run_with(root: Path, status: RunStatus | bytes | None) -> RunFolder:
    folder = new_run_folder(root, "test")
    if isinstance(status, RunStatus):
        write_json(folder.status, status.to_json())
    elif status is not None:
        folder.status.write_bytes(status)
    return folder


def test_ids_are_readable_unique_and_sort_by_time(runs_root: Path) -> None:
    older = new_run_folder(runs_root, "Llama 3/8B!", now=1796044502)
    newer = new_run_folder(runs_root, "", now=1796044503)
    assert re.fullmatch(r"20261130-131502-llama-3-8b-[a-z0-9]{4}", older.run_id)
    assert run_ids(runs_root) == [newer.run_id, older.run_id]
    assert older.path.stat().st_mode & 0o777 == 0o700
    assert runs_root.stat().st_mode & 0o777 == 0o700


def test_a_run_is_found_by_its_id_a_beginning_or_its_last_letters(runs_root: Path) -> None:
    first = new_run_folder(runs_root, "a", now=1796044502)
    second = new_run_folder(runs_root, "b", now=1796044503)
    assert find_run(runs_root, first.run_id) == first
    assert find_run(runs_root, "20261130-131503") == second
    assert find_run(runs_root, second.run_id[-4:]) == second
    with pytest.raises(InvalidInputError, match="run_ambiguous"):
        find_run(runs_root, "2026")


@pytest.mark.parametrize("name", ["../../etc", "", ".", "..", "a/b", "A B", "x" * 500, "none-such"])
def test_a_name_that_is_no_run_is_refused(runs_root: Path, name: str) -> None:
    with pytest.raises(InvalidInputError):
        find_run(runs_root, name)


def test_the_root_is_what_the_environment_says_or_the_users_state_directory(tmp_path: Path) -> None:
    assert runs_root({"TPDPDASH_RUNS": str(tmp_path / "r")}) == tmp_path / "r"
    assert runs_root({}) == tmp_path / "state" / "tpdpdash" / "runs"


def test_a_status_reads_back_as_it_was_written() -> None:
    failure = FirstFailure(code="rank_killed", rank=3, signal="SIGKILL", exit_code=-9, others=((1, "x"),))
    status = own_status(state="failed", first_failure=failure, ranks_by_phase={"building": 2}, could_not_kill=(7,))
    document = json.loads(json.dumps(status.to_json()))
    assert document["supervisor"] == {"pid": os.getpid(), "start_time": start_time_s(os.getpid())}
    assert RunStatus.from_json(document) == status


def test_a_living_supervisor_means_that_the_state_is_what_it_wrote(runs_root: Path) -> None:
    assert read_state(run_with(runs_root, own_status())).state == "running"


@pytest.fixture
def stranger() -> subprocess.Popen[bytes]:
    """A process that has nothing to do with any run."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_pid_that_another_program_has_by_now_is_not_shown_as_running_nor_signalled(
    runs_root: Path, stranger: subprocess.Popen[bytes]
) -> None:
    """b84."""
    folder = run_with(runs_root, status_of(stranger.pid, 1.0))
    assert read_state(folder).state == "lost"
    result = stop_run(folder, by="test")
    assert (result.view.state, result.could_not_kill) == ("lost", ())
    assert stranger.poll() is None


def test_a_status_that_names_a_stranger_to_the_clock_tick_is_not_believed_when_it_comes_to_signals(
    runs_root: Path, stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made up, or come with somebody's archive."""
    monkeypatch.setattr(stop, "STOP_LIMIT_S", 0.3)
    started = start_time_s(stranger.pid)
    assert started is not None
    folder = run_with(runs_root, status_of(stranger.pid, started))
    stop_run(folder, by="test")
    assert stranger.poll() is None


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_file_system_that_is_away_for_a_moment_asks_for_no_end(
    runs_root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder = new_run_folder(runs_root, "x")

    def fails(path: Path, **_: object) -> os.stat_result:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as away:
        away.setattr(Path, "stat", fails)
        assert asked_to_stop_by(folder) is None
    assert asked_to_stop_by(folder) is None
    shutil.rmtree(folder.path)
    assert asked_to_stop_by(folder) == "deletion"


def test_a_pipe_where_a_file_should_be_keeps_nobody_waiting(runs_root: Path) -> None:
    folder = run_with(runs_root, own_status())
    for path in (folder.stop_request, folder.prediction, folder.elsewhere):
        path.parent.mkdir(exist_ok=True)
        os.mkfifo(path)
    assert asked_to_stop_by(folder) == "unknown"
    for read in (lambda: read_json(folder.prediction), folder.elsewhere_command):
        with pytest.raises(OSError, match="not a plain file"):
            read()
    folder.status.unlink()
    os.mkfifo(folder.status)
    view = read_state(folder)
    assert (view.state, "not a plain file" in view.damage) == ("damaged", True)
    assert view.world_size == 1, "until a status says how many"


def test_a_pid_that_never_was_is_lost(runs_root: Path) -> None:
    assert read_state(run_with(runs_root, status_of(2**22 - 1, 1.0))).state == "lost"


@pytest.mark.parametrize("elsewhere", [{"host": "another"}, {"boot_id": "another"}])
def test_a_reader_elsewhere_judges_by_the_age_of_the_heartbeat_and_not_by_pid(
    runs_root: Path, elsewhere: dict[str, str]
) -> None:
    status = status_of(2**22 - 1, 1.0, **elsewhere)
    assert read_state(run_with(runs_root, status)).state == "running"
    old = replace(status, heartbeat=time.time() - 600)
    assert read_state(run_with(runs_root, old)).state == "lost"


def test_a_run_that_has_ended_stays_what_it_is(runs_root: Path) -> None:
    assert read_state(run_with(runs_root, status_of(2**22 - 1, 1.0, state="stopped"))).state == "stopped"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b'{"id":"a","pid":12', id="b85-half-written"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * 100, id="nul-bytes"),
        pytest.param(b"[]", id="a-list"),
        pytest.param(b'{"v": 1}', id="fields-missing"),
        pytest.param(b'{"v": 2, "state": "running"}', id="another-version"),
        pytest.param(b"[" * 100_000, id="nested-too-deeply"),
        pytest.param(b'{"v": 1, "state": "running", "supervisor": {"pid": "4", "start_time": 1}}', id="pid-is-text"),
    ],
)
def test_a_damaged_status_is_shown_as_damaged(runs_root: Path, text: bytes) -> None:
    folder = run_with(runs_root, text)
    (view,) = list_runs(runs_root)
    assert (view.folder, view.state, view.status) == (folder, "damaged", None)
    assert view.damage
    assert stop_run(folder, by="test").could_not_kill == ()


@pytest.mark.parametrize("key", ["state", "created", "exit_code", "world_size", "ranks_by_phase", "first_failure"])
def test_a_status_with_a_value_of_another_kind_is_damaged(runs_root: Path, key: str) -> None:
    document = {**own_status().to_json(), key: True}
    assert read_state(run_with(runs_root, json.dumps(document).encode())).state == "damaged"


def test_a_folder_without_a_status_is_being_made_or_was_cut_short(runs_root: Path) -> None:
    folder = run_with(runs_root, None)
    assert read_state(folder).state == "created"
    os.utime(folder.path, (0, 0))
    assert read_state(folder).state == "damaged"


def test_of_many_old_runs_only_the_listed_ones_are_opened(runs_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """b87, by what is opened instead of by the clock."""
    runs_root.mkdir()
    for number in range(3_000):
        (runs_root / f"20261130-{number:06d}-old-run-abcd").mkdir()
    (runs_root / "not-a-run").mkdir()
    opened = []
    monkeypatch.setattr(history, "read_state", lambda folder: opened.append(folder.run_id))
    list_runs(runs_root, limit=20, offset=10)
    assert opened == [f"20261130-{number:06d}-old-run-abcd" for number in range(2_989, 2_969, -1)]
    assert count_runs(runs_root) == 3_000


def test_a_full_disk_at_the_start_is_an_error_and_leaves_no_half_registered_run(
    runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b86."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(request, "write_json", full)
    with pytest.raises(InvalidInputError, match="No space left"):
        start_request(RunRequest(name="x", world_size=1), root=runs_root)
    assert run_ids(runs_root) == []
    assert list(runs_root.iterdir()) == []


def test_a_root_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="run_not_started"):
        start_request(RunRequest(name="x", world_size=1), root=tmp_path / "file" / "runs")


def test_a_write_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError):
        write_json(path, {"a": float("nan")})
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["status.json"]


def test_a_process_that_cannot_be_killed_is_named_after_a_bounded_time(
    runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """r112: a process in D state, played by one that no signal reaches."""
    hanging = ProcessId(12345, 1.0)
    monkeypatch.setattr(processes, "processes_of_run", lambda *_, **__: [hanging])
    monkeypatch.setattr(processes, "send_signal", lambda *_: True)
    monkeypatch.setattr(processes, "KILL_LIMIT_S", 0.2)
    monkeypatch.setattr(stop, "LINGER_S", 0.0)
    folder = run_with(runs_root, status_of(2**22 - 1, 1.0))
    assert stop_run(folder, by="test").could_not_kill == (12345,)


def test_processes_of_a_run_are_told_by_their_environment_and_start(stranger: subprocess.Popen[bytes]) -> None:
    environment = {**os.environ, "TPDPDASH_RUN_ID": "20261130-000000-x-abcd"}
    script = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
    member = subprocess.Popen(script, env=environment, stdout=subprocess.PIPE)
    try:
        assert member.stdout is not None
        member.stdout.readline()  # exec is over: the environment can be read
        process = identify(member.pid)
        assert process is not None
        assert process.is_alive
        assert processes_of_run("20261130-000000-x-abcd") == [process]
        assert not belongs_to_run(stranger.pid, "20261130-000000-x-abcd")
        assert processes_of_run("20261130-000000-x") == []  # a beginning of an id is another id
        assert not ProcessId(member.pid, process.start_time - 1).is_alive
    finally:
        member.kill()
        member.communicate()
    assert not process.is_alive


def test_a_damaged_status_does_not_hide_the_processes_of_a_run_from_stop(runs_root: Path) -> None:
    """Its status is half-written; a rank of it still lives, and a stranger too."""
    folder = run_with(runs_root, b'{"v": 1, "st')
    environment = {**os.environ, "TPDPDASH_RUN_ID": folder.run_id}
    script = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
    member = subprocess.Popen(script, env=environment, stdout=subprocess.PIPE)
    stranger = subprocess.Popen(script, stdout=subprocess.PIPE)
    try:
        for process in (member, stranger):
            assert process.stdout is not None
            process.stdout.readline()
        stop_within = pytest.MonkeyPatch()
        stop_within.setattr(stop, "STOP_LIMIT_S", 0.3)
        result = stop_run(folder, by="test")
        stop_within.undo()
        assert (result.view.state, result.could_not_kill) == ("damaged", ())
        assert (member.wait(), stranger.poll()) == (-9, None)
        assert read_json(folder.stop_request)["by"] == "test"  # its supervisor, if one lives, was asked first
    finally:
        for process in (member, stranger):
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("created", 1e308),
        ("created", float("nan")),
        ("world_size", 0),
        ("world_size", 10**9),
        ("world_size", -1),
        ("last_step", 1.5),
        ("ranks_by_phase", {"running": "two"}),
        ("could_not_kill", 7),
        ("could_not_kill", ["7"]),
        ("first_failure", {"code": "rank_killed", "rank": "one"}),
        ("first_failure", {"code": "rank_killed", "traceback": 5}),
        ("first_failure", {"code": "rank_killed", "others": [[None, "x"]]}),
        ("first_failure", {"code": "rank_killed", "others": 5}),
        ("first_failure", {"code": "rank_killed", "others": [5]}),
    ],
)
def test_a_status_with_a_value_that_cannot_be_is_damaged(runs_root: Path, key: str, value: object) -> None:
    document = {**own_status().to_json(), key: value}
    view = read_state(run_with(runs_root, json.dumps(document).encode()))
    assert (view.state, view.status) == ("damaged", None)
    assert key in view.damage


def test_a_root_that_cannot_be_read_is_bad_input_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "runs", tmp_path / ("x" * 300)):
        with pytest.raises(InvalidInputError, match="TPDPDASH_RUNS"):
            run_ids(root)
        with pytest.raises(InvalidInputError, match="TPDPDASH_RUNS"):
            find_run(root, "20261130-131502-a-abcd")
    with pytest.raises(InvalidInputError, match="TPDPDASH_RUNS"):
        runs_root({"TPDPDASH_RUNS": "~no-such-person-here/runs"})


def test_preflight_looks_at_a_root_that_is_too_long_for_this_file_system(tmp_path: Path) -> None:
    checks = preflight._folder_checks(tmp_path / ("x" * 300) / "runs")
    assert [check.code for check in checks] == ["runs_folder", "disk"]
