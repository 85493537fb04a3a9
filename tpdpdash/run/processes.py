"""Processes of a run: which they are, and signals that can reach no other process.

A process belongs to a run when its environment at exec says TPDPDASH_RUN_ID, or when it descends from the run's
supervisor. Signals go through a pidfd that is opened first and checked afterwards, so a reused pid is never hit.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tpdpdash.telemetry.process import process_state, start_time_s
from tpdpdash.telemetry.record import RUN_ID_VARIABLE

_MAX_ENVIRONMENT_BYTES = 1 << 20
KILL_LIMIT_S = 10.0
"""A process that outlives SIGKILL for so long hangs in the kernel."""
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, told from any later one of the same pid."""

    pid: int
    """Process id."""
    start_time: float
    """Seconds between boot and its start."""

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; a zombie has ended."""
        return start_time_s(self.pid) == self.start_time and process_state(self.pid) not in (None, "Z", "X")


def identify(pid: int) -> ProcessId | None:
    """The process that has this pid now."""
    started = start_time_s(pid)
    return None if started is None else ProcessId(pid, started)


def belongs_to_run(pid: int, run_id: str) -> bool:
    """Whether the process was started with this run's id in its environment (proc(5), environ)."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            variables = file.read(_MAX_ENVIRONMENT_BYTES).split(b"\0")
    except OSError:
        return False
    return f"{RUN_ID_VARIABLE}={run_id}".encode() in variables


def answers_for(pid: int, run_id: str, path: Path) -> bool:
    """Whether a process is one that answers for the run: it carries its id, or was started with its folder."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return belongs_to_run(pid, run_id) or os.fsencode(path) in words


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _children_of(pids: Iterable[int]) -> dict[int, list[int]]:
    """Children by parent, over the given pids."""
    children: dict[int, list[int]] = {}
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            continue
        parent = int(stat[stat.rindex(b")") + 2 :].split()[1])
        children.setdefault(parent, []).append(pid)
    return children


def descendants(pid: int) -> list[ProcessId]:
    """Every living process below `pid`."""
    children = _children_of(_all_pids())
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(), ()):
            queue.append(child)
            process = identify(child)
            if process is not None and process.is_alive:
                found.append(process)
    return found


def processes_of_run(run_id: str, *, besides: frozenset[int] = frozenset()) -> list[ProcessId]:
    """Every living process that carries the run's id, but for `besides`."""
    pids = (pid for pid in _all_pids() if pid not in besides and belongs_to_run(pid, run_id))
    processes = (identify(pid) for pid in pids)
    return [process for process in processes if process is not None and process.is_alive]


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it has ended (or is another one by now, or not ours)."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (ProcessLookupError, PermissionError):
        return False
    try:
        # The descriptor is bound to whatever has the pid now; checked after opening, it cannot change any more.
        if start_time_s(process.pid) != process.start_time:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def end_processes(run_id: str, *, after_s: float = 0.0) -> list[ProcessId]:
    """Kill whatever carries the run's id, but for this process, once `after_s` have passed; returns when all are gone,
    or after KILL_LIMIT_S with those that cannot be killed."""
    begun = time.monotonic()
    while left := processes_of_run(run_id, besides=frozenset({os.getpid()})):
        waited = time.monotonic() - begun
        if waited > after_s + KILL_LIMIT_S:
            return left
        if waited >= after_s:
            for process in left:
                send_signal(process, signal.SIGKILL)
        time.sleep(_POLL_S)
    return []
