"""A calibration's own short runs beside what its figures say of them: what the error bar of a machine is made of."""

from __future__ import annotations

from tpdpdash.checked_runs import CheckedRun
from tpdpdash.cluster.measured import Check, MeasuredFile
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.telemetry.measurements import Measurements


def checks_of(file: MeasuredFile, measurements: Measurements) -> tuple[Check, ...]:
    """Each short run that was measured, estimated by the figures of the file."""
    return tuple(
        _check(CheckedRun.of(each.sizes), each.seconds, file) for each in measurements.taken if each.what == "step"
    )


def _check(run: CheckedRun, measured_s: float, file: MeasuredFile) -> Check:
    predicted_s = estimate_job(run.job(cores=file.cores, measured=file)).step_s
    return Check(
        layout=run.layout_name,
        hidden_size=run.hidden_size,
        ranks=run.num_ranks,
        predicted_s=float(f"{predicted_s:.4g}"),
        measured_s=float(f"{measured_s:.4g}"),
    )
