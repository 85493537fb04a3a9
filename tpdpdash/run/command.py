"""The command of a run: argv, working directory and added environment. Pure: builds and starts nothing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tpdpdash.run.folder import RunFolder
from tpdpdash.telemetry.record import RUN_DIR_VARIABLE, RUN_ID_VARIABLE

SHUTDOWN_TIMEOUT_S = 5
"""Seconds between the agent's SIGTERM and SIGKILL (torchrun's own default is 30)."""
LOOPBACK = "127.0.0.1"
_PACKAGE_PARENT = Path(__file__).resolve().parents[2]
_UNASKED = _PACKAGE_PARENT / "tpdpdash" / "telemetry" / "unasked"
_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What the supervisor starts."""

    argv: tuple[str, ...]
    """The program and its arguments; never a shell string."""
    cwd: str
    """Working directory."""
    env: Mapping[str, str]
    """What is added to the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the agents of several machines find each other (torchrun's c10d rendezvous)."""

    nodes: int
    """Machines, one agent each. Which ranks a machine gets is decided when they meet."""
    endpoint: str
    """HOST:PORT of one of the machines, by a name that the others know; never the loopback."""
    keeps_it: bool | None = None
    """Whether this machine is that one: torchrun guesses it from names, wrongly where a machine knows itself as
    127.0.1.1. None: said elsewhere."""


def shim_argv() -> tuple[str, ...]:
    """The shim in front of a program: isolated, without site, so that it starts in milliseconds."""
    return (sys.executable, "-I", "-S", str(Path(__file__).with_name("shim.py")))


def worker_argv(folder: RunFolder) -> tuple[str, ...]:
    """What each built-in rank runs."""
    return (sys.executable, "-u", "-m", "tpdpdash.worker", "--run-dir", str(folder.path))


def torchrun_argv(
    folder: RunFolder,
    *,
    num_ranks: int,
    rank_argv: Sequence[str],
    meeting: Meeting | None = None,
) -> tuple[str, ...]:
    """torchrun on one machine with its `num_ranks` ranks: one attempt, each rank's output in a file of its own.

    Without a meeting the ranks are on this machine alone, at a free port of the loopback, whatever the host's name
    resolves to. The dashes in front of the ranks' command: without them torchrun takes a script's own options for
    abbreviations of its options.
    """
    meet = ("--standalone", "--local-addr", LOOPBACK) if meeting is None else _meet(folder, meeting)
    options = (*meet, "--nproc-per-node", str(num_ranks), "--max-restarts", "0")
    output = ("--log-dir", str(folder.logs), "--redirects", "3", "--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S))
    agent = (sys.executable, "-m", "torch.distributed.run", *options, *output, "--no-python")
    return (*shim_argv(), *agent, "--", *shim_argv(), *rank_argv)


def _meet(folder: RunFolder, meeting: Meeting) -> tuple[str, ...]:
    """No --node-rank: under c10d it has no effect (r119), the rendezvous numbers the machines."""
    keeper = () if meeting.keeps_it is None else ("--rdzv-conf", f"is_host={int(meeting.keeps_it)}")
    where = ("--rdzv-backend", "c10d", "--rdzv-id", folder.run_id, "--rdzv-endpoint", meeting.endpoint, *keeper)
    return ("--nnodes", str(meeting.nodes), *where)


def run_environment(
    folder: RunFolder, *, num_ranks: int, num_cores: int, uses_gpus: bool, is_alone: bool = True
) -> Mapping[str, str]:
    """Environment that a run adds; `num_ranks` and `num_cores` of one machine, `is_alone`: it has no other.

    Threads are set here: torchrun would set 1 with a warning.
    """
    threads = str(max(1, num_cores // num_ranks)) if not uses_gpus else str(max(1, min(8, num_cores // num_ranks)))
    env = {
        RUN_ID_VARIABLE: folder.run_id,
        RUN_DIR_VARIABLE: str(folder.path),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
    }
    if not uses_gpus:
        env |= {"GLOO_SOCKET_IFNAME": "lo"} if is_alone else {}
        env["CUDA_VISIBLE_DEVICES"] = ""
    return MappingProxyType(env)


def python_path(environ: Mapping[str, str], *, watches_steps: bool = False) -> Mapping[str, str]:
    """PYTHONPATH under which ranks find this package when it runs from a checkout, and a person's own folders.

    `watches_steps`: first of all the folder whose sitecustomize starts the probe in a script that says nothing itself.
    """
    added = [_UNASKED] if watches_steps else []
    if _PACKAGE_PARENT.name not in _INSTALLED_FOLDERS:
        added.append(_PACKAGE_PARENT)
    if not added:
        return {}
    before = environ.get("PYTHONPATH")
    return {"PYTHONPATH": ":".join([*map(str, added), *([before] if before else [])])}


def local_command(
    folder: RunFolder,
    *,
    num_ranks: int,
    num_cores: int,
    uses_gpus: bool,
    environ: Mapping[str, str],
    watches_steps: bool = False,
    rank_argv: Sequence[str] | None = None,
    agent_argv: Sequence[str] | None = None,
    cwd: str | None = None,
    meeting: Meeting | None = None,
) -> Command:
    """The command of a run on this machine, with its `num_ranks` ranks and, under a `meeting`, others elsewhere.

    `rank_argv` defaults to the built-in worker, `agent_argv` to torchrun.
    """
    environment = run_environment(
        folder, num_ranks=num_ranks, num_cores=num_cores, uses_gpus=uses_gpus, is_alone=meeting is None
    )
    ranks = rank_argv or worker_argv(folder)
    argv = torchrun_argv(folder, num_ranks=num_ranks, rank_argv=ranks, meeting=meeting)
    return Command(
        argv=argv if agent_argv is None else (*shim_argv(), *agent_argv),
        cwd=cwd or str(folder.path),
        env=MappingProxyType({**python_path(environ, watches_steps=watches_steps), **environment}),
    )


def host_command(command: Command, folder: RunFolder) -> str:
    """One machine's command as a line for a shell, to be copied: directory and environment are in it.

    With a meeting it is the same line on every machine; each must see the run folder at the same path, in which it
    leaves what its agent says.
    """
    words = (f"{name}={value}" for name, value in command.env.items())
    log = shlex.quote(f"{folder.logs}/agent-")
    start = shlex.join(("env", *words, *command.argv))
    return f"cd {shlex.quote(command.cwd)} && {start} 2>&1 | tee -a {log}$(hostname).log"
