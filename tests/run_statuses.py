"""Statuses of runs as their supervisor writes them; this very process may be one that lives."""

from __future__ import annotations

import os
import socket
import time

from tpdpdash.run.status import RunStatus
from tpdpdash.telemetry.process import boot_id, start_time_s


def status_of(pid: int, start_time: float, **changes: object) -> RunStatus:
    """A run on this machine whose supervisor is that process, and was heard of just now."""
    fields = {
        "state": "running",
        "engine": "local",
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "supervisor_pid": pid,
        "supervisor_start_time": start_time,
        "created": time.time(),
        "heartbeat": time.time(),
    }
    return RunStatus(**{**fields, **changes})  # type: ignore[arg-type]


def own_status(**changes: object) -> RunStatus:
    """A run whose supervisor is this process: alive, unless a pid is given."""
    return status_of(os.getpid(), start_time_s(os.getpid()) or 0.0, **changes)
