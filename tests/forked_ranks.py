"""Ranks of torch jobs without an import of torch each: one process imports it and forks every rank of every job.

In torchrun's place where only what the ranks do is tested: its environment, its folders of output, its error files.

    python forked_ranks.py < JOBS.json > EXIT_CODES.json
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tpdpdash.run.shim import PR_SET_PDEATHSIG

PRELOADED = ("torch", "torch.distributed.elastic.multiprocessing.errors", "tpdpdash.worker.session")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """One job: the same program on each rank."""

    program: str
    """Path of a script, or a module's name."""
    arguments: tuple[str, ...]
    """Its arguments."""
    world_size: int
    """Ranks."""
    logs: str
    """Folder for NAME/attempt_0/RANK/{stdout.log,stderr.log,error.json}, as torchrun lays it out."""

    def folder(self, rank: int) -> Path:
        """Where a rank's output goes."""
        return Path(self.logs, "forked", "attempt_0", str(rank))

    def stderr(self) -> str:
        """The last that the ranks said."""
        return "".join(self.folder(rank).joinpath("stderr.log").read_text()[-3000:] for rank in range(self.world_size))


def run_jobs(jobs: Sequence[RankJob], timeout_s: float) -> list[list[int]]:
    """Run the jobs one after the other; the exit codes of each one's ranks."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__))],
        input=json.dumps([asdict(job) for job in jobs]),
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    codes: list[list[int]] = json.loads(done.stdout)
    return codes


def _run(job: RankJob) -> list[int]:
    """Fork the ranks and wait for them; when one has failed the others are ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pids = [_fork(job, rank, port) for rank in range(job.world_size)]
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        pid, status = os.wait()
        codes[pid] = os.waitstatus_to_exitcode(status)
        if codes[pid] != 0:
            for other in set(pids) - codes.keys():
                os.kill(other, signal.SIGTERM)
    return [codes[pid] for pid in pids]


def _fork(job: RankJob, rank: int, port: int) -> int:
    """The pid of a rank; the rank itself never returns."""
    parent, pid = os.getpid(), os.fork()
    if pid != 0:
        return pid
    try:
        _die_with(parent)
        _become(job, rank, port)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 said as Python says it of a program's own end
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _die_with(parent: int) -> None:
    """Ranks end with whoever forked them, as under the product's shim."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def _become(job: RankJob, rank: int, port: int) -> None:
    folder = job.folder(rank)
    folder.mkdir(parents=True)
    for descriptor, name in ((1, "stdout.log"), (2, "stderr.log")):
        log = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, descriptor)
        os.close(log)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_WORLD_SIZE": str(job.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHELASTIC_ERROR_FILE": str(folder / "error.json"),
    }
    sys.argv[1:] = job.arguments
    if job.program.endswith(".py"):
        sys.path.insert(0, str(Path(job.program).parent))
        runpy.run_path(job.program, run_name="__main__")
    else:
        runpy.run_module(job.program, run_name="__main__", alter_sys=True)


def main() -> None:
    """Import once, then job after job."""
    jobs = [RankJob(**{**job, "arguments": tuple(job["arguments"])}) for job in json.load(sys.stdin)]
    for module in PRELOADED:
        importlib.import_module(module)
    print(json.dumps([_run(job) for job in jobs]))


if __name__ == "__main__":
    main()
