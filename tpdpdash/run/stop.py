"""Stop a run: ask its supervisor, and return only once the state is final and every process is gone."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass

from tpdpdash.run.folder import RunFolder, write_json
from tpdpdash.run.history import RunView, read_state
from tpdpdash.run.processes import ProcessId, processes_of_run, send_signal
from tpdpdash.run.status import RunStatus
from tpdpdash.telemetry.process import boot_id

STOP_LIMIT_S = 45.0
"""The supervisor's own grace and kill limits, and some slack; then it is killed itself."""
KILL_LIMIT_S = 10.0
LINGER_S = 1.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """How a stop ended."""

    view: RunView
    """The run as it is now."""
    could_not_kill: tuple[int, ...]
    """Processes that are still there; empty when everything is gone."""


def request_stop(folder: RunFolder, *, by: str) -> None:
    """Ask for the end without waiting for it."""
    view = read_state(folder)
    if view.is_over:
        return
    try:
        write_json(folder.stop_request, {"v": 1, "by": by, "t": time.time()}, durable=False)
    except OSError:
        # The disk is full or read-only: a signal needs no file. It names nobody, so the status says "signal".
        if view.status is not None and _is_here(view.status):
            send_signal(_supervisor(view.status), signal.SIGTERM)


def stop_run(folder: RunFolder, *, by: str) -> StopResult:
    """Stop a run and wait for its end; bounded. Safe to call twice, and on a run that is over."""
    request_stop(folder, by=by)
    limit = time.monotonic() + STOP_LIMIT_S
    view = read_state(folder)
    while not view.is_over and time.monotonic() < limit:
        time.sleep(_POLL_S)
        view = read_state(folder)
    if view.status is None or not _is_here(view.status):
        return StopResult(view=view, could_not_kill=view.status.could_not_kill if view.status else ())
    if not view.is_over:
        send_signal(_supervisor(view.status), signal.SIGKILL)  # it does not answer; its shims end the rest
    left = _clear_out(folder.run_id)
    return StopResult(view=read_state(folder), could_not_kill=tuple(process.pid for process in left))


def _clear_out(run_id: str) -> list[ProcessId]:
    """End whatever carries the run's id; those that cannot be killed are returned.

    A supervisor that has just written its last status is given a moment to leave by itself.
    """
    begun = time.monotonic()
    while left := processes_of_run(run_id, besides=frozenset({os.getpid()})):
        if time.monotonic() - begun > KILL_LIMIT_S:
            return left
        if time.monotonic() - begun > LINGER_S:
            for process in left:
                send_signal(process, signal.SIGKILL)
        time.sleep(_POLL_S)
    return []


def _supervisor(status: RunStatus) -> ProcessId:
    return ProcessId(status.supervisor_pid, status.supervisor_start_time)


def _is_here(status: RunStatus) -> bool:
    return status.host == socket.gethostname() and status.boot_id == boot_id()
