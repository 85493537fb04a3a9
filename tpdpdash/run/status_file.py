"""StatusFile: whoever answers for a run writes its status.json and its summary with this, and nobody else does."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpdpdash.run.folder import RunFolder, write_json
from tpdpdash.run.status import RunStatus, SchedulerJob
from tpdpdash.telemetry.process import boot_id, start_time_s

HEARTBEAT_S = 2.0
LAST_WRITE_LIMIT_S = 30.0


class StatusFile:
    """status.json of one run, with a sign of life every two seconds; a write that fails is tried again."""

    def __init__(self, folder: RunFolder, status: RunStatus) -> None:
        self.folder = folder
        self.status = status
        self.lost_writes = 0
        self._written: RunStatus | None = None
        self._write_due = 0.0

    def publish(self, status: RunStatus) -> None:
        """Write the status when it has changed (a step alone is no news), and as a sign of life."""
        is_news = self._written is None or replace(status, last_step=None) != replace(self._written, last_step=None)
        if is_news or time.monotonic() > self._write_due:
            self.write(status, durable=self._written is None or status.state != self._written.state)

    def write(self, status: RunStatus, *, durable: bool) -> None:
        """Write it at once; what fails is tried again with the next heartbeat."""
        self.status = status
        self._write_due = time.monotonic() + HEARTBEAT_S
        try:
            write_json(self.folder.status, {**status.to_json(), "heartbeat": time.time()}, durable=durable)
            self._written = status
        except OSError as wrong:
            self.lost_writes += 1
            note(f"status.json: {wrong}")

    def end(self, final: RunStatus, summary: dict[str, Any]) -> None:
        """The summary, then the final state, once."""
        with contextlib.suppress(OSError):  # on a disk that takes nothing any more, this leaves room for them
            self.folder.reserve.unlink(missing_ok=True)
        document = {**final.to_json(), **summary, "lost_writes": self.lost_writes}
        _write_at_last(self.folder.summary, document)
        self.status = final
        _write_at_last(self.folder.status, {**final.to_json(), "heartbeat": time.time()})


def first_status(command: Mapping[str, Any], *, scheduler: SchedulerJob | None = None) -> RunStatus:
    """The status of a run for which this process begins to answer."""
    pid = os.getpid()
    return RunStatus(
        state="created",
        engine=command["engine"],
        host=socket.gethostname(),
        boot_id=boot_id(),
        supervisor_pid=pid,
        supervisor_start_time=start_time_s(pid) or 0.0,
        created=command["created"],
        scheduler=scheduler,
        **{name: command[name] for name in ("name", "layout", "world_size", "rehearsal", "steps")},
    )


def _write_at_last(path: Path, document: dict[str, Any]) -> None:
    """The last writes are tried for a while: a full disk may be cleared."""
    limit = time.monotonic() + LAST_WRITE_LIMIT_S
    while True:
        try:
            write_json(path, document)
            return
        except FileNotFoundError:  # the folder itself is gone: there is nothing to wait for
            return
        except OSError as wrong:
            note(f"{path.name}: {wrong}")
            if time.monotonic() > limit:
                return
        time.sleep(1.0)


def note(what: str) -> None:
    """Say it in supervisor.log. Where the disk is full there is nowhere to say it, and the run goes on all the same."""
    with contextlib.suppress(OSError):
        print(what, file=sys.stderr, flush=True)
