"""How a process that answers for a run leaves its caller: a session of its own, and orphans that come to it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Protocol

from tpdpdash.run.folder import RunFolder, write_json
from tpdpdash.run.status import RunStatus

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
READY = b"1"


class Answering(Protocol):
    """A process that answers for a run: writes its status from the first to the last."""

    folder: RunFolder
    status: RunStatus

    def run(self) -> None:
        """To the end of the run."""


def become_subreaper() -> None:
    """Orphans of this process come to it instead of to init (prctl(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def leave_caller(make: Callable[[], Answering]) -> int:
    """Fork away from the caller; the parent returns 0 once the child has written the first status."""
    reading, writing = os.pipe()
    if os.fork() != 0:
        os.close(writing)
        return 0 if os.read(reading, 1) == READY else 1
    os.close(reading)
    os.setsid()
    become_subreaper()
    answering = make()
    write_json(answering.folder.status, answering.status.to_json())
    os.write(writing, READY)
    os.close(writing)
    answering.run()
    return 0
