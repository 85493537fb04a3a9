"""The way back of an archived run: whole, below its own folder, or not at all."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from pathlib import Path

import pytest
from kept_run import contents, run_of

from tpdpdash.faults import InvalidInputError
from tpdpdash.run import restore as restore_module
from tpdpdash.run.archive import archive_run
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.history import list_runs
from tpdpdash.run.restore import archived_runs, find_archive, restore_run
from tpdpdash.text import fault_text

RUN = "20261130-131502-demo-x7k2"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def refusal(archive: Path, root: Path) -> str:
    """The code by which an archive is refused; nothing may have come of it."""
    before = sorted(root.rglob("*")) if root.exists() else []
    with pytest.raises(InvalidInputError) as refused:
        restore_run(archive, root)
    (fault,) = refused.value.faults
    assert fault_text(fault)
    assert sorted(root.rglob("*")) == before
    return fault.code


def tar_of(path: Path, *members: tuple[str, bytes | str | None]) -> Path:
    """An archive of a run with these members besides: content, a link's target, or None for a folder."""
    with tarfile.open(path, "w:gz") as tar:
        for name, what in ((RUN, None), *members):
            info = tarfile.TarInfo(name)
            if what is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(what, str):
                info.type, info.linkname = tarfile.SYMTYPE, what
            else:
                info.size = len(what)
            tar.addfile(info, io.BytesIO(what) if isinstance(what, bytes) else None)
    return path


def test_a_run_comes_back_as_it_was_and_its_archive_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    folder = run_of(root, "finished")
    before, times = contents(folder.path), folder.status.stat().st_mtime
    made = archive_run(folder)
    assert archived_runs() == [folder.run_id]
    back = restore_run(find_archive(folder.run_id), root)
    assert (back.folder, back.num_files) == (folder, made.num_files)
    assert contents(folder.path) == before
    assert (folder.path / "latest").readlink() == Path("logs")
    assert folder.status.stat().st_mtime == pytest.approx(times, abs=1)
    assert {path.stat().st_mode & 0o077 for path in (folder.path, *folder.path.rglob("*"))} == {0}
    assert [view.state for view in list_runs(root)] == ["finished"]
    assert [path.name for path in root.iterdir()] == [folder.run_id]
    assert made.path.is_file()


def test_a_file_with_two_names_is_archived_under_both(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "runs", "finished")
    os.link(folder.telemetry / "rank-00000.jsonl", folder.logs / "second-name")
    before = contents(folder.path)
    restore_run(archive_run(folder, tmp_path / "out").path, tmp_path / "runs")
    assert contents(folder.path) == before


def test_an_archive_is_found_by_its_path_its_run_or_the_runs_beginning(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "runs", "finished")
    path = archive_run(folder).path
    suffix = folder.run_id.rpartition("-")[2]
    assert {find_archive(name) for name in (str(path), folder.run_id, folder.run_id[:15], suffix)} == {path}
    for name in ("", "nothing", "../demo", "a\0b"):
        with pytest.raises(InvalidInputError) as refused:
            find_archive(name)
        assert refused.value.faults[0].field == "archive"
        assert fault_text(refused.value.faults[0])


