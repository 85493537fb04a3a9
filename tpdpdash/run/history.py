"""Runs as a reader sees them: the state that stands in the folder, or "lost" or "damaged". Never writes."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tpdpdash.run.folder import RunFolder, read_json, run_ids, runs_root
from tpdpdash.run.processes import ProcessId
from tpdpdash.run.status import RunStatus, State
from tpdpdash.telemetry.process import boot_id

ReaderState = Literal[State, "lost", "damaged"]
READER_STATES: tuple[str, ...] = (*get_args(State), "lost", "damaged")
HEARTBEAT_LIMIT_S = 60.0
"""A reader elsewhere calls a run lost when its last sign of life is older."""
_BIRTH_S = 90.0


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


def read_state(folder: RunFolder) -> RunView:
    """Judge one run. Never raises for what stands in the folder."""
    try:
        status = _status(folder)
        if status is None:
            return _unborn(folder)
        if not status.is_final and _is_gone(status):
            status = _status(folder) or status  # it may have ended between reading and looking
            if not status.is_final:
                return RunView(folder=folder, state="lost", status=status)
        return RunView(folder=folder, state=status.state, status=status)
    except (OSError, ValueError) as damage:
        return RunView(folder=folder, state="damaged", status=None, damage=str(damage)[:300])


def list_runs(root: Path | None = None, *, limit: int = 100, offset: int = 0) -> list[RunView]:
    """Runs, newest first. Only the listed ones are opened: 10,000 old runs cost one directory listing."""
    where = root or runs_root(os.environ)
    return [read_state(RunFolder(where / run_id)) for run_id in run_ids(where)[offset : offset + limit]]


def count_runs(root: Path | None = None) -> int:
    """How many runs there are."""
    return len(run_ids(root or runs_root(os.environ)))


def _status(folder: RunFolder) -> RunStatus | None:
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


def _is_gone(status: RunStatus) -> bool:
    """Whether the supervisor is gone, as far as this reader may judge (docs/reference.md)."""
    if status.host == socket.gethostname() and status.boot_id == boot_id():
        return not ProcessId(status.supervisor_pid, status.supervisor_start_time).is_alive
    return time.time() - (status.heartbeat or status.created) > HEARTBEAT_LIMIT_S
