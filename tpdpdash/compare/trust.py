"""A finished run as a calibration: its measured times against what is estimated of it now correct the cluster file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cluster.measured import FACTOR_LIMITS, Correction, MeasuredFile
from tpdpdash.compare.attribution import MEASURED
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.faults import Fault, InvalidInputError, out_of_range
from tpdpdash.job import Job, read_job
from tpdpdash.telemetry.analysis import split_waiting
from tpdpdash.telemetry.reader import RunReader
from tpdpdash.telemetry.record import PHASES
from tpdpdash.telemetry.snapshot import Floats, Telemetry

if TYPE_CHECKING:
    from pathlib import Path

SENT = ("tp", "cp", "ep", "dp")
"""Phases whose messages wait for nothing but the other ranks; a pipeline's hold the schedule's idle time too."""
WARM_UP = 3
"""Steps that are left out: caches and allocators are cold."""
LEAST_STEPS = 5
LEAST_SHARE = 0.02
"""Messages that are estimated to take less of the step say nothing about the link."""


def correction_of(job: Job, telemetry: Telemetry, *, run_id: str, date: str) -> Correction:
    """Measured over estimated seconds of computation and of messages. Raises InvalidInputError.

    Computation: the median step of the rank that computes most, which is the critical stage's. Messages: transfers
    alone, in the median over ranks; waiting for a slower rank is no fault of the link.
    """
    if not np.isfinite(telemetry.step_s[:, WARM_UP:]).sum(axis=1).min(initial=LEAST_STEPS) >= LEAST_STEPS:
        values = {"needed": WARM_UP + LEAST_STEPS}
        raise InvalidInputError([Fault(code="trust_too_few_steps", field="run", value=run_id, values=values)])
    parts = estimate_job(job).time
    transferring = split_waiting(telemetry).occupied_s
    computed = _spent(telemetry.phase_s, MEASURED["compute"]).max()
    sent = float(np.median(_spent(transferring, SENT)))
    estimated = parts.tp_s + parts.cp_s + parts.ep_s + parts.dp_s
    speaks = estimated > LEAST_SHARE * parts.step_s
    return Correction(
        run=run_id,
        date=date,
        compute=_factor("compute", float(computed), parts.compute_s + parts.recompute_s),
        messages=_factor("messages", sent, estimated) if speaks else 1.0,
    )


def _spent(phase_s: Floats, names: tuple[str, ...]) -> Floats:
    """Median seconds of a step in these phases, by rank."""
    chosen = [PHASES.index(name) for name in names]
    return np.asarray(np.nanmedian(phase_s[:, WARM_UP:, chosen].sum(axis=2), axis=1))


def _factor(name: str, measured_s: float, estimated_s: float) -> float:
    """Measured over estimated, three digits. Raises InvalidInputError where it is beyond a correction."""
    factor = float(f"{measured_s / estimated_s:.3g}")
    low, high = FACTOR_LIMITS[name]
    if not low <= factor <= high:
        raise InvalidInputError([out_of_range(f"run.{name}", factor, low, high)])
    return factor


def trusted(file: MeasuredFile, folder: Path, *, run_id: str, date: str) -> MeasuredFile:
    """The cluster file with the correction of a finished run of a Job. Raises InvalidInputError.

    The estimate is made now, by the file as it is: to trust a run twice changes nothing.
    """
    path = folder / "job.toml"
    if not path.is_file():
        raise InvalidInputError([Fault(code="trust_no_job", field="run", value=run_id)])
    job = read_job(path)
    if job.cluster.measured is None:
        raise InvalidInputError([Fault(code="trust_not_measured", field="run", value=run_id)])
    reader = RunReader(folder, job.layout().world_size)
    while reader.refresh():
        pass
    correction = correction_of(job, reader.snapshot().undisturbed(), run_id=run_id, date=date)
    return replace(file, corrections=(*file.corrections, correction))


def distrusted(file: MeasuredFile, run_id: str) -> MeasuredFile:
    """The cluster file without the corrections of one run."""
    return replace(file, corrections=tuple(each for each in file.corrections if each.run != run_id))
