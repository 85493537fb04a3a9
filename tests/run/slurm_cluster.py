"""A real Slurm on this machine for the tests: one controller, two nodes, all on the loopback (Debian's packages).

Needs root, and `slurmctld slurmd slurm-client munge` as `.ci/run` installs them; nothing is skipped where they lack.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PARTITION = "main"
NODES = ("n0", "n1")
START_LIMIT_S = 60.0
END_LIMIT_S = 20.0
_MUNGE_FILES = ("key-file", "log-file", "pid-file", "seed-file", "socket")

_CONFIG = """\
ClusterName=test
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmctldPort={controller_port}
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n[0-1] NodeHostname=localhost Port=[{node_ports}] CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class SlurmCluster:
    """A running cluster; `config` is what SLURM_CONF names."""

    folder: Path
    daemons: list[str] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "slurm.conf"

    def ask(self, *words: str) -> str:
        """What a command of Slurm says."""
        environment = {**os.environ, "SLURM_CONF": str(self.config)}
        ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30, check=True)
        return ended.stdout.strip()

    def pid_file(self, daemon: str) -> Path:
        return self.folder / f"{daemon}.pid"


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Start a munge, a controller and two nodes; end them by their pid files."""
    for name in ("state", "log", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    munge = Path(tempfile.mkdtemp(prefix="munge-", dir="/tmp"))
    first = _free_ports(3)
    cluster = SlurmCluster(folder)
    cluster.config.write_text(
        _CONFIG.format(
            folder=folder,
            munge=munge,
            partition=PARTITION,
            controller_port=first,
            node_ports=f"{first + 1}-{first + 2}",
        )
    )
    try:
        _start_munge(munge)
        _start(cluster, "slurmctld")
        for node in NODES:
            _start(cluster, f"slurmd-{node}", "-N", node)
        _until_idle(cluster)
        yield cluster
    finally:
        _end([*(cluster.pid_file(daemon) for daemon in reversed(cluster.daemons)), munge / "pid"])
        shutil.rmtree(munge)


def _free_ports(count: int) -> int:
    """The first of some neighbouring ports that nobody listens on."""
    for first in range(17_600, 20_000, count):
        with socket.socket() as controller, socket.socket() as node, socket.socket() as other:
            try:
                for offset, probe in enumerate((controller, node, other)):
                    probe.bind(("", first + offset))
            except OSError:
                continue
            return first
    raise OSError("no free ports for a Slurm cluster")


def _start_munge(folder: Path) -> None:
    """A munge of this cluster's own, as its user; it refuses folders that its user could not reach."""
    shutil.chown(folder, "munge", "munge")
    folder.chmod(0o755)
    files = {name: folder / name for name in ("key", "log", "pid", "seed", "socket")}
    options = " ".join(f"--{name}={files[name.removesuffix('-file')]}" for name in _MUNGE_FILES)
    script = f"mungekey --create --keyfile={files['key']} && munged {options}"
    subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", script], check=True, timeout=START_LIMIT_S)


def _start(cluster: SlurmCluster, daemon: str, *options: str) -> None:
    """Start one daemon, which leaves the foreground by itself."""
    environment = {**os.environ, "SLURM_CONF": str(cluster.config)}
    cluster.daemons.append(daemon)
    with (cluster.folder / "log" / f"{daemon}.out").open("wb") as log:
        subprocess.run(
            [daemon.partition("-")[0], *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=START_LIMIT_S,
            check=True,
        )


def _until_idle(cluster: SlurmCluster) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while cluster.ask("sinfo", "--noheader", "--Node", "--format=%t").split() != ["idle"] * len(NODES):
        if time.monotonic() > limit:
            logs = "\n".join(path.read_text() for path in sorted((cluster.folder / "log").iterdir()))
            raise TimeoutError(f"the Slurm nodes do not come up:\n{logs[-4000:]}")
        time.sleep(0.2)


def _end(pid_files: Sequence[Path]) -> None:
    """End the processes of pid files, all at once, and wait for them."""
    ending = [descriptor for path in pid_files if (descriptor := _told_to_end(path)) is not None]
    poll = select.poll()
    for descriptor in ending:
        poll.register(descriptor, select.POLLIN)  # a pidfd is readable once its process is gone
    limit = time.monotonic() + END_LIMIT_S
    while ending and time.monotonic() < limit:
        for descriptor, _ in poll.poll(100):
            poll.unregister(descriptor)
            os.close(descriptor)
            ending.remove(descriptor)
    for descriptor in ending:
        os.close(descriptor)


def _told_to_end(pid_file: Path) -> int | None:
    """A descriptor of the process; None where it is gone already."""
    try:
        descriptor = os.pidfd_open(int(pid_file.read_text()))
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    except ProcessLookupError:
        os.close(descriptor)
        return None
    return descriptor
