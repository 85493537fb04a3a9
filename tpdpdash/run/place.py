"""Place: where a run takes place, and what is looked at before a Job starts there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.faults import Fault
from tpdpdash.job import Job
from tpdpdash.run.preflight import Check, num_nodes, preflight
from tpdpdash.run.slurm_preflight import slurm_preflight

Engine = Literal["local", "hosts", "slurm"]
"""This machine · this machine, and others on which a person starts torchrun by hand · Slurm's nodes."""
ENGINES: tuple[str, ...] = get_args(Engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run takes place."""

    engine: Engine = "local"
    """Who starts torchrun on the machines."""
    partition: str | None = None
    """Slurm's partition; None: its default."""

    def nodes(self, job: Job) -> int:
        """Machines that take part."""
        return 1 if self.engine == "local" else num_nodes(job)

    def gpus_here(self, job: Job) -> int:
        """GPUs of this machine that it takes: one a rank; none under Slurm, which deals out its own."""
        takes_none = job.cluster.device.is_cpu or self.engine == "slurm"
        return 0 if takes_none else job.layout().world_size // self.nodes(job)


HERE = Place()
"""This machine alone."""


def checks(
    job: Job,
    place: Place,
    *,
    here: ClusterSpec | None = None,
    prediction: Mapping[str, Any] | None = None,
    in_use: Sequence[Fault] = (),
    share_devices: bool = False,
) -> list[Check]:
    """Everything that is looked at before a Job starts there. What is said of this machine's devices (as for
    `preflight`) is nothing to Slurm, which deals out its own."""
    if place.engine == "slurm":
        return slurm_preflight(job, partition=place.partition, prediction=prediction)
    return preflight(
        job,
        here=here,
        prediction=prediction,
        in_use=in_use,
        share_devices=share_devices,
        nodes=place.nodes(job),
    )
