"""Follows a growing file by offset: whole lines only, in bounded memory and bounded time. Standard library only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tpdpdash.telemetry.record import MAX_LINE_BYTES
from tpdpdash.telemetry.regular import open_regular

HEAD_BYTES = 64 << 10
"""Start of a large file that is read although its middle is skipped: who the rank is stands there."""
TAIL_BYTES = 4 << 20
"""At most this much of one file is read in one refresh; what lies further back is skipped and counted."""
_MARK_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where one reader of a file left off, for another to go on."""

    offset: int
    """Bytes that are done with: the start of the line that comes next."""
    mark: bytes
    """The last bytes before it, by which the file is known again (a copy of it has another inode)."""
    is_skipping: bool
    """Whether the line at the offset has no beginning, and is passed over."""
    too_long: int
    """Lines dropped for their length so far."""
    skipped: int
    """Bytes passed over so far."""
    restarts: int
    """How often the file began anew so far."""


class FileTail:
    """New complete lines of one file since the last call.

    A line without its newline waits in memory until it is complete; one longer than MAX_LINE_BYTES is dropped as it
    arrives and counted. A file that shrank, was replaced, or no longer holds what was read before begins anew.
    """

    __slots__ = (
        "_file_id",
        "_is_skipping",
        "_mark",
        "_name",
        "_offset",
        "_partial",
        "path",
        "restarts",
        "skipped",
        "too_long",
    )

    def __init__(self, path: Path, point: ResumePoint | None = None) -> None:
        """Raises OSError, or ValueError, where the file is not the one of the `point`."""
        self.path = path
        self._name = str(path)
        self.restarts = 0
        """How often the file began anew."""
        self.skipped = 0
        """Bytes in the middle of the file that were not read."""
        self.too_long = 0
        """Lines dropped for their length."""
        self._file_id: tuple[int, int] | None = None
        self._begin()
        if point is not None:
            self._resume(point)

    def _resume(self, point: ResumePoint) -> None:
        if point.offset < len(point.mark) or len(point.mark) < min(point.offset, _MARK_BYTES):
            raise ValueError(f"{self.path.name}: no point to go on from")
        with open_regular(self.path) as file:
            file.seek(point.offset - len(point.mark))
            if file.read(len(point.mark)) != point.mark:
                raise ValueError(f"{self.path.name} is another file")
        self._offset, self._mark, self._is_skipping = point.offset, point.mark, point.is_skipping
        self.too_long, self.skipped, self.restarts = point.too_long, point.skipped, point.restarts

    def point(self) -> ResumePoint:
        """Where to go on from: a line that is not complete yet is read again then."""
        return ResumePoint(
            offset=self._offset - len(self._partial),
            mark=self._mark[: len(self._mark) - len(self._partial)][-_MARK_BYTES:],
            is_skipping=self._is_skipping,
            too_long=self.too_long,
            skipped=self.skipped,
            restarts=self.restarts,
        )

    def _begin(self) -> None:
        self._offset = 0
        self._partial = b""
        self._mark = b""
        self._is_skipping = False

    def read(self, limit: int | None = None) -> list[bytes]:
        """Lines completed since the last call. Raises OSError (the file may not exist yet).

        limit: at most so many bytes are read, from the end, besides the head; None = TAIL_BYTES.
        """
        # A thousand files are read each second: a file object for each would cost more than what it reads.
        file = os.open(self._name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return self._read(file, TAIL_BYTES if limit is None else limit)
        finally:
            os.close(file)

    def _read(self, file: int, tail_bytes: int) -> list[bytes]:
        status = os.fstat(file)
        file_id = (status.st_dev, status.st_ino)
        if self._file_id is not None and self._is_another(file, file_id, status.st_size):
            self.restarts += 1
            self._begin()
        self._file_id = file_id
        lines: list[bytes] = []
        while self._offset < status.st_size:
            if status.st_size - self._offset > tail_bytes + HEAD_BYTES:
                lines += self._take(file, HEAD_BYTES)
                self._skip_to(status.st_size - tail_bytes)
            before = self._offset
            try:
                lines += self._take(file, min(MAX_LINE_BYTES, status.st_size - self._offset))
            except OSError:
                if not lines:
                    raise
                break  # what was read is behind the offset: only here can it be handed on
            if self._offset == before:  # it was cut meanwhile: the next reading finds out
                break
        return lines

    def _is_another(self, file: int, file_id: tuple[int, int], size: int) -> bool:
        """Whether the file is no longer the one that was read up to the offset."""
        if file_id != self._file_id or size < self._offset:
            return True
        if size == self._offset:
            return False
        mark = self._mark[-_MARK_BYTES:]
        return os.pread(file, len(mark), self._offset - len(mark)) != mark

    def _skip_to(self, offset: int) -> None:
        self.skipped += offset - self._offset
        self._offset = offset
        self._partial = b""
        self._is_skipping = True  # the line at the new offset has no beginning

    def _take(self, file: int, size: int) -> list[bytes]:
        """Complete lines of the next `size` bytes."""
        data = os.pread(file, size, self._offset)
        self._offset += len(data)
        before = self._mark + data
        *lines, rest = data.split(b"\n")
        if lines:
            first = self._partial + lines[0]
            lines = lines[1:] if self._is_skipping else [first, *lines[1:]]
            self._partial, self._is_skipping = b"", False
        if not self._is_skipping:
            self._partial += rest
            if len(self._partial) > MAX_LINE_BYTES:
                self._partial, self._is_skipping = b"", True
                self.too_long += 1
        self._mark = before[-(_MARK_BYTES + len(self._partial)) :]
        kept = [line for line in lines if 0 < len(line) <= MAX_LINE_BYTES]
        self.too_long += sum(len(line) > MAX_LINE_BYTES for line in lines)
        return kept
