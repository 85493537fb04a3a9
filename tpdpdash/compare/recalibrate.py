"""What a person does with the cluster file: take over a calibration, trust a run, undo both. Writes the file."""

from __future__ import annotations

import time
from dataclasses import replace

from tpdpdash.cluster.local import read_local
from tpdpdash.cluster.measured import MeasuredFile, config_path, read_measured, write_measured
from tpdpdash.compare.calibration import Figures, cluster_file
from tpdpdash.compare.trust import distrusted, trusted
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.job import detect_here
from tpdpdash.run.history import RunView
from tpdpdash.telemetry.measurements import FILE


def take_over(view: RunView) -> tuple[MeasuredFile, Figures | None]:
    """What a finished run says: a calibration's figures replace the file, any other run corrects it. Raises
    InvalidInputError; the file is then as it was."""
    if view.state != "finished":
        values = {"state": view.state}
        raise InvalidInputError([Fault(code="trust_not_finished", field="run", value=view.run_id, values=values)])
    folder, date = view.folder.path, time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    if (folder / FILE).exists():
        here = replace(detect_here(), measured=None, measured_faults=())
        device = read_local(here).cluster.device.name
        file, figures = cluster_file(folder, run_id=view.run_id, device=device, cores=here.host.cores, date=date)
        return _kept(file), figures
    return _kept(trusted(_present(view.run_id), folder, run_id=view.run_id, date=date)), None


def undo(run_id: str) -> MeasuredFile:
    """Take back the corrections of a run. Raises InvalidInputError where it made none."""
    file = _present(run_id)
    if run_id not in {each.run for each in file.corrections}:
        raise InvalidInputError([Fault(code="trust_not_in_file", field="run", value=run_id)])
    return _kept(distrusted(file, run_id))


def _present(run_id: str) -> MeasuredFile:
    file, faults = read_measured(config_path())
    if file is None:
        raise InvalidInputError(faults or [Fault(code="trust_not_measured", field="run", value=run_id)])
    return file


def _kept(file: MeasuredFile) -> MeasuredFile:
    """Write it. Raises InvalidInputError."""
    path = config_path()
    try:
        write_measured(path, file)
    except OSError as wrong:
        values = {"reason": wrong.strerror or str(wrong)}
        raise InvalidInputError(
            [Fault(code="measured_file_unwritable", field="cluster file", value=str(path), values=values)]
        ) from wrong
    return file
