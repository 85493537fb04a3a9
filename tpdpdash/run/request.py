"""A request to run something, and what becomes of it: a folder, a command, a supervisor. Knows nothing of Jobs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from filelock import FileLock, Timeout

from tpdpdash.cluster.nvml import detect_devices
from tpdpdash.cluster.occupants import rank_devices
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.run import slurm
from tpdpdash.run.address import free_port, reachable_name
from tpdpdash.run.claims import claimed
from tpdpdash.run.command import Command, Meeting, host_command, local_command, python_path
from tpdpdash.run.folder import RunFolder, new_run_folder, read_json, run_ids, runs_root, write_json, write_whole
from tpdpdash.run.processes import end_processes
from tpdpdash.run.ranks import tail_text
from tpdpdash.run.shim import PARENT_VARIABLE
from tpdpdash.run.slurm_script import batch_script
from tpdpdash.state_dir import made_private, state_dir
from tpdpdash.telemetry.record import RUN_ID_VARIABLE

START_LIMIT_S = 60.0
SLURM_DEALS = Fault(code="slurm_deals_devices", field="--share-devices")
"""What stands against sharing devices under Slurm: whose they are is not ours to say there."""
_LOCK_LIMIT_S = 90.0
_REMEMBERED_RUNS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A run to be started, as its folder will describe it."""

    name: str
    """Name for lists and for the run id."""
    layout: str = ""
    """Short name of the layout: tp2-pp2-dp2."""
    world_size: int
    """Ranks in all."""
    engine: str = "local"
    """Who starts torchrun on the machines: local, hosts or slurm (run.place)."""
    nodes: int = 1
    """Machines, with the same number of ranks each."""
    partition: str | None = None
    """Slurm's partition; None: its default."""
    steps: int | None = None
    """Steps that are asked for, where known."""
    rehearsal: bool = False
    """Whether the Job was shrunken."""
    uses_gpus: bool = False
    """Whether the ranks run on GPUs."""
    shares_devices: bool = False
    """Whether it may take devices that another run holds."""
    has_probe: bool = True
    """Whether the ranks write telemetry."""
    watches_steps: bool = False
    """Whether ranks that import torch are to tell of their steps without a line in their script."""
    rank_argv: tuple[str, ...] | None = None
    """What each rank runs; None: the built-in worker."""
    agent_argv: tuple[str, ...] | None = None
    """A program in torchrun's place that starts the ranks itself; None: torchrun."""
    cwd: str | None = None
    """Working directory; None: the run folder."""
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Text files of the folder by name: asked.toml, job.toml, prediction.json, changes.json."""

    def __post_init__(self) -> None:
        if self.engine == "slurm" and self.shares_devices:
            raise InvalidInputError([SLURM_DEALS])


def start_request(request: RunRequest, *, request_id: str | None = None, root: Path | None = None) -> RunFolder:
    """Start whatever the request describes. Raises InvalidInputError: nothing is left behind then."""
    where = root or runs_root(os.environ)
    try:
        with _one_at_a_time(where):
            known = _already_started(where, request_id)
            return known if known is not None else _start(where, request, request_id)
    except slurm.SlurmSilentError as silent:
        values = {"reason": str(silent)}
        raise InvalidInputError(
            [Fault(code="not_submitted", field="--engine", value="slurm", values=values)]
        ) from silent
    except (OSError, Timeout) as wrong:
        values = {"reason": wrong.strerror or str(wrong) if isinstance(wrong, OSError) else "locked"}
        at = str(wrong.filename or where) if isinstance(wrong, OSError) else str(where)
        raise InvalidInputError([Fault(code="run_not_started", field="run", value=at, values=values)]) from wrong


@contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    """A lock in the user's state directory: only run folders stand among the runs."""
    locks = made_private(made_private(state_dir()) / "locks")
    name = hashlib.sha256(str(root).encode()).hexdigest()[:16]
    with FileLock(locks / f"start-{name}.lock", timeout=_LOCK_LIMIT_S):
        yield


def _already_started(root: Path, request_id: str | None) -> RunFolder | None:
    """The run that an earlier call with the same request started."""
    if request_id is None:
        return None
    for run_id in run_ids(root)[:_REMEMBERED_RUNS]:
        folder = RunFolder(root / run_id)
        try:
            if read_json(folder.command).get("request_id") == request_id:
                return folder
        except (OSError, ValueError, AttributeError):
            continue  # a damaged folder is not the one that was just started
    return None


