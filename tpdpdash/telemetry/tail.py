"""Follows a growing file by offset: whole lines only, in bounded memory and bounded time. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from tpdpdash.telemetry.record import MAX_LINE_BYTES

HEAD_BYTES = 64 << 10
"""Start of a large file that is read although its middle is skipped: who the rank is stands there."""
TAIL_BYTES = 4 << 20
"""At most this much of one file is read in one refresh; what lies further back is skipped and counted."""
_MARK_BYTES = 64


class FileTail:
    """New complete lines of one file since the last call.

    A line without its newline waits in memory until it is complete; one longer than MAX_LINE_BYTES is dropped as it
    arrives and counted. A file that shrank, was replaced, or no longer holds what was read before begins anew.
    """

    __slots__ = ("_file_id", "_is_skipping", "_mark", "_offset", "_partial", "path", "restarts", "skipped", "too_long")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarts = 0
        """How often the file began anew."""
        self.skipped = 0
        """Bytes in the middle of the file that were not read."""
        self.too_long = 0
        """Lines dropped for their length."""
        self._file_id: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._partial = b""
        self._mark = b""
        self._is_skipping = False

    def read(self) -> list[bytes]:
        """Lines completed since the last call. Raises OSError (the file may not exist yet)."""
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            file_id = (status.st_dev, status.st_ino)
            if self._file_id is not None and self._is_another(file, file_id, status.st_size):
                self.restarts += 1
                self._begin()
            self._file_id = file_id
            lines = []
            while self._offset < status.st_size:
                if status.st_size - self._offset > TAIL_BYTES + HEAD_BYTES:
                    lines += self._take(file, HEAD_BYTES)
                    self._skip_to(status.st_size - TAIL_BYTES)
                lines += self._take(file, min(MAX_LINE_BYTES, status.st_size - self._offset))
        return lines

    def _is_another(self, file: BinaryIO, file_id: tuple[int, int], size: int) -> bool:
        """Whether the file is no longer the one that was read up to the offset."""
        if file_id != self._file_id or size < self._offset:
            return True
        if size == self._offset:
            return False
        file.seek(self._offset - len(self._mark))
        return file.read(len(self._mark)) != self._mark

    def _skip_to(self, offset: int) -> None:
        self.skipped += offset - self._offset
        self._offset = offset
        self._partial = b""
        self._is_skipping = True  # the line at the new offset has no beginning

    def _take(self, file: BinaryIO, size: int) -> list[bytes]:
        """Complete lines of the next `size` bytes."""
        file.seek(self._offset)
        data = file.read(size)
        self._offset += len(data)
        self._mark = (self._mark + data)[-_MARK_BYTES:]
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
        kept = [line for line in lines if 0 < len(line) <= MAX_LINE_BYTES]
        self.too_long += sum(len(line) > MAX_LINE_BYTES for line in lines)
        return kept
