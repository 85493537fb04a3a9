"""Start a Job on this machine. Returns once its run folder stands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from tpdpdash.job import Job, as_builtin, write_job
from tpdpdash.run.change import Change
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.place import HERE, Place
from tpdpdash.run.profile import StepAndRanks, file_at_start
from tpdpdash.run.request import RunRequest, start_request


def runnable(job: Job) -> Job:
    """The job as the built-in worker runs it, every key fixed: its framework's habits are the worker's own.

    Raises InvalidInputError with every fault, those of the worker's limits included.
    """
    return as_builtin(job).resolved()


def start_run(
    job: Job,
    *,
    asked: str | None = None,
    prediction: Mapping[str, Any] | None = None,
    changes: Sequence[Change] = (),
    request_id: str | None = None,
    share_devices: bool = False,
    place: Place = HERE,
    profile: StepAndRanks | None = None,
) -> RunFolder:
    """Start a Job with the built-in worker.

    `asked`: text of the Job as it was asked; `prediction`: estimate of `job` as it runs; `changes`: what a rehearsal
    changed; `share_devices`: take devices that another run holds; `profile`: take a deep profile of this step. Calls
    with one `request_id` start one run. Raises InvalidInputError: nothing is left behind then.
    """
    run = runnable(job)
    layout = run.layout()
    files = {"job.toml": write_job(run), "asked.toml": asked if asked is not None else write_job(job)}
    if prediction is not None:
        files["prediction.json"] = json.dumps(prediction, indent=1, allow_nan=False) + "\n"
    if changes:
        files["changes.json"] = json.dumps([asdict(change) for change in changes], indent=1, default=str) + "\n"
    files |= file_at_start(profile, world_size=layout.world_size, steps=run.training.steps)
    request = RunRequest(
        name=run.name,
        layout=layout.layout_id,
        world_size=layout.world_size,
        engine=place.engine,
        nodes=place.nodes(run),
        partition=place.partition,
        steps=run.training.steps,
        rehearsal=bool(changes),
        uses_gpus=not run.cluster.device.is_cpu,
        shares_devices=share_devices,
        files=MappingProxyType(files),
    )
    return start_request(request, request_id=request_id)
