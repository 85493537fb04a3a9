"""Commands on runs that exist, as a program sees them."""

import time
from pathlib import Path

import pytest

from tpdpdash.run.folder import RunFolder, new_run_folder, write_json
from tpdpdash.run.history import read_state
from tpdpdash.run.status import RunStatus, State
from tpdpdash.run.stop import StopResult
from tpdpdash.telemetry.profile_request import read_request


def run_of(root: Path, state: State, name: str = "demo") -> RunFolder:
    """A run of two ranks on another machine, heard of just now."""
    folder = new_run_folder(root, name)
    status = RunStatus(
        state=state, engine="local", host="elsewhere", boot_id="b", created=1.0, supervisor_pid=1,
        supervisor_start_time=1.0, heartbeat=time.time(), world_size=2,
    )  # fmt: skip
    write_json(folder.status, status.to_json())
    return folder


def test_an_empty_history_and_unknown_runs(tpdpdash):
    assert tpdpdash("runs", "--json").document == []
    for name in ("nothing", "../..", "x" * 300):
        answer = tpdpdash("show", name, "--json")
        assert (answer.status, answer.out) == (2, "")


def test_a_run_that_is_over_is_archived_and_another_deleted(tpdpdash, runs_root, tmp_path):
    first, second = (run_of(runs_root, "finished", name) for name in ("first", "second"))
    packed = tpdpdash("archive", first.run_id, "--to", str(tmp_path / "kept"))
    assert packed.status == 0
    assert packed.out.splitlines()[0] == str(tmp_path / "kept" / f"{first.run_id}.tar.gz")
    assert tpdpdash("delete", second.run_id).out == f"{second.run_id} is deleted\n"
    assert tpdpdash("runs", "--json").document == []
    assert tpdpdash("delete", second.run_id).status == 2
    back = tpdpdash("restore", packed.out.splitlines()[0])
    assert back.out.startswith(f"{first.run_id} is in the history again")
    assert [run["run"] for run in tpdpdash("runs", "--json").document] == [first.run_id]
    again = tpdpdash("restore", packed.out.splitlines()[0])
    assert (again.status, again.err) == (2, f"run: {first.run_id} is in the history already; nothing was changed\n")


def test_ctrl_c_while_a_deep_profile_is_awaited_leaves_the_request(tpdpdash, monkeypatch, runs_root):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tpdpdash.cli.profile.time.sleep", interrupted)
    folder = run_of(runs_root, "running")
    answer = tpdpdash("profile", folder.run_id, "--ranks", "0,1", "--step", "30")
    assert (answer.status, answer.out) == (0, "")
    assert answer.err.splitlines()[0] == "asked: step 30 of 0, 1"
    assert "The request stands" in answer.err
    assert read_request(folder.path).step == 30
    again = tpdpdash("profile", folder.run_id, "--no-wait")
    assert again.status == 0
    assert "in place of a request that had not begun: rank 0, step 30" in again.err
    assert read_request(folder.path).ranks == (0,)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--step", "soon"), "--step must be a whole number, not soon"),
        (("--ranks", "0-3"), "--ranks is 0-3: it must be ranks with commas between them"),
        (("--ranks", "2"), "--ranks: there is no rank 2: the last one is 1"),
    ],
)
def test_a_deep_profile_that_cannot_be_is_one_line(words, said, tpdpdash, runs_root):
    folder = run_of(runs_root, "running")
    answer = tpdpdash("profile", folder.run_id, *words)
    assert (answer.status, answer.out, len(answer.err.splitlines())) == (2, "", 1)
    assert answer.err.startswith(said)
    assert not folder.profile_request.exists()


def test_r112_a_process_that_no_signal_ends_is_named_and_stop_has_failed(tpdpdash, monkeypatch, runs_root):
    """In D state: the wait is bounded (unit/run/test_run_folder.py)."""
    folder = run_of(runs_root, "failed")
    left = StopResult(view=read_state(folder), could_not_kill=(12345,))
    monkeypatch.setattr("tpdpdash.run.stop.stop_run", lambda *_, **__: left)
    answer = tpdpdash("stop", folder.run_id)
    assert (answer.status, answer.err) == (1, "process 12345 could not be killed\n")
