"""Runs as a reader sees them: the state that stands in the folder, or "lost" or "damaged". Never writes."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from tpdpdash.run.folder import RunFolder, read_json, run_ids, runs_root
from tpdpdash.run.processes import ProcessId
from tpdpdash.run.slurm import ACTIVE_STATES, SlurmSilentError, look_up
from tpdpdash.run.status import RunStatus, SchedulerJob, State
from tpdpdash.telemetry.process import boot_id

ReaderState = Literal[State, "lost", "damaged"]
HEARTBEAT_LIMIT_S = 60.0
"""A reader elsewhere calls a run lost when its last sign of life is older."""
_BIRTH_S = 90.0
_QUEUE_S = 5.0
"""Slurm is asked about a run without a supervisor once in so long, however many look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run, judged."""

    folder: RunFolder
    """Where it lies."""
    state: ReaderState
    """The state as the reader judges it."""
    status: RunStatus | None
    """What the supervisor wrote last; None where that is missing or damaged."""
    damage: str = ""
    """What is wrong with the folder."""

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.folder.run_id

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state not in ("created", "starting", "running", "stopping")

    @property
    def created(self) -> float | None:
        """Wall time at which it was made."""
        return self.status.created if self.status else None

    @property
    def world_size(self) -> int:
        """Ranks; 1 until a status says how many."""
        return self.status.world_size if self.status else 1


def read_state(folder: RunFolder) -> RunView:
    """Judge one run. Never raises for what stands in the folder."""
    try:
        status = written_status(folder)
        if status is None:
            return _unborn(folder)
        if not status.is_final and _is_gone(status):
            status = written_status(folder) or status  # it may have ended between reading and looking
            if not status.is_final:
                return _unattended(folder, status)
        return RunView(folder=folder, state=status.state, status=status)
    except (OSError, ValueError) as damage:
        return RunView(folder=folder, state="damaged", status=None, damage=str(damage)[:300])


def _unattended(folder: RunFolder, status: RunStatus) -> RunView:
    """A run for which nobody answers is lost; but a batch job waits and runs without whoever submitted it, and of
    that Slurm knows."""
    job = _in_queue(status.scheduler.id, folder.run_id, int(time.monotonic() / _QUEUE_S)) if status.scheduler else None
    if job is None or job.state not in ACTIVE_STATES:
        return RunView(folder=folder, state="lost", status=replace(status, scheduler=job or status.scheduler))
    return RunView(folder=folder, state=status.state, status=replace(status, scheduler=job))


@lru_cache(maxsize=64)
def _in_queue(job_id: str, run_id: str, look: int) -> SchedulerJob | None:
    """The job as Slurm knows it, asked once for each `look`; None where Slurm does not answer."""
    del look
    try:
        return look_up(job_id, run_id)
    except SlurmSilentError:
        return None


def list_runs(root: Path | None = None, *, limit: int = 100, offset: int = 0) -> list[RunView]:
    """Runs, newest first. Only the listed ones are opened: 10,000 old runs cost one directory listing."""
    where = root or runs_root(os.environ)
    return [read_state(RunFolder(where / run_id)) for run_id in run_ids(where)[offset : offset + limit]]


def count_runs(root: Path | None = None) -> int:
    """How many runs there are."""
    return len(run_ids(root or runs_root(os.environ)))


def written_status(folder: RunFolder) -> RunStatus | None:
    """What stands in status.json; None where there is none. Raises OSError, or ValueError when it is damaged."""
    try:
        return RunStatus.from_json(read_json(folder.status))
    except FileNotFoundError:
        return None


def _unborn(folder: RunFolder) -> RunView:
    """A folder without a status: being made, or its start was cut short."""
    age = time.time() - folder.path.stat().st_mtime
    if age < _BIRTH_S:
        return RunView(folder=folder, state="created", status=None)
    return RunView(folder=folder, state="damaged", status=None, damage="status.json is missing")


def supervisor_here(status: RunStatus | None) -> ProcessId | None:
    """Whoever answers for a run, alive or not; None for one of another machine or boot, whose pids mean nothing here,
    and where nobody has said it."""
    if status is None or status.host != socket.gethostname() or status.boot_id != boot_id():
        return None
    return ProcessId(status.supervisor_pid, status.supervisor_start_time)


def _is_gone(status: RunStatus) -> bool:
    """Whether the supervisor is gone, as far as this reader may judge (docs/reference.md)."""
    supervisor = supervisor_here(status)
    if supervisor is not None:
        return not supervisor.is_alive
    return time.time() - (status.heartbeat or status.created) > HEARTBEAT_LIMIT_S
