"""What the supervisor knows of the ranks: from their telemetry, and from the kernel when one dies.

Light on purpose: no numpy, a few numbers a rank. The dashboard's reader is telemetry.reader.
"""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpdpdash.run.failure import RankEnd
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.processes import ProcessId, belongs_to_run
from tpdpdash.run.rank_logs import reported_exits, told_error, traceback_in, watchdog_error
from tpdpdash.run.status import PHASES
from tpdpdash.telemetry.files import RankFiles
from tpdpdash.telemetry.process import process_state
from tpdpdash.telemetry.regular import open_regular
from tpdpdash.telemetry.rollup import RollupWriter

_PHASE_OF_EVENT = {"importing": 1, "connecting": 2, "building": 3, "first_step": 4}
_RUNNING = len(PHASES) - 1
_KEPT_STEPS = 2000
_LOG_TAIL_BYTES = 256 << 10
_PROFILER = re.compile(r"(?:USDT|STAGE):\d{4}-.*\.cpp:\d+\]")  # what torch.profiler prints is no last word of a rank


@dataclass(slots=True)
class Rank:
    """One rank as far as it has told."""

    rank: int
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
    last_t: float | None = None
    peak_memory_bytes: int = 0
    phase_s: Counter[str] = field(default_factory=Counter)
    total_step_s: float = 0.0
    recent_step_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_STEPS))


class Ranks:
    """All ranks of a run, brought up to date by `update`."""

    def __init__(self, folder: RunFolder, world_size: int, *, nodes: int = 1) -> None:
        self.folder = folder
        self.world_size = world_size
        self._is_one_machine = nodes == 1
        self._host = socket.gethostname()
        self.by_rank: dict[int, Rank] = {}
        self._files = RankFiles(folder.telemetry, world_size)
        self._rollup = RollupWriter(folder.telemetry, world_size)

    def update(self) -> None:
        """Read what was written since the last call, and note who is gone. Never raises for what lies in the folder."""
        news = self._files.read()
        for ranks in news.begun_anew.values():
            self._rollup.forget(ranks)
        for line, record in self._files.records(news):
            self._rollup.take(record, line)
            self._take(record)
        self._note_deaths()
        self._rollup.flush_if_due(self._files)

    def close_rollup(self) -> None:
        """Write the rollup of all that was read: the run is over."""
        self._rollup.close(self._files)

    @property
    def bad_lines(self) -> Mapping[str, int]:
        """Lines that were no records, by kind."""
        return self._files.bad_lines

    @property
    def unreadable(self) -> dict[str, str]:
        """Files that could not be read in the last update, and why: a death is noted all the same."""
        return self._files.unreadable

    def death_watches(self) -> list[int]:
        """pidfds of the ranks that still live, to be polled."""
        return [rank.death_watch for rank in self.by_rank.values() if rank.death_watch is not None]

    @property
    def have_all_reported(self) -> bool:
        """Whether every rank has said hello."""
        return len(self.by_rank) == self.world_size

    @property
    def have_all_begun(self) -> bool:
        """Whether every rank was started, on whichever machine: its output has its link (run.shim)."""
        return all(os.path.islink(self.folder.rank_link(rank)) for rank in range(self.world_size))  # noqa: PTH114 never raises

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
        rank.last_t = max(rank.last_t or 0.0, record["t"])
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
                rank.traceback, rank.error_t = str(record.get("traceback")), record["t"]
                rank.error = told_error(str(record.get("error")), rank.traceback)

    def _greet(self, rank: Rank, record: dict[str, Any]) -> None:
        rank.host = record["host"]
        if rank.host != self._host or (rank.process is not None and rank.process.pid == record["pid"]):
            return  # a pid of another machine means nothing here
        process = ProcessId(record["pid"], record.get("start_time") or 0.0)
        try:
            watch = os.pidfd_open(process.pid)
        except OSError:  # gone already, or a file that lies
            watch = None
        if watch is None or process_state(process.pid) in (None, "Z", "X"):  # a zombie: nobody has reaped it yet
            if rank.death_watch is None:  # else the rank lives: a helper of it said hello, or a file lies
                rank.died_t = time.time()
        elif process.is_alive and belongs_to_run(process.pid, self.folder.run_id):
            if rank.death_watch is not None:  # another process says that it is this rank now
                os.close(rank.death_watch)
            rank.process, rank.death_watch, rank.died_t = process, watch, None
            return
        if watch is not None:
            os.close(watch)

    def _note_deaths(self) -> None:
        """All that are found dead in one look died at the same time, as far as can be told."""
        now = time.time()
        for rank in self.by_rank.values():
            if rank.death_watch is not None and rank.process is not None and not rank.process.is_alive:
                rank.died_t = now
                os.close(rank.death_watch)
                rank.death_watch = None

    # ------------------------------------------------------------------------------ after the end

    def ends(self) -> list[RankEnd]:
        """How each rank ended, from telemetry, the agent's report and torchrun's error files."""
        exits: dict[int, int] = {}
        ended: set[int] = set()
        for log in self.folder.agent_logs():
            told, ended_here = reported_exits(tail_text(log), is_only_machine=self._is_one_machine)
            exits |= told
            ended |= ended_here
        return [self._end(rank, exits.get(rank), rank in ended) for rank in range(self.world_size)]

    def _end(self, number: int, exit_code: int | None, was_ended_by_agent: bool) -> RankEnd:
        rank = self.by_rank.get(number) or Rank(number)
        end = RankEnd(
            rank=number,
            exit_code=exit_code,
            error=rank.error,
            traceback=rank.traceback,
            error_t=rank.error_t,
            died_t=rank.died_t,
            last_t=rank.last_t,
            was_ended_by_agent=was_ended_by_agent,
        )
        if end.error is not None or exit_code in (None, 0):
            return end
        outputs = self.folder.rank_outputs(number)
        raised = _recorded_error(outputs.get("error.json"))
        if raised is not None:
            error, trace, t = raised
            return replace(end, error=error, traceback=trace, error_t=t)
        stderr = tail_text(outputs["stderr.log"]) if "stderr.log" in outputs else ""
        found = traceback_in(stderr) if end.signal_name is None else None
        if found is not None:
            return replace(end, error=told_error(found[0], stderr), traceback=found[1])
        last_lines = "\n".join([line for line in stderr.splitlines() if not _PROFILER.match(line)][-20:])
        aborted_by = watchdog_error(stderr) if end.signal_name == "SIGABRT" else None
        return replace(end, error=aborted_by, traceback=last_lines or None)

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
        trace = str(extra.get("py_callstack", ""))
        return told_error(str(message["message"]), trace), trace, seconds
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def tail_text(path: Path, size: int = _LOG_TAIL_BYTES) -> str:
    """The last bytes of a log as text; empty where there is none."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""
