"""Stop a run: ask its supervisor, and return only once the state is final and every process is gone."""

from __future__ import annotations

import signal
import socket
import time
from dataclasses import dataclass

from tpdpdash.run.folder import RunFolder, write_json
from tpdpdash.run.history import RunView, read_state
from tpdpdash.run.processes import ProcessId, end_processes, processes_of_run, send_signal
from tpdpdash.run.status import RunStatus
from tpdpdash.telemetry.process import boot_id

STOP_LIMIT_S = 45.0
"""The supervisor's own grace and kill limits, and some slack; then it is killed itself."""
LINGER_S = 1.0
"""A supervisor that has just written its last status is given this long to leave by itself."""
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
    if _has_ended(view):
        return
    try:
        write_json(folder.stop_request, {"v": 1, "by": by, "t": time.time()}, durable=False)
    except OSError:
        # The disk is full or read-only: a signal needs no file. It names nobody, so the status says "signal".
        if view.status is not None and _is_here(view.status):
            send_signal(_supervisor(view.status), signal.SIGTERM)
    if view.status is not None and _is_here(view.status):
        send_signal(_supervisor(view.status), signal.SIGCONT)  # one that was stopped would not hear of it


def stop_run(folder: RunFolder, *, by: str) -> StopResult:
    """Stop a run and wait for its end; bounded. Safe to call twice, and on a run that is over."""
    request_stop(folder, by=by)
    limit = time.monotonic() + STOP_LIMIT_S
    view = read_state(folder)
    while not _has_ended(view) and time.monotonic() < limit:
        time.sleep(_POLL_S)
        view = read_state(folder)
    if view.status is not None and not _is_here(view.status):
        return StopResult(view=view, could_not_kill=view.status.could_not_kill)
    if view.status is not None and not view.is_over:
        send_signal(_supervisor(view.status), signal.SIGKILL)  # it does not answer; its shims end the rest
    left = end_processes(folder.run_id, after_s=LINGER_S)
    return StopResult(view=read_state(folder), could_not_kill=tuple(process.pid for process in left))


def _has_ended(view: RunView) -> bool:
    """Whether nothing is left to be asked. A damaged status says nothing about its processes: those say it."""
    return view.is_over and (view.state != "damaged" or not processes_of_run(view.run_id))


def _supervisor(status: RunStatus) -> ProcessId:
    return ProcessId(status.supervisor_pid, status.supervisor_start_time)


def _is_here(status: RunStatus) -> bool:
    return status.host == socket.gethostname() and status.boot_id == boot_id()
