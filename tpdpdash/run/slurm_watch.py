"""The watch on a batch job: answers for a run of Slurm wherever the job's own supervisor cannot.

While the job waits, it writes status.json with the place in the queue. Once the supervisor inside the job writes
there, the watch only looks on; when Slurm says that the job is over and no final state was written (a node died, the
time was up), it writes that one. It belongs to the host of whoever submitted: if it is killed, the job and its
supervisor go on, and readers ask Slurm (history).

    python -m tpdpdash.run.slurm_watch RUN_FOLDER JOB_ID
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from tpdpdash.run import slurm
from tpdpdash.run.detach import leave_caller
from tpdpdash.run.folder import RunFolder, asked_to_stop_by, read_json
from tpdpdash.run.history import written_status
from tpdpdash.run.ranks import Ranks, tail_text
from tpdpdash.run.status import FirstFailure, RunStatus, SchedulerJob
from tpdpdash.run.status_file import StatusFile, first_status, note

TICK_S = 0.3
MIN_ASK_S, MAX_ASK_S = 1.0, 20.0
"""Slurm is asked more seldom as the job grows old: a twentieth of its age."""
LAST_WORDS_S = 5.0
"""A shared file system may show the supervisor's last status this much later than Slurm the job's end."""
_CANCELLED = "CANCELLED"


class SlurmWatch(StatusFile):
    """Watches one batch job from its submission to its end."""

    def __init__(self, folder: RunFolder, job_id: str) -> None:
        waiting = SchedulerJob(id=job_id, state="PENDING")
        super().__init__(folder, first_status(read_json(folder.command), scheduler=waiting))
        self.job = waiting
        self._began = time.monotonic()
        self._ask_due = 0.0
        self._over_since: float | None = None
        self._has_cancelled = False

    def run(self) -> None:
        """Until a final state stands in the folder, or the folder is gone."""
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        while not self._tick():
            time.sleep(TICK_S)

    def _tick(self) -> bool:
        """Look at the job and at the folder once; whether all is over."""
        self._look_up()
        found = self._found()
        if found.is_final:
            return True
        asked = asked_to_stop_by(self.folder)
        if asked is not None and self._answers(found):
            self._cancel()
            found = replace(found, state="stopping", stop_requested_by=asked)
        if self.job.state in slurm.ACTIVE_STATES:
            self._over_since = None
        elif self._over_since is None:
            self._over_since = time.monotonic()
        elif self._answers(found) or time.monotonic() > self._over_since + LAST_WORDS_S:
            self._conclude(found)
            return True
        if self._answers(found):
            self.publish(replace(found, scheduler=self.job))
        return False

    def _found(self) -> RunStatus:
        """The status that stands in the folder; what this process wrote last where it cannot be read."""
        try:
            return written_status(self.folder) or self.status
        except (OSError, ValueError) as damage:
            note(f"status.json: {damage}")
            return self.status

    def _answers(self, found: RunStatus) -> bool:
        """Whether no supervisor inside the job has taken over."""
        mine = (self.status.host, self.status.supervisor_pid)
        return (found.host, found.supervisor_pid) == mine

    def _look_up(self) -> None:
        now = time.monotonic()
        if now < self._ask_due:
            return
        self._ask_due = now + min(MAX_ASK_S, max(MIN_ASK_S, (now - self._began) / 20))
        try:
            self.job = slurm.look_up(self.job.id, self.folder.run_id)
        except slurm.SlurmSilentError as silent:  # the controller is restarted or busy: what is known stays
            note(f"squeue: {silent}")

    def _cancel(self) -> None:
        if self._has_cancelled:
            return
        try:
            slurm.cancel(self.job.id, self.folder.run_id)
            self._has_cancelled = True
        except slurm.SlurmSilentError as silent:  # tried again with the next tick
            note(f"scancel: {silent}")

    def _conclude(self, found: RunStatus) -> None:
        """The final state, since nobody else has written it."""
        ranks = Ranks(self.folder, found.world_size)
        ranks.update()
        ranks.close_rollup()
        asked = found.stop_requested_by or asked_to_stop_by(self.folder)
        was_cancelled = self.job.state.startswith(_CANCELLED) or asked is not None
        final = replace(
            found,
            state="stopped" if was_cancelled else "failed",
            stop_requested_by=(asked or "slurm") if was_cancelled else None,
            first_failure=None if was_cancelled else self._cause(),
            ended=time.time(),
            last_step=ranks.last_step,
            scheduler=self.job,
        )
        self.end(final, {"ranks": ranks.summary(), "bad_lines": dict(ranks.bad_lines)})

    def _cause(self) -> FirstFailure:
        """Slurm's word for the end, and what the batch script said last."""
        said = tail_text(self.folder.supervisor_log, 8 << 10).strip()
        return FirstFailure(code="batch_job_ended", error=self.job.state, traceback=said or None)


def main(path: str, job_id: str) -> int:
    """Leave the caller, then watch."""
    return leave_caller(lambda: SlurmWatch(RunFolder(Path(path)), job_id))


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2])
    sys.stdout.flush()
    os._exit(code)
