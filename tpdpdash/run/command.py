"""The command of a run: argv, working directory and added environment. Pure: builds and starts nothing."""

from __future__ import annotations

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


def shim_argv(python: str) -> tuple[str, ...]:
    """The shim in front of a program: isolated, without site, so that it starts in milliseconds."""
    return (python, "-I", "-S", str(Path(__file__).with_name("shim.py")))


def worker_argv(folder: RunFolder, python: str = sys.executable) -> tuple[str, ...]:
    """What each built-in rank runs."""
    return (python, "-u", "-m", "tpdpdash.worker", "--run-dir", str(folder.path))


def torchrun_argv(
    folder: RunFolder, *, num_ranks: int, rank_argv: Sequence[str], python: str = sys.executable
) -> tuple[str, ...]:
    """torchrun on this machine: a free port, one attempt, each rank's output in a file of its own.

    --local-addr: ranks meet on the loopback, whatever the host's name resolves to.
    """
    options = ("--standalone", "--local-addr", LOOPBACK, "--nproc-per-node", str(num_ranks), "--max-restarts", "0")
    output = ("--log-dir", str(folder.logs), "--redirects", "3", "--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S))
    agent = (python, "-m", "torch.distributed.run", *options, *output, "--no-python")
    return (*shim_argv(python), *agent, *shim_argv(python), *rank_argv)


def run_environment(folder: RunFolder, *, num_ranks: int, num_cores: int, uses_gpus: bool) -> Mapping[str, str]:
    """Environment that a run adds. Threads are set here: torchrun would set 1 with a warning."""
    threads = str(max(1, num_cores // num_ranks)) if not uses_gpus else str(max(1, min(8, num_cores // num_ranks)))
    env = {
        RUN_ID_VARIABLE: folder.run_id,
        RUN_DIR_VARIABLE: str(folder.path),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
    }
    if not uses_gpus:
        env["GLOO_SOCKET_IFNAME"] = "lo"
        env["CUDA_VISIBLE_DEVICES"] = ""
    return MappingProxyType(env)


def python_path(environ: Mapping[str, str]) -> Mapping[str, str]:
    """PYTHONPATH under which ranks find this package when it runs from a checkout."""
    if _PACKAGE_PARENT.name in _INSTALLED_FOLDERS:
        return {}
    before = environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{_PACKAGE_PARENT}:{before}" if before else str(_PACKAGE_PARENT)}


def local_command(
    folder: RunFolder,
    *,
    num_ranks: int,
    num_cores: int,
    uses_gpus: bool,
    environ: Mapping[str, str],
    rank_argv: Sequence[str] | None = None,
    agent_argv: Sequence[str] | None = None,
    cwd: str | None = None,
) -> Command:
    """The command of a run on this machine; `rank_argv` defaults to the built-in worker, `agent_argv` to torchrun."""
    environment = run_environment(folder, num_ranks=num_ranks, num_cores=num_cores, uses_gpus=uses_gpus)
    ranks = rank_argv or worker_argv(folder)
    argv = torchrun_argv(folder, num_ranks=num_ranks, rank_argv=ranks)
    return Command(
        argv=argv if agent_argv is None else (*shim_argv(sys.executable), *agent_argv),
        cwd=cwd or str(folder.path),
        env=MappingProxyType({**python_path(environ), **environment}),
    )
