"""Seconds of whole steps of the built-in worker: what a calibration holds its own figures against."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from tpdpdash.checked_runs import CheckedRun, checked_runs
from tpdpdash.job import Job
from tpdpdash.layout.layout import Layout
from tpdpdash.telemetry.measurements import Measurement
from tpdpdash.telemetry.probe import Probe
from tpdpdash.worker.build import Place
from tpdpdash.worker.groups import GroupCache, make_groups, stand_by
from tpdpdash.worker.session import import_parallelism, open_tokens
from tpdpdash.worker.train import Trainer

WARM_UP, COUNTED = 2, 5
"""Steps of a run that are not counted, and that are."""


def measure_steps(device: torch.device, *, tiny: bool) -> list[Measurement]:
    """The middle step of each checked run. All ranks call it together; those that a layout does not need wait."""
    cache: GroupCache = {}
    return [
        Measurement(what="step", sizes=run.sizes, busy=run.num_ranks, seconds=_step_s(run, device, cache))
        for run in checked_runs(tiny=tiny)
    ]


def _step_s(run: CheckedRun, device: torch.device, cache: GroupCache) -> float:
    """Median seconds of a step on this rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    job = run.job(cores=world_size)
    layout = job.layout()
    if rank >= layout.world_size:
        stand_by(layout, cache)
        dist.barrier()
        return 0.0
    import_parallelism(layout)
    trainer, spent = trainer_of(job, layout, device, Probe(None, rank=rank, world_size=world_size), cache), []
    for number in range(1, WARM_UP + COUNTED + 1):
        start = time.perf_counter()
        trainer.step(number)
        spent.append(time.perf_counter() - start)
    dist.barrier()
    return statistics.median(spent[WARM_UP:])


def trainer_of(job: Job, layout: Layout, device: torch.device, probe: Probe, cache: GroupCache) -> Trainer:
    """This rank's part of the model, for synthetic tokens. All ranks of the layout call it together."""
    place = Place(groups=make_groups(layout, dist.get_rank(), cache), device=device, probe=probe)
    return Trainer(job.model, job.training, layout, place, open_tokens(job.model, job.training, None))
