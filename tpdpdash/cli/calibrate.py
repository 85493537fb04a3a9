"""The command that measures this machine, corrects what was measured by a run, and undoes both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpdpdash.cli.history import found_run
from tpdpdash.cli.shell import DONE, FAILED, Json, UsageError, answer, app, tell
from tpdpdash.cli.start import follow_run
from tpdpdash.text import t

if TYPE_CHECKING:
    from tpdpdash.cluster.measured import MeasuredFile
    from tpdpdash.compare.calibration import Figures
    from tpdpdash.run.folder import RunFolder


@app.command()
def calibrate(
    run: Annotated[
        str | None, typer.Option("--from", metavar="RUN", help="Trust a finished run: its gap corrects the figures.")
    ] = None,
    undo: Annotated[str | None, typer.Option(metavar="RUN", help="Take back the correction of a run.")] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Go back to the catalogue's figures.")] = False,
    as_json: Json = False,
) -> None:
    """Measure this machine: products, attention, memory, messages. Device "local" uses the figures from then on."""
    if sum((run is not None, undo is not None, forget)) > 1:
        raise UsageError("calibrate takes one of --from RUN, --undo RUN and --forget")
    if forget:
        _forget(as_json=as_json)
    elif undo is not None:
        from tpdpdash.compare import recalibrate

        _say(recalibrate.undo(undo), as_json=as_json)
    elif run is not None:
        _take_over(found_run(run), as_json=as_json)
    else:
        raise typer.Exit(_measure(as_json=as_json))


def _forget(*, as_json: bool) -> None:
    from tpdpdash.cluster.measured import config_path, forget_measured

    path = config_path()
    existed = forget_measured(path)
    removed = t("{path} is removed: figures are the catalogue's again", path=path)
    lines = [removed if existed else t("there is no {path}", path=path)]
    answer(as_json, {"file": str(path), "forgotten": existed}, lines)


def _measure(*, as_json: bool) -> int:
    """Run the microbenchmarks, fit, write the file, tell."""
    from tpdpdash.job import detect_here
    from tpdpdash.run.calibrate import start_calibration

    folder = start_calibration(detect_here())
    tell([folder.run_id])
    if follow_run(folder) != DONE:
        return FAILED
    _take_over(folder, as_json=as_json)
    return DONE


def _take_over(folder: RunFolder, *, as_json: bool) -> None:
    from tpdpdash.compare.recalibrate import take_over
    from tpdpdash.run.history import read_state

    file, figures = take_over(read_state(folder))
    _say(file, figures, as_json=as_json)


def _say(file: MeasuredFile, figures: Figures | None = None, *, as_json: bool) -> None:
    from tpdpdash.report.calibration import calibration_document, calibration_lines

    answer(as_json, calibration_document(file, figures), calibration_lines(file, figures))
