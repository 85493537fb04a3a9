"""The end of a run's records: one compressed file that is proven to hold them, or nothing. Never of a live run."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import socket
import tarfile
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.history import RunView, read_state
from tpdpdash.run.processes import processes_of_run
from tpdpdash.state_dir import made_private, state_dir
from tpdpdash.units import DAY_S, HOUR_S

SUFFIX = ".tar.gz"
SILENT_ELSEWHERE_S = DAY_S
"""A run of another machine that was lost, not ended, is taken for dead only after so long: its processes cannot be
looked at from here."""
_FAST = 3  # gzip: telemetry shrinks tenfold at 3 and little more at 9, at a third of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """One archived run."""

    path: Path
    """The file: a tar of the folder, which unpacked among the runs is the run again."""
    num_files: int
    """Files that it holds."""
    folder_bytes: int
    """What the folder held."""
    archive_bytes: int
    """What the file takes."""


def archives_dir() -> Path:
    """Where archives go unless told otherwise: only run folders stand among the runs."""
    return state_dir() / "archive"


def delete_run(folder: RunFolder) -> None:
    """Remove a run that is over. Raises InvalidInputError: it lives, or its folder cannot be removed."""
    _require_over(folder)
    _remove(folder)


def archive_run(folder: RunFolder, to: Path | None = None) -> Archive:
    """Pack a run that is over into one file, prove that the file holds every byte, then remove the folder.

    A file of that name is kept as it is: it will do where it holds the same, as after a restore. Raises
    InvalidInputError, also where the file would lie among the runs. Until the proof nothing is removed, and a file that
    was begun is taken away.
    """
    _require_over(folder)
    target = (archives_dir() if to is None else to) / f"{folder.run_id}{SUFFIX}"
    try:
        if target.parent.resolve().is_relative_to(folder.path.parent.resolve()):
            raise OSError("an archive among the runs, or in the run itself, would not outlive them")
        made_private(target.parent)
        archive = _packed(folder, target)
    except OSError as wrong:
        values = {"reason": wrong.strerror or str(wrong)}
        raise InvalidInputError(
            [Fault(code="archive_failed", field="run", value=folder.run_id, values=values)]
        ) from wrong
    _remove(folder)
    return archive


def _require_over(folder: RunFolder) -> None:
    view = read_state(folder)
    if not view.is_over or processes_of_run(view.run_id):
        raise InvalidInputError([Fault(code="run_alive", field="run", value=view.run_id, values={"state": view.state})])
    if _may_live_elsewhere(view):
        values = {"host": view.status.host if view.status else "?", "hours": round(SILENT_ELSEWHERE_S / HOUR_S)}
        raise InvalidInputError([Fault(code="run_may_live", field="run", value=view.run_id, values=values)])


def _may_live_elsewhere(view: RunView) -> bool:
    """Whether a run that wrote no end could go on where this reader sees no processes."""
    status = view.status
    if status is None or status.is_final or status.host == socket.gethostname():
        return False
    return time.time() - (status.heartbeat or status.created) < SILENT_ELSEWHERE_S


# ------------------------------------------------------------------------------------------- packing


def _packed(folder: RunFolder, target: Path) -> Archive:
    """The archive, proven: its digests, read back from the disk, are those of the files as they were packed."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            packed, num_bytes = _pack(folder, file)
            file.flush()
            os.fsync(file.fileno())
        if _digests_in(temporary, folder.run_id) != packed or set(_files(folder)) != packed.keys():
            raise OSError("what was packed is not what stands in the folder")
        if not target.exists():
            os.link(temporary, target)  # not a rename: an archive that another call has just made is kept
        elif not _holds(target, folder.run_id, packed):
            raise InvalidInputError([Fault(code="archive_exists", field="run", value=str(target))])
        return Archive(path=target, num_files=len(packed), folder_bytes=num_bytes, archive_bytes=target.stat().st_size)
    finally:
        temporary.unlink(missing_ok=True)


def _files(folder: RunFolder) -> list[str]:
    """Paths of files and links below the folder."""
    return [
        path.relative_to(folder.path).as_posix()
        for path in sorted(folder.path.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    ]


def _pack(folder: RunFolder, file: BinaryIO) -> tuple[dict[str, str], int]:
    """Pack folders, files and links; the digest of each file as it was read for it, and the bytes of all."""
    digests, num_bytes = {}, 0
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=_FAST) as tar:
        for path in (folder.path, *sorted(folder.path.rglob("*"))):
            name = path.relative_to(folder.path).as_posix()
            info = tar.gettarinfo(path, arcname=f"{folder.run_id}/{name}".removesuffix("/."))
            if info is None:  # what tarfile says of a socket
                raise OSError(f"{name} is neither a file nor a folder")
            if info.islnk():  # a second name of a file is a file of its own: no hard link is restored
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
            if info.isfile():
                with path.open("rb") as source:
                    reading = _Reading(source)
                    tar.addfile(info, reading)
                digests[name] = reading.digest.hexdigest()
                num_bytes += info.size
            elif info.isdir() or info.issym():
                tar.addfile(info)
                if info.issym():
                    digests[name] = info.linkname
            else:  # a device or a pipe is no record, and could not be packed
                raise OSError(f"{name} is neither a file nor a folder")
    return digests, num_bytes


class _Reading(io.RawIOBase):
    """A file that is digested while it is packed."""

    def __init__(self, source: BinaryIO) -> None:
        super().__init__()
        self._source = source
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """As a file does."""
        data = self._source.read(size)
        self.digest.update(data)
        return data


def _holds(path: Path, run_id: str, digests: dict[str, str]) -> bool:
    """Whether an archive can be read and has these files."""
    try:
        return _digests_in(path, run_id) == digests
    except OSError:
        return False


def _digests_in(path: Path, run_id: str) -> dict[str, str]:
    """The digests of an archive's files, read back from the disk. Raises OSError when it is damaged."""
    digests = {}
    try:
        with tarfile.open(path, mode="r:gz") as tar:
            for member in tar:
                name = member.name.removeprefix(f"{run_id}/")
                if member.issym():
                    digests[name] = member.linkname
                elif (content := tar.extractfile(member)) is not None:
                    digests[name] = hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]
    except (tarfile.TarError, EOFError, zlib.error) as damage:
        raise OSError(f"the archive cannot be read back: {damage}") from damage
    return digests


# ------------------------------------------------------------------------------------------ removing


def _remove(folder: RunFolder) -> None:
    """status.json goes last: a removal that was cut short is still a run that is over, and can be repeated."""
    try:
        if folder.path.is_symlink():
            raise OSError("the folder is a link")
        for path in folder.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != folder.status:
                path.unlink()
        folder.status.unlink(missing_ok=True)
        folder.path.rmdir()
    except OSError as wrong:
        values = {"reason": wrong.strerror or str(wrong)}
        raise InvalidInputError(
            [Fault(code="run_not_removed", field="run", value=folder.run_id, values=values)]
        ) from wrong