def _start(root: Path, request: RunRequest, request_id: str | None) -> RunFolder:
    folder = new_run_folder(root, request.name)
    try:
        for name, text in request.files.items():
            write_whole(folder.path / name, text)
        if request.engine == "slurm":
            write_json(folder.command, _command_record(request, _slurm_command(folder, request), request_id))
            _submit(folder)
        else:
            _start_here(folder, request, _command_record(request, _own_command(folder, request), request_id))
    except BaseException:
        end_processes(folder.run_id)  # first: whatever lives could write into the folder again
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return folder


def _own_command(folder: RunFolder, request: RunRequest) -> Command:
    """What the supervisor starts on this machine."""
    if request.engine == "hosts" and request.nodes > 1:
        meeting = Meeting(nodes=request.nodes, endpoint=f"{reachable_name()}:{free_port()}", keeps_it=True)
        others = _command_on_a_machine(folder, request, replace(meeting, keeps_it=False))
        write_whole(folder.elsewhere, host_command(others, folder) + "\n")
        return _command_on_a_machine(folder, request, meeting)
    return _command_on_a_machine(folder, request, None)


def _command_on_a_machine(folder: RunFolder, request: RunRequest, meeting: Meeting | None) -> Command:
    return local_command(
        folder,
        num_ranks=request.world_size // request.nodes,
        num_cores=len(os.sched_getaffinity(0)),
        uses_gpus=request.uses_gpus,
        environ=os.environ,
        watches_steps=request.watches_steps,
        rank_argv=request.rank_argv,
        agent_argv=request.agent_argv,
        cwd=request.cwd,
        meeting=meeting,
    )


def _slurm_command(folder: RunFolder, request: RunRequest) -> Command:
    """The batch script is written; the command is its submission."""
    script = batch_script(
        folder,
        nodes=request.nodes,
        ranks_per_node=request.world_size // request.nodes,
        uses_gpus=request.uses_gpus,
        environ=python_path(os.environ, watches_steps=request.watches_steps),
        partition=request.partition,
        rank_argv=request.rank_argv,
        cwd=request.cwd,
    )
    write_whole(folder.batch_script, script)
    return Command(
        argv=slurm.submit_argv(folder.batch_script, folder.run_id),
        cwd=request.cwd or str(folder.path),
        env=MappingProxyType({}),
    )


def _submit(folder: RunFolder) -> None:
    """Queue the job and leave a watch on it, which answers for the run wherever the job's own supervisor cannot."""
    job_id = slurm.submit(folder.batch_script, folder.run_id)
    try:
        _hand_over(folder, "tpdpdash.run.slurm_watch", {}, job_id)
    except BaseException:
        slurm.cancel(job_id, folder.run_id)
        raise


def _command_record(request: RunRequest, command: Command, request_id: str | None) -> dict[str, Any]:
    names = ("name", "engine", "nodes", "layout", "world_size", "steps", "rehearsal", "uses_gpus", "has_probe")
    about = {name: getattr(request, name) for name in names}
    started = {"argv": list(command.argv), "cwd": command.cwd, "env": dict(command.env)}
    return {"v": 1, **started, "created": time.time(), "request_id": request_id, **about}


def _start_here(folder: RunFolder, request: RunRequest, record: Mapping[str, Any]) -> None:
    """Leave a supervisor on this machine. It inherits the claims on devices: they end with it."""
    ranks_here = request.world_size // request.nodes
    devices = rank_devices(detect_devices(os.environ), ranks_here) if request.uses_gpus else ()
    with claimed(devices, folder, shares=request.shares_devices) as claims:
        write_json(folder.command, {**record, "devices": devices})
        _hand_over(folder, "tpdpdash.run.supervisor", {RUN_ID_VARIABLE: folder.run_id}, claims=claims)


def _hand_over(
    folder: RunFolder, module: str, variables: Mapping[str, str], *words: str, claims: tuple[int, ...] = ()
) -> None:
    """Start the supervisor, which forks away and returns once it has written the first status."""
    environment = {**os.environ, **python_path(os.environ), **variables}
    environment.pop(PARENT_VARIABLE, None)
    with folder.supervisor_log.open("ab") as log:
        try:
            ended = subprocess.run(
                [sys.executable, "-m", module, str(folder.path), *words],
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=claims,
                timeout=START_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise OSError(f"the supervisor did not start in {START_LIMIT_S:.0f} s") from late
    if ended.returncode != 0:
        last = tail_text(folder.supervisor_log).strip().splitlines()[-1:]
        raise OSError(f"the supervisor did not start: {''.join(last)}")
