"""The files of all ranks of a run, followed together; whoever follows them can leave off here and another go on.

Standard library only: the supervisor follows them too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpdpdash.telemetry import tail as limits
from tpdpdash.telemetry.parse import BadLineError, parse_line
from tpdpdash.telemetry.record import is_rank_file
from tpdpdash.telemetry.tail import FileTail, ResumePoint

MAX_READ_BYTES = 128 << 20
"""Of all files in one reading: what is held in memory until it is parsed."""
_MIN_READ_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one reading found."""

    begun_anew: Mapping[str, set[int]]
    """Files that began anew, and the ranks that had told something in them: nothing of those counts any more."""
    lines: Mapping[str, list[bytes]]
    """New complete lines by file."""


class RankFiles:
    """Follows telemetry/rank-*.jsonl of one run."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self.folder = folder
        self.world_size = world_size
        self.tails: dict[str, FileTail] = {}
        self.ranks_of: dict[str, set[int]] = {}
        """Ranks that told something in each file."""
        self.bad_lines: Counter[str] = Counter()
        """Lines that were no records, by kind."""
        self.unreadable: dict[str, str] = {}
        """What could not be read in the last reading, and why."""
        self._restarts_seen: dict[str, int] = {}

    def read(self) -> News:
        """What is new. Never raises: a file that cannot be read now is read the next time."""
        self.unreadable = {}
        names = sorted({*self._listed(), *self.tails})
        limit = min(limits.TAIL_BYTES, max(_MIN_READ_BYTES, MAX_READ_BYTES // max(1, len(names))))
        lines = {name: found for name in names if (found := self._read(name, limit)) is not None}
        # A step of the former run would keep its column from a new one: who began anew is known before any line.
        begun_anew = {name: self.ranks_of.pop(name, set()) for name in lines if self._has_begun_anew(name)}
        return News(begun_anew=begun_anew, lines=lines)

    def records(self, news: News) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """The lines of a reading, each with its record; what is none is counted, and who told something is noted."""
        for name, lines in news.lines.items():
            ranks = self.ranks_of.setdefault(name, set())
            for line in lines:
                record = self.record_of(line)
                if record is not None:
                    ranks.add(record["rank"])
                    yield line, record

    def record_of(self, line: bytes) -> dict[str, Any] | None:
        """The record of a line; None, and counted, where it is none."""
        try:
            return parse_line(line, self.world_size)
        except BadLineError as bad:
            self.bad_lines[bad.kind] += 1
            return None

    def _listed(self) -> list[str]:
        try:
            return [name for name in os.listdir(self.folder) if is_rank_file(name)]  # noqa: PTH208 names only
        except OSError as wrong:
            self.unreadable[self.folder.name] = str(wrong)
            return []

    def _read(self, name: str, limit: int) -> list[bytes] | None:
        tail = self.tails.get(name)
        if tail is None:
            tail = self.tails[name] = FileTail(self.folder / name)
        try:
            return tail.read(limit)
        except OSError as wrong:
            self.unreadable[name] = str(wrong)
            return None

    def _has_begun_anew(self, name: str) -> bool:
        before, now = self._restarts_seen.get(name, 0), self.tails[name].restarts
        self._restarts_seen[name] = now
        return now > before

    def resume(self, points: Mapping[str, ResumePoint], ranks_of: Mapping[str, Iterable[int]]) -> None:
        """Go on where another left off. Raises OSError, or ValueError when a file is not the one that was read."""
        for name, point in points.items():
            if not is_rank_file(name) or "/" in name:
                raise ValueError(f"{name} is no rank's file")
            self.tails[name] = FileTail(self.folder / name, point)
            self._restarts_seen[name] = point.restarts
        self.ranks_of = {name: set(ranks) for name, ranks in ranks_of.items()}

    @property
    def too_long(self) -> int:
        """Lines that were dropped for their length."""
        return sum(tail.too_long for tail in self.tails.values())

    @property
    def skipped_bytes(self) -> int:
        """Bytes that were not read because the files had grown too large."""
        return sum(tail.skipped for tail in self.tails.values())

    @property
    def restarts(self) -> int:
        """How often a file began anew."""
        return sum(tail.restarts for tail in self.tails.values())
