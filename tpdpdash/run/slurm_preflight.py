"""Preflight of a run under Slurm, of a Job or a script: its partition and nodes, asked of sinfo. Submits nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.fields import nearest
from tpdpdash.job import Job
from tpdpdash.run.folder import runs_root
from tpdpdash.run.preflight import Check, failed, fit_checks, layout_check, machine_checks, num_nodes
from tpdpdash.run.slurm import SlurmPartition, SlurmSilentError, list_partitions

_LOCAL_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlay", "vfat", "ramfs"})
"""File systems that no other machine sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAsked:
    """What a run wants of a partition."""

    nodes: int
    """Machines."""
    num_ranks: int
    """Ranks in all, as many on each."""
    uses_gpus: bool
    """Whether a rank takes a GPU; else a core."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each machine."""
        return self.num_ranks // self.nodes


def slurm_preflight(job: Job, *, partition: str | None, prediction: Mapping[str, Any] | None = None) -> list[Check]:
    """Everything that is looked at before a Job is submitted to `partition` (None: Slurm's default)."""
    where = runs_root(os.environ)
    try:
        layout = job.layout()
    except InvalidInputError as wrong:
        return [Check(code="layout", level="failed", faults=wrong.faults), *machine_checks(where)]
    nodes, uses_gpus = num_nodes(job), not job.cluster.device.is_cpu
    fit = fit_checks(job, prediction) if uses_gpus else []
    own = [layout_check(job, layout), *fit]
    try:
        partitions = list_partitions()
    except SlurmSilentError as silent:
        return [*own, Check(code="slurm", level="failed", faults=(_silent_fault(silent),)), *machine_checks(where)]
    asked = NodesAsked(nodes=nodes, num_ranks=layout.world_size, uses_gpus=uses_gpus)
    slurm = Check(code="slurm", level="ok", values={"partitions": len(partitions)})
    return [*own, slurm, *_partition_checks(asked, partitions, partition, [where]), *machine_checks(where)]


def script_nodes(*, partition: str | None, nodes: int, ranks_per_node: int | None, cwd: Path) -> NodesAsked:
    """What a script takes of `partition`: the GPUs of its nodes where they have any, else cores; without a number a
    rank for each GPU of its smallest node.

    Raises InvalidInputError with everything that stands against its submission from `cwd`.
    """
    try:
        partitions = list_partitions()
    except SlurmSilentError as silent:
        raise InvalidInputError([_silent_fault(silent)]) from silent
    found = _asked_partition(partitions, partition)
    gpus = found.gpus_per_node if found else 0
    asked = NodesAsked(nodes=nodes, num_ranks=nodes * (ranks_per_node or max(1, gpus)), uses_gpus=gpus > 0)
    where = runs_root(os.environ)
    against = failed([*_partition_checks(asked, partitions, partition, [where, cwd]), *machine_checks(where)])
    if against:
        raise InvalidInputError(against)
    return asked


def _silent_fault(silent: SlurmSilentError) -> Fault:
    return Fault(code="slurm_silent", field="--engine", value="slurm", values={"reason": str(silent)})


def _asked_partition(partitions: Iterable[SlurmPartition], asked: str | None) -> SlurmPartition | None:
    return next((found for found in partitions if (found.name == asked if asked else found.is_default)), None)


def _partition_checks(
    asked: NodesAsked, partitions: Sequence[SlurmPartition], name: str | None, folders: Iterable[Path]
) -> list[Check]:
    """The partition, its nodes, and the folders that all nodes must see."""
    found = _asked_partition(partitions, name)
    if found is None:
        names = tuple(p.name for p in partitions)
        values = {"choices": names, "nearest": nearest(name or "", names)}
        fault = Fault(code="slurm_no_partition", field="--partition", value=name, values=values)
        return [Check(code="partition", level="failed", faults=(fault,))]
    up = Check(code="partition", level="ok" if found.is_up else "failed", values={"partition": found.name})
    return [up, _nodes_check(asked, found), *(_shared_check(folder, found) for folder in folders)]


def _nodes_check(asked: NodesAsked, partition: SlurmPartition) -> Check:
    """As many nodes as were asked for, each with a device for each of its ranks."""
    has = partition.gpus_per_node if asked.uses_gpus else partition.cpus_per_node
    values = {
        "nodes": asked.nodes,
        "each": asked.ranks_per_node,
        "kind": "GPUs" if asked.uses_gpus else "cores",
        "partition": partition.name,
        "num_nodes": partition.num_nodes,
        "has": has,
    }
    is_even = asked.num_ranks % asked.nodes == 0
    fits = is_even and asked.nodes <= partition.num_nodes and asked.ranks_per_node <= has
    return Check(code="nodes", level="ok" if fits else "failed", values=values)


def _shared_check(root: Path, partition: SlurmPartition) -> Check:
    """Whether other nodes can see the folder of runs, as far as its file system tells: one of a local disk is seen
    by this machine alone. Only a warning: a local disk may be exported."""
    mounts = [(mount.mountpoint, mount.fstype) for mount in psutil.disk_partitions(all=True)]
    above = [(point, kind) for point, kind in mounts if root.is_relative_to(point)]
    kind = max(above, key=lambda mount: len(mount[0]), default=("", ""))[1]
    only_here = set(partition.hosts) <= {socket.gethostname(), socket.gethostname().partition(".")[0], "localhost"}
    is_local = kind in _LOCAL_FILE_SYSTEMS and not only_here
    return Check(code="shared_folder", level="warning" if is_local else "ok", values={"path": str(root), "kind": kind})
