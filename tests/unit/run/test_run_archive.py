"""Deleting and archiving a run: never one that lives, and nothing is removed before the archive is proven."""

from __future__ import annotations

import os
import stat
import tarfile
import time
from pathlib import Path

import pytest
from kept_run import contents, run_of

from tpdpdash.faults import InvalidInputError
from tpdpdash.run import archive as archive_module
from tpdpdash.run.archive import archive_run, archives_dir, delete_run
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.history import list_runs
from tpdpdash.run.restore import restore_run


def codes(found: pytest.ExceptionInfo[InvalidInputError]) -> list[str]:
    return [fault.code for fault in found.value.faults]


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize("state", ["finished", "failed", "stopped"])
def test_a_run_that_is_over_is_deleted_and_no_other(tmp_path: Path, state: str) -> None:
    root = tmp_path / "runs"
    kept, gone = run_of(root, "finished"), run_of(root, state)
    delete_run(gone)
    assert [view.run_id for view in list_runs(root)] == [kept.run_id]
    assert [path.name for path in root.iterdir()] == [kept.run_id]


@pytest.mark.parametrize("end", [delete_run, archive_run])
@pytest.mark.parametrize("state", ["created", "starting", "running", "stopping"])
def test_a_run_that_lives_is_neither_deleted_nor_archived(tmp_path: Path, state: str, end: object) -> None:
    folder = run_of(tmp_path / "runs", state)
    before = contents(folder.path)
    with pytest.raises(InvalidInputError) as refused:
        end(folder)  # type: ignore[operator]
    assert codes(refused) == ["run_alive"]
    assert contents(folder.path) == before


def test_a_lost_run_of_another_machine_is_kept_for_a_day(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "runs", "running", host="elsewhere", heartbeat=time.time() - 3600)
    with pytest.raises(InvalidInputError) as refused:
        delete_run(folder)
    assert codes(refused) == ["run_may_live"]
    old = run_of(tmp_path / "runs", "running", host="elsewhere", heartbeat=time.time() - 2 * 24 * 3600)
    delete_run(old)
    assert not old.path.exists()


def test_a_lost_run_of_this_machine_is_deleted(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "runs", "running", supervisor_pid=4242, supervisor_start_time=1.0)
    delete_run(folder)
    assert not folder.path.exists()


def test_an_archive_lies_apart_from_the_runs_and_unpacked_is_the_run_again(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    folder = run_of(root, "finished")
    before = contents(folder.path)
    made = archive_run(folder)
    assert made.path == archives_dir() / f"{folder.run_id}.tar.gz"
    assert list(root.iterdir()) == []
    assert made.archive_bytes < made.folder_bytes / 10
    assert made.path.stat().st_mode & 0o077 == 0
    with tarfile.open(made.path) as tar:
        tar.extractall(root, filter="data")
    assert contents(folder.path) == before
    assert (folder.path / "latest").is_symlink()
    assert [view.state for view in list_runs(root)] == ["finished"]


@pytest.mark.parametrize("place", [".", "archive", "{run}", "{run}/logs", "link"])
def test_an_archive_that_would_lie_among_the_runs_or_in_the_run_itself_removes_nothing(
    tmp_path: Path, place: str
) -> None:
    root = tmp_path / "runs"
    folder = run_of(root, "finished")
    (tmp_path / "link").symlink_to(folder.path)
    before = contents(folder.path)
    with pytest.raises(InvalidInputError) as refused:
        archive_run(folder, tmp_path / "link" if place == "link" else root / place.format(run=folder.run_id))
    assert [fault.code for fault in refused.value.faults] == ["archive_failed"]
    assert contents(folder.path) == before
    assert list(root.iterdir()) == [folder.path]


def test_an_archive_that_cannot_be_read_back_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_of(tmp_path / "runs", "finished")
    before = contents(folder.path)
    pack = archive_module._pack

    def torn(folder: RunFolder, file: object) -> object:
        answer = pack(folder, file)  # type: ignore[arg-type]
        file.truncate(file.tell() // 2)  # type: ignore[attr-defined]
        return answer

    monkeypatch.setattr(archive_module, "_pack", torn)
    with pytest.raises(InvalidInputError) as refused:
        archive_run(folder, tmp_path / "out")
    assert codes(refused) == ["archive_failed"]
    assert contents(folder.path) == before
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_that_came_while_packing_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_of(tmp_path / "runs", "finished")
    pack = archive_module._pack

    def late(folder: RunFolder, file: object) -> object:
        answer = pack(folder, file)  # type: ignore[arg-type]
        (folder.path / "late").write_text("late")
        return answer

    monkeypatch.setattr(archive_module, "_pack", late)
    with pytest.raises(InvalidInputError) as refused:
        archive_run(folder, tmp_path / "out")
    assert codes(refused) == ["archive_failed"]
    assert folder.status.is_file()


def test_a_restored_run_is_archived_again_by_the_archive_that_was_kept(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "runs", "finished")
    first = archive_run(folder).path
    before = first.read_bytes()
    restore_run(first, tmp_path / "runs")
    assert archive_run(folder).path == first
    assert (first.read_bytes(), list((tmp_path / "runs").iterdir())) == (before, [])


def test_an_archive_of_that_name_is_not_replaced(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "runs", "finished")
    target = tmp_path / "out" / f"{folder.run_id}.tar.gz"
    target.parent.mkdir()
    target.write_bytes(b"another")
    with pytest.raises(InvalidInputError) as refused:
        archive_run(folder, target.parent)
    assert codes(refused) == ["archive_exists"]
    assert target.read_bytes() == b"another"
    assert folder.status.is_file()


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK])
def test_a_pipe_or_socket_in_the_folder_is_no_record_and_nothing_is_removed(tmp_path: Path, kind: int) -> None:
    folder = run_of(tmp_path / "runs", "finished")
    os.mknod(folder.path / "no-record", kind | 0o600)
    with pytest.raises(InvalidInputError) as refused:
        archive_run(folder, tmp_path / "out")
    assert codes(refused) == ["archive_failed"]
    assert folder.status.is_file()


def test_a_removal_that_is_cut_short_leaves_a_run_that_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_of(tmp_path / "runs", "finished")

    def refused(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(archive_module.shutil, "rmtree", refused)
        with pytest.raises(InvalidInputError) as wrong:
            delete_run(folder)
    assert codes(wrong) == ["run_not_removed"]
    assert [view.state for view in list_runs(tmp_path / "runs")] == ["finished"]
    delete_run(folder)
    assert not folder.path.exists()
