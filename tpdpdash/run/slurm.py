"""Slurm's commands: what is asked of them, and what they answer. Lists of words, never a shell string.

States come from squeue, which keeps an ended job for some minutes (MinJobAge); no accounting database is needed.
Ids come again (MaxJobId, a controller that was set up anew): a job is a run's only where its name is the run's id.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpdpdash.run.status import SchedulerJob

ASK_LIMIT_S = 20.0
ACTIVE_STATES = frozenset(
    {
        "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING",
        "STAGE_OUT", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT",
    }
)  # fmt: skip
"""States in which a job waits, runs, or is being cleared away (squeue(1))."""
GONE = "GONE"
"""Our word for a job that Slurm no longer knows."""
_ENDINGS = {"TimeLimit": "TIMEOUT", "Preempted": "PREEMPTED"}
"""What Slurm ends a job for by itself: the reason, which stands before the state does, and the state."""
_FIELDS = "%T|%P|%r|%j"


class SlurmSilentError(Exception):
    """A command of Slurm is not here, failed, or did not answer; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPartition:
    """One partition, as sinfo lists it."""

    name: str
    """Its name."""
    is_default: bool
    """Whether jobs that name no partition go there."""
    is_up: bool
    """Whether it starts jobs."""
    num_nodes: int
    """Nodes that are not down or drained."""
    cpus_per_node: int
    """Cores that Slurm can give on its smallest node."""
    gpus_per_node: int
    """GPUs that Slurm can give on its smallest node."""
    hosts: tuple[str, ...]
    """Its nodes by Slurm's names."""


def submit_argv(script: Path, name: str) -> tuple[str, ...]:
    """What queues a batch script. The name is said here too: SBATCH_JOB_NAME would overrule the script's."""
    return ("sbatch", "--parsable", f"--job-name={name}", str(script))


def submit(script: Path, name: str) -> str:
    """Queue a batch script; the job's id. Raises SlurmSilentError with Slurm's own reason."""
    return _ask(submit_argv(script, name)).partition(";")[0]


def look_up(job_id: str, name: str) -> SchedulerJob:
    """The job as Slurm knows it now; its state is GONE where it does not, or knows another job by that id. Raises
    SlurmSilentError."""
    try:
        line = _ask(["squeue", "--noheader", "--states=all", f"--jobs={job_id}", f"--format={_FIELDS}"])
    except SlurmSilentError as silent:
        if "Invalid job id" in str(silent):
            return SchedulerJob(id=job_id, state=GONE)
        raise
    if not line:
        return SchedulerJob(id=job_id, state=GONE)
    fields = line.splitlines()[0].split("|", 3)
    if len(fields) != len(_FIELDS.split("|")):  # else a run would be called damaged, and its watch would die of it
        raise SlurmSilentError(f"squeue: {line.splitlines()[0][:200]}")
    state, partition, reason, found = fields
    if found != name:
        return SchedulerJob(id=job_id, state=GONE)
    why = "" if reason == "None" else reason
    position = _position(job_id, partition) if state == "PENDING" else None
    return SchedulerJob(id=job_id, state=state, partition=partition, reason=why, position=position)


def ended_by_slurm(job: SchedulerJob) -> str | None:
    """Why Slurm itself ends the job: TIMEOUT, PREEMPTED; None where a person does, or nobody."""
    return job.state if job.state in _ENDINGS.values() else _ENDINGS.get(job.reason)


def _position(job_id: str, partition: str) -> int | None:
    """Its place in the queue of its partition, by priority, then by age."""
    words = ["squeue", "--noheader", "--states=PENDING", f"--partition={partition}", "--sort=-p,i", "--format=%i"]
    waiting = _ask(words).split()
    return waiting.index(job_id) + 1 if job_id in waiting else None


def cancel(job_id: str, name: str) -> None:
    """Cancel the job, waiting or running. Raises SlurmSilentError."""
    _ask(["scancel", f"--name={name}", job_id])


def tell_to_stop(job_id: str, name: str) -> None:
    """SIGTERM for the batch script, which is the run's supervisor. Raises SlurmSilentError."""
    _ask(["scancel", "--batch", "--signal=TERM", f"--name={name}", job_id])


def signal_step(job_id: str, number: signal.Signals) -> None:
    """A signal for every agent that the batch script's srun started, on all nodes. Raises SlurmSilentError."""
    _ask(["scancel", f"--signal={number.name.removeprefix('SIG')}", f"{job_id}.0"])


def job_here(environ: Mapping[str, str]) -> SchedulerJob | None:
    """The job that this process runs in."""
    job_id = environ.get("SLURM_JOB_ID")
    if job_id is None:
        return None
    return SchedulerJob(id=job_id, state="RUNNING", partition=environ.get("SLURM_JOB_PARTITION", ""))


def list_partitions() -> list[SlurmPartition]:
    """What jobs can be sent to. Raises SlurmSilentError."""
    return parse_partitions(_ask(["sinfo", "--noheader", "--Node", "--format=%P|%a|%N|%T|%c|%G"]))


def parse_partitions(answer: str) -> list[SlurmPartition]:
    """sinfo's lines, one for each node of each partition: PARTITION|up|NODE|state|CPUs|GRES."""
    rows = [line.split("|", 5) for line in answer.splitlines() if line.count("|") >= 5]
    found = []
    for name in dict.fromkeys(row[0] for row in rows):
        nodes = [row for row in rows if row[0] == name]
        usable = [row for row in nodes if not re.match(r"down|drain|fail|maint|unknown|future", row[3])]
        found.append(
            SlurmPartition(
                name=name.rstrip("*"),
                is_default=name.endswith("*"),
                is_up=nodes[0][1] == "up",
                num_nodes=len(usable),
                cpus_per_node=min((int(row[4].rstrip("+")) for row in usable), default=0),
                gpus_per_node=min((_gpus(row[5]) for row in usable), default=0),
                hosts=tuple(row[2] for row in nodes),
            )
        )
    return found


def _gpus(gres: str) -> int:
    """gpu:h100:8(S:0-1),nvme:1 → 8."""
    return sum(int(count) for count in re.findall(r"\bgpu(?::[^:,(]+)?:(\d+)", gres))


def _ask(words: Sequence[str]) -> str:
    try:
        ended = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_LIMIT_S,
            check=False,
        )
    except FileNotFoundError as missing:
        raise SlurmSilentError(f"{words[0]} is not installed here") from missing
    except (OSError, subprocess.TimeoutExpired) as wrong:
        raise SlurmSilentError(f"{words[0]}: {wrong}") from wrong
    if ended.returncode != 0:
        said = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
        raise SlurmSilentError(said[-1].removeprefix(f"{words[0]}: error: ")[:500])
    return ended.stdout.strip()
