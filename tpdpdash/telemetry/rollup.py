"""The rollup: what the supervisor has parsed already, kept so that a reader opens a long run at once.

    telemetry/rollup/steps-00000 …         rows of telemetry.rows, in the order in which they came
    telemetry/rollup/timelines-00000 …     timeline records, as lines
    telemetry/rollup/state                 replaced atomically: a header, then the lines that say who the ranks are

The state says up to which byte each rank's file is contained; a reader goes on from there. Everything that it names
was whole before it was written, and it is checked by size and CRC: without a sound rollup the files are read.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tpdpdash.telemetry.files import RankFiles
from tpdpdash.telemetry.profiling import PROFILE_EVENTS
from tpdpdash.telemetry.rows import COLUMNS, ROW_BYTES, forget_row, kept_steps, step_row
from tpdpdash.telemetry.segments import SegmentLog

VERSION = 1
STATE = "state"
FORGET_LINE = b'{"forget":'
"""Begins the line among the timelines after which earlier ones of some ranks no longer count."""
MAX_EVENTS = 2000
MAX_PROFILES = 1000
"""Deep profiles that are kept in mind, those of the last steps: no figure counts them, however many events follow."""
MAX_PROCESSES = 8
"""Processes that claim to be one rank: two already are one too many."""
MIN_INTERVAL_S = 2.0
CLOSE_LIMIT_S = 5.0
MAX_TIMELINE_BYTES = 16 << 20
MAX_WAITING_BYTES = 64 << 20
"""Of blocks that a slow disk has not taken yet: beyond it the rollup ends, and readers read the files."""
_COST_FRAC = 0.02  # of the supervisor's time: a state that is costly to write is written less often


def profile_key(record: Mapping[str, Any]) -> tuple[int, int] | None:
    """Step and rank of what an event says of a deep profile; None where it names no step."""
    step = record.get("step")
    return (step, record["rank"]) if type(step) is int else None


def drop_first(profiles: dict[tuple[int, int], Any]) -> None:
    """Of more than MAX_PROFILES those of the first steps go."""
    while len(profiles) > MAX_PROFILES:
        profiles.pop(min(profiles))


def rollup_dir(telemetry: Path) -> Path:
    """Where the rollup lies."""
    return telemetry / "rollup"


@dataclass(slots=True)
class _Rank:
    """Lines that say what a rank told last."""

    hello: dict[tuple[str, int], bytes] = field(default_factory=dict)
    heartbeat: bytes = b""
    event: bytes = b""
    """But of a deep profile: that is none of its own life."""
    lost_records: int = 0


class _SeenSteps:
    """Counts the steps that were seen as telemetry.rings does, without its arrays."""

    def __init__(self, capacity: int) -> None:
        self._step_of_column = [-1] * capacity
        self._ranks_of_column = [0] * capacity  # a bit a rank
        self.count = 0

    def add(self, step: int, rank: int) -> None:
        column = step % len(self._step_of_column)
        held = self._step_of_column[column]
        if held < step:
            self._step_of_column[column], self._ranks_of_column[column] = step, 0
            self.count += 1
        if held <= step:
            self._ranks_of_column[column] |= 1 << rank

    def forget(self, rank: int) -> None:
        bit = 1 << rank
        for column, ranks in enumerate(self._ranks_of_column):
            if ranks & bit:
                self._ranks_of_column[column] = ranks ^ bit
                if ranks == bit:
                    self._step_of_column[column] = -1
                    self.count -= 1


class RollupWriter:
    """Collects what the supervisor parses, and writes it now and then in a thread of its own: a disk that is slow or
    full never delays supervision, it only ends the rollup."""

    def __init__(self, telemetry: Path, world_size: int) -> None:
        self._folder = rollup_dir(telemetry)
        self._world_size = world_size
        rows = 5 * kept_steps(world_size) * world_size // 4  # one whole file holds all that a reader keeps
        self._steps = SegmentLog(self._folder, "steps", rows * ROW_BYTES)
        self._timelines = SegmentLog(self._folder, "timelines", MAX_TIMELINE_BYTES)
        self._new_rows: list[bytes] = []
        self._new_timelines: list[bytes] = []
        self._waiting_bytes = 0
        self._due = time.monotonic() + MIN_INTERVAL_S
        self._writing: threading.Thread | None = None
        self.problem: str | None = None
        """Why the rollup ended before the run, if it did."""
        self._clear()

    def _clear(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._events: deque[tuple[int, bytes]] = deque(maxlen=MAX_EVENTS)
        self._profiles: dict[tuple[int, int], bytes] = {}
        self._seen = _SeenSteps(kept_steps(self._world_size))
        self._non_finite = 0

    # ------------------------------------------------------------------------------------- taking

    def take(self, record: Mapping[str, Any], line: bytes) -> None:
        """One record that was parsed, with its line."""
        rank = self._ranks.setdefault(record["rank"], _Rank())
        lost = record.get("lost_records", 0)
        rank.lost_records = max(rank.lost_records, lost) if isinstance(lost, int) else rank.lost_records
        kind = record["kind"]
        if kind == "step":
            self._keep(self._new_rows, step_row(record))
            self._seen.add(record["step"], record["rank"])
            self._non_finite += record.get("loss_is_finite") is False
        elif kind == "timeline":
            self._keep(self._new_timelines, line + b"\n")
        elif kind == "heartbeat":
            rank.heartbeat = line
        elif kind == "event":
            self._events.append((record["rank"], line))
            if record["name"] in PROFILE_EVENTS:
                self._take_profile(record, line)
            else:
                rank.event = line
        else:
            self._take_hello(rank, (record["host"], record["pid"]), line)

    def _take_profile(self, record: Mapping[str, Any], line: bytes) -> None:
        if (key := profile_key(record)) is not None:
            self._profiles[key] = line
            drop_first(self._profiles)

    def _take_hello(self, rank: _Rank, process: tuple[str, int], line: bytes) -> None:
        rank.hello.pop(process, None)
        if len(rank.hello) == MAX_PROCESSES:
            rank.hello.popitem()
        rank.hello[process] = line  # the last one says what holds now

    def _keep(self, blocks: list[bytes], block: bytes) -> None:
        if self.problem is None:
            blocks.append(block)
            self._waiting_bytes += len(block)

    def forget(self, ranks: set[int]) -> None:
        """Their file began anew."""
        for rank in sorted(ranks):
            self._ranks.pop(rank, None)
            self._seen.forget(rank)
            self._keep(self._new_rows, forget_row(rank))
        self._events = deque((told for told in self._events if told[0] not in ranks), maxlen=MAX_EVENTS)
        self._profiles = {key: line for key, line in self._profiles.items() if key[1] not in ranks}
        if ranks:
            self._keep(self._new_timelines, FORGET_LINE + json.dumps(sorted(ranks)).encode() + b"}\n")
        if not self._ranks:
            self._clear()

    # ------------------------------------------------------------------------------------ writing

    def flush_if_due(self, files: RankFiles) -> None:
        """Hand what is new to the writing thread when its time has come and it is idle."""
        if self.problem is None and time.monotonic() >= self._due:
            if self._writing is None or not self._writing.is_alive():
                self._begin_write(files)
            elif self._waiting_bytes > MAX_WAITING_BYTES:
                self._end("the disk is too slow")

    def close(self, files: RankFiles) -> None:
        """Write what is left; a disk that does not answer is waited for no longer than that."""
        if self._writing is not None:
            self._writing.join(CLOSE_LIMIT_S)
        if self.problem is None and (self._writing is None or not self._writing.is_alive()):
            self._begin_write(files).join(CLOSE_LIMIT_S)

    def _begin_write(self, files: RankFiles) -> threading.Thread:
        begun = time.monotonic()
        rows, timelines = b"".join(self._new_rows), b"".join(self._new_timelines)
        self._new_rows, self._new_timelines, self._waiting_bytes = [], [], 0
        header, lines = self._header(files), self._lines()
        self._writing = threading.Thread(
            target=self._write, args=(rows, timelines, header, lines), name="tpdpdash-rollup", daemon=True
        )
        self._writing.start()
        self._due = begun + max(MIN_INTERVAL_S, (time.monotonic() - begun) / _COST_FRAC)
        return self._writing

    def _header(self, files: RankFiles) -> dict[str, Any]:
        points = {name: asdict(tail.point()) for name, tail in files.tails.items() if name not in files.unreadable}
        for name, point in points.items():
            point |= {"mark": point["mark"].hex(), "ranks": sorted(files.ranks_of.get(name, ()))}
        return {
            "v": VERSION,
            "world_size": self._world_size,
            "columns": COLUMNS,
            "files": points,
            "bad_lines": dict(files.bad_lines),
            "lost_records": {str(rank): told.lost_records for rank, told in self._ranks.items() if told.lost_records},
            "num_steps": self._seen.count,
            "non_finite": self._non_finite,
        }

    def _lines(self) -> list[bytes]:
        """Lines that, taken in this order, say what all lines of these kinds said."""
        recent = [line for _, line in self._events]
        is_recent = set(recent)
        hello = [line for rank in self._ranks.values() for line in rank.hello.values()]
        kept = [*(rank.event for rank in self._ranks.values() if rank.event), *self._profiles.values()]
        beats = [rank.heartbeat for rank in self._ranks.values() if rank.heartbeat]
        return [*hello, *(line for line in kept if line not in is_recent), *recent, *beats]

    def _write(self, rows: bytes, timelines: bytes, header: dict[str, Any], lines: list[bytes]) -> None:
        """In the thread: blocks first, then the state that names them, then what it names no longer goes."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._steps.append(rows)
            self._timelines.append(timelines)
            header |= {
                "steps": [asdict(segment) for segment in self._steps.segments],
                "timelines": [asdict(segment) for segment in self._timelines.segments],
                "num_lines": len(lines),
            }
            written = self._folder / f"{STATE}.new"
            written.write_bytes(b"\n".join([json.dumps(header, separators=(",", ":")).encode(), *lines]))
            written.replace(self._folder / STATE)
            self._steps.drop_old()
            self._timelines.drop_old()
        except OSError as wrong:
            self._end(str(wrong))

    def _end(self, problem: str) -> None:
        """No more is kept. The last state stays true: readers go on from where it ends."""
        self.problem = problem
        self._new_rows, self._new_timelines, self._waiting_bytes = [], [], 0
