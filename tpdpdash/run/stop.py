"""Stop a run: ask its supervisor, and return only once the state is final and every process is gone."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass

from tpdpdash.run import slurm
from tpdpdash.run.folder import RunFolder, write_json
from tpdpdash.run.history import RunView, read_state, supervisor_here
from tpdpdash.run.processes import ProcessId, answers_for, end_processes, processes_of_run, send_signal
from tpdpdash.run.status import SchedulerJob, State

STOP_LIMIT_S = 45.0
"""The supervisor's own grace and kill limits, and some slack; then it is killed itself."""
LINGER_S = 1.0
"""A supervisor that has just written its last status is given this long to leave by itself."""
_POLL_S = 0.1
_SLURM_POLL_S = 0.5
_ASK_AGAIN_S = 3.0


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
    supervisor = supervisor_here(view.status)
    try:
        write_json(folder.stop_request, {"v": 1, "by": by, "t": time.time()}, durable=False)
    except OSError:
        # The disk is full or read-only: a signal needs no file. It names nobody, so the status says "signal".
        if supervisor is not None:
            _signal(supervisor, folder, signal.SIGTERM)
    if supervisor is not None:
        _signal(supervisor, folder, signal.SIGCONT)  # one that was stopped would not hear of it
    if view.status is not None and view.status.scheduler is not None and not (supervisor and supervisor.is_alive):
        _ask_slurm(view.status.scheduler, folder.run_id, state=view.status.state)


def _signal(supervisor: ProcessId, folder: RunFolder, number: signal.Signals) -> None:
    """Signal whoever answers for the run, if that process says so itself: a status may be anybody's."""
    if answers_for(supervisor.pid, folder.run_id, folder.path):
        send_signal(supervisor, number)


def _ask_slurm(job: SchedulerJob, run_id: str, *, state: State) -> None:
    """A batch job's supervisor is signalled too: its node may see the request's file late. Without one, the job is
    cancelled: the watch on it may be gone."""
    with contextlib.suppress(slurm.SlurmSilentError):  # not a host of the cluster: the file remains
        if state == "created":
            slurm.cancel(job.id, run_id)
        else:
            slurm.tell_to_stop(job.id, run_id)


def stop_run(folder: RunFolder, *, by: str) -> StopResult:
    """Stop a run and wait for its end; bounded. Safe to call twice, and on a run that is over."""
    request_stop(folder, by=by)
    limit = time.monotonic() + STOP_LIMIT_S
    asked_again = time.monotonic() + _ASK_AGAIN_S
    view = read_state(folder)
    while not _has_ended(view) and time.monotonic() < limit:
        time.sleep(_POLL_S)
        view = read_state(folder)
        if time.monotonic() > asked_again:  # whoever had the first request may have ended with it
            asked_again = time.monotonic() + _ASK_AGAIN_S
            request_stop(folder, by=by)
    if view.status is not None and view.status.scheduler is not None:
        _until_out_of_queue(view.status.scheduler.id, folder.run_id, limit)
    supervisor = supervisor_here(view.status)
    if view.status is not None and supervisor is None:
        return StopResult(view=view, could_not_kill=view.status.could_not_kill)
    if supervisor is not None and not view.is_over:
        _signal(supervisor, folder, signal.SIGKILL)  # it does not answer; its shims end the rest
    left = end_processes(folder.run_id, after_s=LINGER_S)
    return StopResult(view=read_state(folder), could_not_kill=tuple(process.pid for process in left))


def _until_out_of_queue(job_id: str, run_id: str, limit: float) -> None:
    """Wait until Slurm has cleared the job's nodes; cancel it where it does not end by itself."""
    try:
        while slurm.look_up(job_id, run_id).state in slurm.ACTIVE_STATES:
            if time.monotonic() > limit:
                slurm.cancel(job_id, run_id)
                return
            time.sleep(_SLURM_POLL_S)
    except slurm.SlurmSilentError:  # not a host of the cluster, or its controller is busy: the status has to do
        return


def _has_ended(view: RunView) -> bool:
    """Whether nothing is left to be asked. A damaged status says nothing about its processes: those say it."""
    return view.is_over and (view.state != "damaged" or not processes_of_run(view.run_id))