def test_a_run_that_is_there_is_not_replaced_not_even_an_empty_folder_of_its_name(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", (f"{RUN}/status.json", b"{}"))
    (tmp_path / "runs" / RUN).mkdir(parents=True)
    assert refusal(archive, tmp_path / "runs") == "run_exists"
    (tmp_path / "runs" / RUN).rmdir()
    (tmp_path / "runs" / RUN).symlink_to("nowhere")
    assert refusal(archive, tmp_path / "runs") == "run_exists"


def test_a_run_that_another_call_restores_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", (f"{RUN}/status.json", b"{}"))
    unpack = restore_module._unpack

    def overtaken(path: Path, folder: Path) -> tuple[str, int]:
        found = unpack(path, folder)
        (folder.parent / RUN / "logs").mkdir(parents=True)
        return found

    monkeypatch.setattr(restore_module, "_unpack", overtaken)
    with pytest.raises(InvalidInputError) as refused:
        restore_run(archive, tmp_path / "runs")
    assert [fault.code for fault in refused.value.faults] == ["run_exists"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [RUN]


def says_the_same(archive: Path, whole: bytes) -> bool:
    """Whether a changed archive unpacks to the same bytes: deflate can say one thing in several ways."""
    try:
        return gzip.decompress(archive.read_bytes()) == gzip.decompress(whole)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return False


def test_a_torn_archive_leaves_nothing_wherever_it_is_torn(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "runs", "finished")
    whole = archive_run(folder).path.read_bytes()
    torn = tmp_path / "torn.tar.gz"
    for size in (0, 5, len(whole) // 3, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        torn.write_bytes(whole[:size])
        assert refusal(torn, tmp_path / "back") == "archive_torn", size
    begin = whole.index(b"\0", 10) + 1  # gzip's own header names the file, and no checksum holds that
    for at in range(begin, len(whole), max(1, len(whole) // 40)):
        torn.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        if not says_the_same(torn, whole):
            assert refusal(torn, tmp_path / "back") in ("archive_torn", "archive_foreign"), at
    for nothing in (b"no archive at all", gzip.compress(b""), gzip.compress(b"no tar" * 1000)):
        torn.write_bytes(nothing)
        assert refusal(torn, tmp_path / "back") == "archive_torn"


def test_a_checksum_that_does_not_hold_is_seen_though_every_member_could_be_read(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", (f"{RUN}/status.json", b"{}"))
    data = archive.read_bytes()
    assert zlib.crc32(gzip.decompress(data)).to_bytes(4, "little") == data[-8:-4]
    archive.write_bytes(data[:-8] + b"\0\0\0\0" + data[-4:])
    assert refusal(archive, tmp_path / "runs") == "archive_torn"


@pytest.mark.parametrize(
    "members",
    [
        [("../escaped", b"x")],
        [(f"{RUN}/../escaped", b"x")],
        [("/tmp/tpdpdash-escaped", b"x")],
        [(f"{RUN}/logs/./a", b"x")],
        [("20261130-131502-another-x7k2", None)],
        [(f"{RUN}/file-before-its-folder/a", b"x")],
        [(f"{RUN}/a", b"x"), (f"{RUN}/a", b"y")],
        [(f"{RUN}/a", b"x"), (f"{RUN}/a/b", b"y")],
        [(f"{RUN}/out", "/etc")],
        [(f"{RUN}/out", "..")],
        [(f"{RUN}/out", "")],
        [(f"{RUN}/logs", None), (f"{RUN}/logs/out", "../..")],
        [(f"{RUN}/here", "."), (f"{RUN}/out", "here/../..")],
        [(f"{RUN}/in", "logs"), (f"{RUN}/in/a", b"through a link")],
        [(f"{RUN}/in", "logs"), (f"{RUN}/in", b"over a link")],
    ],
)
def test_nothing_is_written_outside_the_runs_folder_and_no_link_leaves_it(
    tmp_path: Path, members: list[tuple[str, bytes | str | None]]
) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", *members)
    assert refusal(archive, tmp_path / "runs") == "archive_foreign"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "runs"]
    assert not Path("/tmp/tpdpdash-escaped").exists()


def test_devices_pipes_and_hard_links_are_no_records(tmp_path: Path) -> None:
    for kind in (tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.LNKTYPE):
        path = tar_of(tmp_path / "a.tar.gz", (f"{RUN}/status.json", b"{}"))
        with tarfile.open(path, "w:gz") as tar:
            for name, of_kind in ((RUN, tarfile.DIRTYPE), (f"{RUN}/a", kind)):
                info = tarfile.TarInfo(name)
                info.type, info.linkname = of_kind, "/etc/passwd" if of_kind == tarfile.LNKTYPE else ""
                tar.addfile(info)
        assert refusal(path, tmp_path / "runs") == "archive_foreign"


def test_an_archive_whose_folder_is_no_run_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(Path(__file__), "notes/test.py")
    assert refusal(tmp_path / "a.tar.gz", tmp_path / "runs") == "archive_foreign"


def test_files_that_anybody_could_run_or_read_are_their_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, mode in ((RUN, tarfile.DIRTYPE, 0o777), (f"{RUN}/a", tarfile.REGTYPE, 0o6777)):
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, mode
            tar.addfile(info)
    folder = restore_run(path, tmp_path / "runs").folder
    assert folder == RunFolder(tmp_path / "runs" / RUN)
    assert [(p.stat().st_mode & 0o7777) for p in (folder.path, folder.path / "a")] == [0o700, 0o700]


def test_no_room_and_no_permission_are_said_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", (f"{RUN}/status.json", b"{}"))
    (tmp_path / "runs").write_text("a file where the runs should be")
    with pytest.raises(InvalidInputError) as refused:
        restore_run(archive, tmp_path / "runs")
    assert refused.value.faults[0].code == "archive_not_restored"
    usage = type("Usage", (), {"free": restore_module.MIN_FREE_BYTES})()
    monkeypatch.setattr(restore_module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(InvalidInputError) as refused:
        restore_run(archive, tmp_path / "back")
    assert refused.value.faults[0].values["reason"] == os.strerror(28)
    assert list((tmp_path / "back").iterdir()) == []
