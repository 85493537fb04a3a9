"""A log in two files at most: the newest grows, the one before is kept, older ones go. Standard library only."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

from tpdpdash.telemetry.regular import open_regular

MAX_SEGMENT_BYTES = 256 << 20
"""No reader believes in a longer one: a file ends with the block that passes its limit, and blocks are bounded too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What of one file is known to be whole."""

    name: str
    """File name."""
    size: int
    """Bytes that count; what lies beyond was being written."""
    crc: int
    """zlib.crc32 of them."""


class SegmentLog:
    """Appends blocks. What `segments` says is true until the next append; files that it no longer names are removed by
    `drop_old`, once nobody is told of them any more."""

    def __init__(self, folder: Path, stem: str, limit_bytes: int) -> None:
        self._folder = folder
        self._stem = stem
        self._limit_bytes = limit_bytes
        self._count = 0
        self._old: list[Path] = []
        self.segments: tuple[Segment, ...] = ()

    def append(self, data: bytes) -> None:
        """Add a block to the newest file, or begin one. Raises OSError; the log is of no use then."""
        if not data:
            return
        if not self.segments or self.segments[-1].size >= self._limit_bytes:
            self._old += [self._folder / segment.name for segment in self.segments[:-1]]
            name = f"{self._stem}-{self._count:05d}"
            self._count += 1
            self.segments = (*self.segments[-1:], Segment(name=name, size=0, crc=0))
        newest = self.segments[-1]
        with (self._folder / newest.name).open("ab" if newest.size else "wb") as file:
            file.write(data)
        grown = Segment(name=newest.name, size=newest.size + len(data), crc=zlib.crc32(data, newest.crc))
        self.segments = (*self.segments[:-1], grown)

    def drop_old(self) -> None:
        """Remove files that are no longer named. Raises OSError."""
        while self._old:
            self._old.pop().unlink(missing_ok=True)


def read_segment(folder: Path, segment: Segment) -> bytes:
    """The bytes of a segment that count. Raises OSError, or ValueError when they are not what was written."""
    if segment.size > MAX_SEGMENT_BYTES:
        raise ValueError(f"{segment.name} is larger than {MAX_SEGMENT_BYTES} bytes")
    with open_regular(folder / segment.name) as file:
        data = file.read(segment.size)
    if len(data) != segment.size or zlib.crc32(data) != segment.crc:
        raise ValueError(f"{segment.name} is torn")
    return data
