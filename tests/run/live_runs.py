"""Real runs for the fault tests: start one, wait for what it should come to, and name its processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tpdpdash.run.history import RunView, read_state
from tpdpdash.run.processes import ProcessId, processes_of_run
from tpdpdash.run.request import RunRequest, start_request

SCRIPT = Path(__file__).with_name("rank_script.py")
SLACK = 3
"""Deadlines of the product times this: a test machine is busy."""
START_S = 60.0


def wait_for(what: Callable[[], object], limit_s: float) -> float:
    """Seconds until `what` was true. Fails when that takes longer than the limit."""
    began = time.monotonic()
    while not what():
        if time.monotonic() - began > limit_s:
            pytest.fail(f"not so after {limit_s} s")
        time.sleep(0.02)
    return time.monotonic() - began


class LiveRun:
    """One real run of rank_script.py."""

    def __init__(self, root: Path, *arguments: str, world_size: int = 2, script: Path = SCRIPT) -> None:
        argv = (sys.executable, str(script), *arguments)
        self.folder = start_request(RunRequest(name="test", world_size=world_size, rank_argv=argv), root=root)
        self.members: dict[str, ProcessId] = {}

    @property
    def view(self) -> RunView:
        return read_state(self.folder)

    def until_running(self) -> None:
        """Until every rank has finished a step; notes the run's processes."""
        wait_for(lambda: self.view.status is not None and self.view.status.phase == "running", START_S)
        for process in processes_of_run(self.folder.run_id):
            self.members[self._kind(process.pid)] = process

    def until_over(self, limit_s: float) -> RunView:
        """Until a reader says that it is over."""
        wait_for(lambda: self.view.is_over, limit_s)
        return self.view

    def kill(self, member: str) -> None:
        """kill -9 one member: supervisor, agent, rank0, …"""
        os.kill(self.members[member].pid, signal.SIGKILL)

    def is_any_left(self) -> bool:
        """Whether any process of the run lives."""
        return any(process.is_alive for process in self.members.values()) or bool(processes_of_run(self.folder.run_id))

    def until_gone(self) -> None:
        """Until no process is left: the supervisor itself leaves right after its last status."""
        wait_for(lambda: not self.is_any_left(), 2 * SLACK)

    def variable(self, member: str, name: str) -> str | None:
        """A variable of a member's environment."""
        return environment(self.members[member].pid).get(name)

    @staticmethod
    def _kind(pid: int) -> str:
        command = Path(f"/proc/{pid}/cmdline").read_text()
        if "tpdpdash.run.supervisor" in command:
            return "supervisor"
        return "agent" if "torch.distributed.run" in command else f"rank{environment(pid)['RANK']}"


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    text = Path(f"/proc/{pid}/environ").read_text()
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
