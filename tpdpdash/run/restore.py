"""The way back of an archived run: its file is read whole and found harmless before a folder stands among the runs.

An archive may come from anybody. What is unpacked lies below the new folder and nowhere else: plain files, folders and
links that stay within it; a file that is torn leaves nothing.
"""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.run.archive import SUFFIX, archives_dir
from tpdpdash.run.folder import RUN_ID, RunFolder, runs_root
from tpdpdash.run.preflight import MIN_FREE_BYTES

FIELD = "archive"
_CHUNK_BYTES = 1 << 20
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A run that is in the history again."""

    folder: RunFolder
    """Where it lies."""
    num_files: int
    """Files and links that it holds."""


class _ForeignError(Exception):
    """It is no archive of a run; says what is in it that must not be."""


def archived_runs() -> list[str]:
    """Ids of the runs in the user's state directory, newest first. Raises OSError."""
    try:
        with os.scandir(archives_dir()) as entries:
            names = [entry.name.removesuffix(SUFFIX) for entry in entries if entry.name.endswith(SUFFIX)]
    except FileNotFoundError:
        return []
    return sorted((name for name in names if RUN_ID.fullmatch(name)), reverse=True)


def find_archive(name: str) -> Path:
    """The file of that path, or of that run in the user's state directory. Raises InvalidInputError."""
    try:
        if Path(name).is_file():
            return Path(name)
        known = archived_runs()
    except (OSError, ValueError) as wrong:  # a path with a NUL byte, or one that may not be looked at
        raise InvalidInputError(
            [Fault(code="file_unreadable", field=FIELD, value=name, values={"reason": str(wrong)})]
        ) from wrong
    matches = [found for found in known if name and (found.startswith(name) or found.endswith(f"-{name}"))]
    if name in known or len(matches) == 1:
        return archives_dir() / f"{name if name in known else matches[0]}{SUFFIX}"
    code = "archive_ambiguous" if matches else "archive_unknown"
    values = {"candidates": matches[:_SHOWN], "folder": str(archives_dir())}
    raise InvalidInputError([Fault(code=code, field=FIELD, value=name, values=values)])


def restore_run(archive: Path, root: Path | None = None) -> Restored:
    """Unpack an archived run among the runs. The archive is kept.

    Raises InvalidInputError: the run is there already, the file is torn, or it holds what no run folder holds. Nothing
    is left behind then.
    """
    where = root or runs_root(os.environ)
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Beside its place: what a reader finds there under the run's name is whole or is not there.
        unpacked = Path(tempfile.mkdtemp(prefix=".restored-", dir=where))
        try:
            run_id, num_files = _unpack(archive, unpacked)
            _put(unpacked, where / run_id)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
    except InvalidInputError:
        raise
    except _ForeignError as foreign:
        raise _refused("archive_foreign", archive, str(foreign)) from foreign
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as damage:
        raise _refused("archive_torn", archive, str(damage)) from damage
    except (OSError, ValueError, OverflowError) as wrong:
        reason = (wrong.strerror if isinstance(wrong, OSError) else None) or str(wrong)
        raise _refused("archive_not_restored", archive, reason) from wrong
    return Restored(folder=RunFolder(where / run_id), num_files=num_files)


def _put(unpacked: Path, place: Path) -> None:
    try:
        unpacked.rename(place)
    except OSError as wrong:
        if wrong.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        # Another call restored the run meanwhile.
        raise InvalidInputError([Fault(code="run_exists", field="run", value=place.name)]) from wrong


def _refused(code: str, archive: Path, reason: str) -> InvalidInputError:
    return InvalidInputError([Fault(code=code, field=FIELD, value=str(archive), values={"reason": reason})])


def _unpack(archive: Path, folder: Path) -> tuple[str, int]:
    """Everything in the archive, into a new folder beside the run's: its id, and how many files and links it has."""
    run_id = ""
    is_folder: dict[PurePosixPath, bool] = {}
    with gzip.open(archive) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                parts = member.name.split("/")
                run_id = run_id or parts[0]
                place = PurePosixPath(*parts[1:])
                if not RUN_ID.fullmatch(run_id) or parts[0] != run_id or {"", ".", ".."} & set(parts):
                    raise _ForeignError(member.name)
                if place in is_folder or (place.parts and not is_folder.get(place.parent)):
                    raise _ForeignError(member.name)  # twice, or below what is no folder: a link leads anywhere
                if not is_folder and os.path.lexists(folder.parent / run_id):
                    raise InvalidInputError([Fault(code="run_exists", field="run", value=run_id)])
                is_folder[place] = member.isdir()
                _make(folder / place, member, tar, depth=len(parts) - 2)
        while stream.read(_CHUNK_BYTES):  # the checksum stands at the very end, behind the tar's own
            pass
    if not is_folder.get(PurePosixPath()):
        raise _ForeignError("nothing")
    return run_id, sum(not is_dir for is_dir in is_folder.values())


def _make(path: Path, member: tarfile.TarInfo, tar: tarfile.TarFile, *, depth: int) -> None:
    """The folder, link or file, for its owner alone; `depth`: folders between it and the run's."""
    if member.isdir():
        path.mkdir(mode=0o700, exist_ok=True)
    elif member.issym() and _stays_within(member.linkname, depth):
        path.symlink_to(member.linkname)
    elif member.isreg() and depth >= 0:
        _write(path, member, tar)
    else:
        raise _ForeignError(f"{member.name} -> {member.linkname}" if member.linkname else member.name)


def _stays_within(target: str, depth: int) -> bool:
    """Whether a link, so many folders below the run's, leads up no further than to that one. Steps up stand first:
    behind a name that is itself a link they would lead elsewhere than they say."""
    parts = target.split("/")
    steps_up = next((n for n, part in enumerate(parts) if part != ".."), len(parts))
    return bool(target) and not target.startswith("/") and steps_up <= depth and ".." not in parts[steps_up:]


def _write(path: Path, member: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
    if member.size > shutil.disk_usage(path.parent).free - MIN_FREE_BYTES:  # other runs write there too
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    content = tar.extractfile(member)
    with path.open("xb") as file:
        if content is not None:
            shutil.copyfileobj(content, file, _CHUNK_BYTES)
    path.chmod(stat.S_IMODE(member.mode) & stat.S_IRWXU | stat.S_IRUSR | stat.S_IWUSR)
    os.utime(path, (member.mtime, member.mtime))
