"""What the supervisor knows of the ranks: from their telemetry, and from the kernel when one dies.

Light on purpose: no numpy, a few numbers a rank. The dashboard's reader is telemetry.reader.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpdpdash.run.failure import RankEnd, reported_exits, traceback_in
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.processes import ProcessId, belongs_to_run
from tpdpdash.run.status import PHASES
from tpdpdash.telemetry.parse import BadLineError, parse_line
from tpdpdash.telemetry.record import is_rank_file
from tpdpdash.telemetry.tail import FileTail

_PHASE_OF_EVENT = {"importing": 1, "connecting": 2, "building": 3, "first_step": 4}
_RUNNING = len(PHASES) - 1
_KEPT_STEPS = 2000
_LOG_TAIL_BYTES = 256 << 10


@dataclass(slots=True)
class Rank:
    """One rank as far as it has told."""

    rank: int
    local_rank: int = 0
    host: str = ""
    process: ProcessId | None = None
    death_watch: int | None = None  # a pidfd: readable once the process is gone
    phase: int = 0
    last_step: int | None = None
    num_steps: int = 0
    has_finished: bool = False
    error: str | None = None
    traceback: str | None = None
    error_t: float | None = None
    died_t: float | None = None
    peak_memory_bytes: int = 0
    phase_s: Counter[str] = field(default_factory=Counter)
    total_step_s: float = 0.0
    recent_step_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_STEPS))


class Ranks:
    """All ranks of a run, brought up to date by `update`."""

    def __init__(self, folder: RunFolder, world_size: int) -> None:
        self.folder = folder
        self.world_size = world_size
        self.by_rank: dict[int, Rank] = {}
        self.bad_lines: Counter[str] = Counter()
        self.unreadable: dict[str, str] = {}
        """Files that could not be read in the last update, and why: a death is noted all the same."""
        self._tails: dict[str, FileTail] = {}

    def update(self) -> None:
        """Read what was written since the last call, and note who is gone. Never raises for what lies in the folder."""
        self.unreadable = {}
        self._find_files()
        for name, tail in self._tails.items():
            try:
                lines = tail.read()
            except OSError as wrong:
                self.unreadable[name] = str(wrong)
                continue
            for line in lines:
                self._take_line(line)
        self._note_deaths()

    def _find_files(self) -> None:
        try:
            names = os.listdir(self.folder.telemetry)  # noqa: PTH208 names only
        except OSError as wrong:
            self.unreadable[self.folder.telemetry.name] = str(wrong)
            return
        for name in sorted(names):
            if name not in self._tails and is_rank_file(name):
                self._tails[name] = FileTail(self.folder.telemetry / name)

    def _take_line(self, line: bytes) -> None:
        try:
            record = parse_line(line, self.world_size)
        except BadLineError as bad:
            self.bad_lines[bad.kind] += 1
            return
        self._take(record)

    def death_watches(self) -> list[int]:
        """pidfds of the ranks that still live, to be polled."""
        return [rank.death_watch for rank in self.by_rank.values() if rank.death_watch is not None]

    def processes(self) -> list[ProcessId]:
        """The ranks' processes, verified when they said hello."""
        return [rank.process for rank in self.by_rank.values() if rank.process is not None]

    @property
    def have_all_reported(self) -> bool:
        """Whether every rank has said hello."""
        return len(self.by_rank) == self.world_size

    @property
    def phase(self) -> str:
        """The phase of the rank that is least far."""
        if not self.have_all_reported:
            return PHASES[0]
        return PHASES[min(rank.phase for rank in self.by_rank.values())]

    def by_phase(self) -> dict[str, int]:
        """How many ranks are in each phase; those that have not reported are starting."""
        counts = Counter(PHASES[rank.phase] for rank in self.by_rank.values())
        counts[PHASES[0]] += self.world_size - len(self.by_rank)
        return {phase: counts[phase] for phase in PHASES if counts[phase]}

    @property
    def last_step(self) -> int | None:
        """The last step that any rank has finished."""
        return max((rank.last_step for rank in self.by_rank.values() if rank.last_step is not None), default=None)

    def _take(self, record: dict[str, Any]) -> None:
        rank = self.by_rank.setdefault(record["rank"], Rank(record["rank"]))
        kind = record["kind"]
        if kind == "hello":
            self._greet(rank, record)
        elif kind == "step":
            rank.phase = _RUNNING
            rank.last_step = record["step"]
            rank.num_steps += 1
            rank.phase_s.update(record["phase_s"])
            rank.total_step_s += record["step_s"]
            rank.recent_step_s.append(record["step_s"])
            rank.peak_memory_bytes = max(rank.peak_memory_bytes, record.get("peak_memory_bytes") or 0)
        elif kind == "event":
            rank.phase = max(rank.phase, _PHASE_OF_EVENT.get(record["name"], 0))
            rank.has_finished |= record["name"] == "finished"
            if record["name"] == "error" and rank.error is None:
                rank.error, rank.error_t = str(record.get("error")), record["t"]
                rank.traceback = str(record.get("traceback"))

    def _greet(self, rank: Rank, record: dict[str, Any]) -> None:
        rank.local_rank = record["local_rank"] if isinstance(record.get("local_rank"), int) else rank.rank
        rank.host = record["host"]
        if rank.process is not None and rank.process.pid == record["pid"]:
            return
        process = ProcessId(record["pid"], record.get("start_time") or 0.0)
        try:
            watch = os.pidfd_open(process.pid)
        except OSError:  # gone already, or a file that lies
            rank.died_t = time.time()
            return
        if process.is_alive and belongs_to_run(process.pid, self.folder.run_id):
            if rank.death_watch is not None:  # another process says that it is this rank now
                os.close(rank.death_watch)
            rank.process, rank.death_watch, rank.died_t = process, watch, None
        else:
            os.close(watch)

    def _note_deaths(self) -> None:
        for rank in self.by_rank.values():
            if rank.death_watch is not None and rank.process is not None and not rank.process.is_alive:
                rank.died_t = time.time()
                os.close(rank.death_watch)
                rank.death_watch = None

    # ------------------------------------------------------------------------------ after the end

    def ends(self) -> list[RankEnd]:
        """How each rank ended, from telemetry, the agent's report and torchrun's error files."""
        exits, ended = reported_exits(tail_text(self.folder.agent_log))
        return [self._end(rank, exits.get(rank), rank in ended) for rank in range(self.world_size)]

    def _end(self, number: int, exit_code: int | None, was_ended_by_agent: bool) -> RankEnd:
        rank = self.by_rank.get(number) or Rank(number, local_rank=number)
        end = RankEnd(
            rank=number,
            exit_code=exit_code,
            error=rank.error,
            traceback=rank.traceback,
            error_t=rank.error_t,
            died_t=rank.died_t,
            was_ended_by_agent=was_ended_by_agent,
        )
        if end.error is not None or exit_code in (None, 0):
            return end
        outputs = self.folder.rank_outputs(rank.local_rank)
        raised = _recorded_error(outputs.get("error.json"))
        if raised is not None:
            error, trace, t = raised
            return replace(end, error=error, traceback=trace, error_t=t)
        stderr = tail_text(outputs["stderr.log"]) if "stderr.log" in outputs else ""
        found = traceback_in(stderr) if end.signal_name is None else None
        if found is not None:
            return replace(end, error=found[0], traceback=found[1])
        last_lines = "\n".join(stderr.splitlines()[-20:])
        return replace(end, traceback=last_lines or None)

    def summary(self) -> list[dict[str, Any]]:
        """Measured facts of each rank, for summary.json."""
        return [
            {
                "rank": rank.rank,
                "host": rank.host,
                "steps": rank.num_steps,
                "last_step": rank.last_step,
                "total_step_s": rank.total_step_s,
                "median_step_s": statistics.median(rank.recent_step_s) if rank.recent_step_s else None,
                "phase_s": dict(rank.phase_s),
                "peak_memory_bytes": rank.peak_memory_bytes or None,
                "has_finished": rank.has_finished,
            }
            for rank in sorted(self.by_rank.values(), key=lambda rank: rank.rank)
        ]


def _recorded_error(path: Path | None) -> tuple[str, str, float | None] | None:
    """(last line, traceback, whole second after it was raised) from torchrun's error.json."""
    if path is None:
        return None
    try:
        message = json.loads(tail_text(path))["message"]
        extra = message.get("extraInfo", {})
        seconds = float(extra["timestamp"]) + 1 if "timestamp" in extra else None
        return str(message["message"])[:1000], str(extra.get("py_callstack", "")), seconds
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def tail_text(path: Path, size: int = _LOG_TAIL_BYTES) -> str:
    """The last bytes of a log as text; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""
