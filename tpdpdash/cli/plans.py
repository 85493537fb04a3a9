"""Commands that estimate: one layout, the search, the comparison with measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpdpdash.cli.shell import DONE, FAILED, JobFile, Json, answer, app, tell
from tpdpdash.text import fault_lines


@app.command()
def estimate(job: JobFile, as_json: Json = False) -> None:
    """One layout: memory of each stage, step time, throughput, budget. Exit 1 when it does not fit."""
    from tpdpdash.cost.estimate import estimate_job
    from tpdpdash.job import read_job
    from tpdpdash.layout.advice import advice
    from tpdpdash.report.plans import estimate_lines

    asked = read_job(job).resolved()
    found = estimate_job(asked)
    tell(fault_lines([*asked.notices, *advice(asked.model, asked.cluster, asked.training, found.layout)]))
    answer(as_json, found.to_json(), estimate_lines(found))
    raise typer.Exit(DONE if found.fits else FAILED)


@app.command()
def plan(
    job: JobFile,
    top: Annotated[int, typer.Option(min=1, help="How many layouts to list.")] = 20,
    as_json: Json = False,
) -> None:
    """Search every layout key that the job leaves open. Exit 1 when nothing fits."""
    from tpdpdash.job import read_job
    from tpdpdash.layout.unused import unused_settings
    from tpdpdash.report.plans import plan_lines
    from tpdpdash.search.plan import plan as search

    asked = read_job(job)
    tell(fault_lines([*asked.notices, *unused_settings(asked.model, asked.training)]))
    found = search(asked, top=top)
    answer(as_json, found.to_json(top), plan_lines(found, top))
    raise typer.Exit(DONE if found.feasible else FAILED)


@app.command()
def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Measured runs, one a row.")],
    as_json: Json = False,
) -> None:
    """Predictions against measured runs: errors by source, and the rows that are predicted worst."""
    from tpdpdash.compare.validate import validate as compare
    from tpdpdash.report.scores import validation_lines

    found = compare(file)
    answer(as_json, found.to_json(), validation_lines(found))
