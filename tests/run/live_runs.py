"""Real runs for the fault tests: start one, wait for what it should come to, and name its processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tpdpdash.run.command import shim_argv
from tpdpdash.run.history import RunView, read_state
from tpdpdash.run.processes import ProcessId, processes_of_run
from tpdpdash.run.request import RunRequest, start_request

SCRIPT = Path(__file__).with_name("rank_script.py")
LIGHT_AGENT = Path(__file__).with_name("light_agent.py")
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


def light_agent(world_size: int, ranks: Sequence[str]) -> tuple[str, ...]:
    """What starts the ranks where torchrun would only cost time."""
    return (sys.executable, str(LIGHT_AGENT), str(world_size), *shim_argv(), *ranks)


class LiveRun:
    """One real run of rank_script.py."""

    def __init__(
        self,
        root: Path,
        *arguments: str,
        world_size: int = 2,
        script: Path = SCRIPT,
        is_light: bool = False,
        **place: object,
    ) -> None:
        ranks = (sys.executable, str(script), *arguments)
        agent = light_agent(world_size, ranks) if is_light else None
        request = RunRequest(name="test", world_size=world_size, rank_argv=ranks, agent_argv=agent, **place)  # type: ignore[arg-type]
        self.folder = start_request(request, root=root)
        self.members: dict[str, ProcessId] = {}

    @property
    def view(self) -> RunView:
        return read_state(self.folder)

    def until_running(self) -> None:
        """Until every rank has finished a step; notes the run's processes."""
        wait_for(lambda: self.view.status is not None and self.view.status.phase == "running", START_S)
        for process in processes_of_run(self.folder.run_id):
            self.members[member_name(process.pid)] = process

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


def member_name(pid: int) -> str:
    """What a process of a run is: supervisor, agent, rank0, …; under Slurm also srun, and agent1 on node 1. Raises
    OSError when it is gone."""
    command, variables = Path(f"/proc/{pid}/cmdline").read_text(), environment(pid)
    if "tpdpdash.run.supervisor" in command:
        return "supervisor"
    if command.startswith("srun"):
        return "srun"
    if "tpdpdash.run.node_sampler" in command:
        return "sampler"
    return f"rank{variables['RANK']}" if "RANK" in variables else f"agent{variables.get('SLURM_NODEID', '')}"


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    text = Path(f"/proc/{pid}/environ").read_text()
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
