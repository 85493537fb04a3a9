"""The supervisor: one small process a run, in a session of its own, that outlives whoever started it.

It starts the agent through the shim, watches the ranks, writes status.json (nobody else does while it lives), ends the
run when it is asked to, and leaves no process behind. If it is killed itself, the shims take agent and ranks with it.

    python -m tpdpdash.run.supervisor RUN_FOLDER                  leaves its caller, starts the folder's command
    python -m tpdpdash.run.supervisor RUN_FOLDER srun WORDS…      inside a batch job of Slurm: stays, starts these words
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpdpdash.run.command import shim_argv
from tpdpdash.run.detach import become_subreaper, leave_caller
from tpdpdash.run.devices import DeviceSampler
from tpdpdash.run.failure import exit_of_agents, first_failure, first_words
from tpdpdash.run.folder import RunFolder, asked_to_stop_by, read_json
from tpdpdash.run.processes import ProcessId, descendants, identify, processes_of_run, send_signal
from tpdpdash.run.ranks import Ranks, tail_text
from tpdpdash.run.shim import PARENT_VARIABLE
from tpdpdash.run.slurm import SlurmSilentError, ended_by_slurm, job_here, look_up, signal_step
from tpdpdash.run.status import FirstFailure, RunStatus, SchedulerJob
from tpdpdash.run.status_file import StatusFile, first_status, note
from tpdpdash.units import MILLISECOND

TICK_S = 0.2
STOP_GRACE_S = 7.0
"""The agent gives its ranks 5 s (command.SHUTDOWN_TIMEOUT_S); then everything is killed."""
LINGER_S = 1.5
"""Ranks may outlive the agent this long to write their last words."""
KILL_LIMIT_S = 20.0
"""A process that outlives SIGKILL for so long hangs in the kernel: it is named and left."""
BY_SIGNAL = "signal"
"""Who asked for a stop that came as SIGTERM, without a name."""


class Supervisor(StatusFile):
    """Supervises one run from start to end."""

    def __init__(self, folder: RunFolder, *, scheduler: SchedulerJob | None = None) -> None:
        self.command: dict[str, Any] = read_json(folder.command)
        super().__init__(folder, first_status(self.command, scheduler=scheduler))
        self.ranks = Ranks(folder, self.status.world_size, nodes=self.command["nodes"])
        self.sampler = DeviceSampler(folder, node=0, uses_gpus=self.command["uses_gpus"])
        self.agent: ProcessId | None = None
        self.agent_exit: int | None = None
        self.agent_died_t: float | None = None
        self._kill_due: float | None = None
        self._stop_t: float | None = None
        self._was_signalled = False
        self._has_killed_elsewhere = False

    # -------------------------------------------------------------------------------------- life

    def run(self) -> None:
        """From the start of the agent to the last status."""
        signal.signal(signal.SIGTERM, self._on_signal)
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        try:
            if self._start_agent():
                while self.agent_exit is None:
                    self._wait()
                    self._tick()
            self._finish()
        except BaseException:
            self._give_up(traceback.format_exc())
            raise

    def _start_agent(self) -> bool:
        """Start torchrun; False when it cannot even be started."""
        self.set_status(state="starting", started=time.time())
        environment = {**os.environ, **self.command["env"], PARENT_VARIABLE: str(os.getpid())}
        try:
            with self.folder.agent_log.open("ab") as log:
                agent = subprocess.Popen(
                    self.command["argv"],
                    cwd=self.command["cwd"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as wrong:
            failure = FirstFailure(code="agent_failed", error=str(wrong))
            self.set_status(first_failure=failure)
            return False
        agent.returncode = 0  # it is reaped below, together with adopted orphans: not by subprocess
        self.agent = identify(agent.pid)
        return True

    def _wait(self) -> None:
        """Until something happens to a rank, or a tick has passed."""
        poll = select.poll()
        for descriptor in self.ranks.death_watches():
            poll.register(descriptor, select.POLLIN)
        poll.poll(TICK_S / MILLISECOND)

    def _tick(self) -> None:
        self._reap()
        self._update_ranks()
        self._heed_stop()
        self.sampler.sample_if_due({rank.rank: rank.process.pid for rank in self._living()})
        self._publish()

    def _living(self) -> list[Any]:
        return [rank for rank in self.ranks.by_rank.values() if rank.process is not None and rank.died_t is None]

    def _update_ranks(self) -> None:
        before = self.ranks.unreadable
        self.ranks.update()
        for name, why in self.ranks.unreadable.items():
            if name not in before:  # said once, not in each tick
                note(f"{name}: {why}")

    def _reap(self) -> None:
        """Collect ended children: the agent, and orphans that came to this subreaper."""
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.agent is not None and pid == self.agent.pid:
                self.agent_exit = os.waitstatus_to_exitcode(wait_status)
                self.agent_died_t = time.time()

    # -------------------------------------------------------------------------------------- stop

    def _on_signal(self, *_: object) -> None:
        self._was_signalled = True

    def _heed_stop(self) -> None:
        """Begin to stop when somebody asked for it; kill what is left when the grace has passed."""
        if self._kill_due is not None:
            if time.monotonic() > self._kill_due:
                if not self._has_killed_elsewhere:
                    self._has_killed_elsewhere = True
                    self._signal_elsewhere(signal.SIGKILL)
                self._signal_all(signal.SIGKILL)
            return
        asked_by = self._asked_by()
        if asked_by is None:
            return
        self._kill_due = time.monotonic() + STOP_GRACE_S
        self._stop_t = time.time()
        self.set_status(state="stopping", stop_requested_by=asked_by)
        self._signal_all(signal.SIGCONT)  # a stopped process does not hear SIGTERM
        # srun would answer SIGTERM by killing its agents at once: on Slurm they are told themselves.
        if not self._signal_elsewhere(signal.SIGTERM) and self.agent is not None:
            send_signal(self.agent, signal.SIGTERM)

    def _asked_by(self) -> str | None:
        return asked_to_stop_by(self.folder) or (BY_SIGNAL if self._was_signalled else None)

    def _members(self) -> list[ProcessId]:
        """Everything that belongs to the run, but for this process."""
        found = {process.pid: process for process in descendants(os.getpid())}
        tagged = processes_of_run(self.folder.run_id, besides=frozenset({os.getpid()}))
        return list({**found, **{process.pid: process for process in tagged}}.values())

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._members():
            send_signal(process, number)

    def _signal_elsewhere(self, number: signal.Signals) -> bool:
        """Signal the agents on all nodes of a batch job, which no signal from here reaches; whether that was done."""
        if self.status.scheduler is None:
            return False
        try:
            signal_step(self.status.scheduler.id, number)
        except SlurmSilentError as silent:  # Slurm ends them all the same when the batch script ends
            note(f"scancel: {silent}")
            return False
        return True

    # --------------------------------------------------------------------------------------- end

    def _finish(self) -> None:
        """No process is left; then the final state, once."""
        left = self._clear_out()
        self._update_ranks()
        failure = self.status.first_failure or self._first_failure() or self._end_of_job()
        stopped = self._stop_t is not None
        has_ended_well = self.agent_exit == 0 and not left
        state = "failed" if left or failure else "finished" if has_ended_well else "stopped" if stopped else "failed"
        self._end(state, failure, tuple(process.pid for process in left))

    def _first_failure(self) -> FirstFailure | None:
        """The first cause; of a run that was stopped, only what had failed before somebody asked for its end."""
        ends = self.ranks.ends()
        if self._stop_t is not None:
            return first_failure([end for end in ends if end.time < self._stop_t], agent_exit=None)
        log = first_words([tail_text(path) for path in self.folder.agent_logs()])
        agent_exit = self.agent_exit if self.status.scheduler is None else exit_of_agents(self.agent_exit, ends)
        return first_failure(ends, agent_exit=agent_exit, agent_died_t=self.agent_died_t, agent_log=log)

    def _end_of_job(self) -> FirstFailure | None:
        """Slurm's reason where it, and nobody who wanted it, ended the job: its time is up."""
        if self.status.scheduler is None or self.status.stop_requested_by != BY_SIGNAL:
            return None
        try:
            cause = ended_by_slurm(look_up(self.status.scheduler.id, self.folder.run_id))
        except SlurmSilentError as silent:
            note(f"squeue: {silent}")
            return None
        return None if cause is None else FirstFailure(code="job_ended_by_slurm", error=cause)

    def _clear_out(self) -> list[ProcessId]:
        """End what the agent left behind; those that cannot be killed are returned."""
        begun = time.monotonic()
        while left := self._members():
            waited = time.monotonic() - begun
            if waited > KILL_LIMIT_S:
                return left
            if waited > LINGER_S or self._kill_due is not None:
                self._signal_all(signal.SIGKILL)
            time.sleep(TICK_S / 4)
            self._reap()
            self._update_ranks()
        self._reap()
        return []

    def _end(self, state: str, failure: FirstFailure | None, left: tuple[int, ...]) -> None:
        self.ranks.close_rollup()
        ended = {"state": state, "ended": time.time(), "exit_code": self.agent_exit, "first_failure": failure}
        if self.status.scheduler is not None:  # the batch script is about to end
            ended["scheduler"] = replace(self.status.scheduler, state="COMPLETING")
        final = replace(self._seen(), **ended, could_not_kill=left)  # type: ignore[arg-type]
        measured = {"ranks": self.ranks.summary(), "bad_lines": dict(self.ranks.bad_lines)}
        self.end(final, {**measured, "lost_samples": self.sampler.lost_samples})

    def _give_up(self, reason: str) -> None:
        """A defect of the supervisor itself: end the run, and say so."""
        self._signal_all(signal.SIGKILL)
        left = tuple(process.pid for process in self._clear_out())
        error = reason.strip().splitlines()[-1]
        self._end("failed", FirstFailure(code="supervisor_failed", error=error, traceback=reason), left)

    # ------------------------------------------------------------------------------------ status

    def _seen(self) -> RunStatus:
        """The status with what the ranks have told."""
        seen = {"phase": self.ranks.phase, "ranks_by_phase": self.ranks.by_phase(), "last_step": self.ranks.last_step}
        return replace(self.status, **seen)  # type: ignore[arg-type]

    def _publish(self) -> None:
        """Write the status when it has changed, and every two seconds as a sign of life."""
        status = self._seen()
        if status.state == "starting" and self.agent_exit is None and self._is_running():
            status = replace(status, state="running")
        self.publish(status)

    def _is_running(self) -> bool:
        """Whether all ranks have reported; of ranks that may never report, whether those of all machines were begun."""
        if self.command["has_probe"]:
            return self.ranks.have_all_reported
        return self.command["nodes"] == 1 or self.ranks.have_all_begun

    def set_status(self, **changes: Any) -> None:
        """Change the status and write it at once."""
        self.write(replace(self._seen(), **changes), durable=True)


def main(path: str, agent: Sequence[str] = ()) -> int:
    """Supervise in place where agent words are given; else fork away from the caller."""
    if not agent:
        return leave_caller(lambda: Supervisor(RunFolder(Path(path))))
    become_subreaper()
    supervisor = Supervisor(RunFolder(Path(path)), scheduler=job_here(os.environ))
    supervisor.command["argv"] = [*shim_argv(), *agent]
    supervisor.run()
    return 0 if supervisor.status.state == "finished" else 1


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2:])
    sys.stdout.flush()
    os._exit(code)
