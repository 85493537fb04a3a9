"""`tpdpdash …`: every command. stdout carries the answer only; exit 0 done, 1 failed or does not fit, 2 bad input."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.report import facts, history, plans, scores
from tpdpdash.text import fault_lines, t

if TYPE_CHECKING:
    from tpdpdash.cluster.spec import ClusterSpec
    from tpdpdash.job import Job
    from tpdpdash.run.change import Change
    from tpdpdash.run.folder import RunFolder

DONE, FAILED, BAD_INPUT = 0, 1, 2
UsageError: Any = typer.BadParameter.__base__
"""What typer raises for every wrong option and argument; it has no public name for it."""

app = typer.Typer(
    help="Plan, launch and watch parallel training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="The answer as JSON on stdout.")]
JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="A Job file (TOML).")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or a beginning of it that is unambiguous.")]


def main() -> None:
    """Entry of the console script and of `python -m tpdpdash`."""
    try:
        sys.exit(app(standalone_mode=False))
    except InvalidInputError as invalid:
        _tell(fault_lines(invalid.faults))
    except UsageError as wrong:  # typer would draw a box of many lines
        _tell([line for line in [" ".join(wrong.format_message().split())] if line])
    sys.exit(BAD_INPUT)


def _answer(as_json: bool, document: object, lines: list[str]) -> None:
    """Print the answer: JSON as the contract has it, or lines for people."""
    print(json.dumps(document, allow_nan=False) if as_json else "\n".join(lines))


def _tell(lines: list[str]) -> None:
    """Progress and notices go to stderr."""
    for line in lines:
        print(line, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------ facts


@app.command()
def devices(as_json: Json = False) -> None:
    """What is here: the GPUs that NVML reports, or the CPU."""
    from tpdpdash.job import detect_here

    found = detect_here()
    _answer(as_json, facts.detection_document(found), facts.detection_lines(found))


@app.command()
def model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A preset, a path to config.json, or a hub id.")],
    as_json: Json = False,
) -> None:
    """A model's parameters, active parameters and FLOPs per token."""
    from tpdpdash.model.resolve import resolve_model

    try:
        read = resolve_model(name)
    except InvalidInputError as invalid:
        if as_json and any(fault.code in facts.UNSUPPORTED for fault in invalid.faults):
            print(json.dumps(facts.UNSUPPORTED_MODEL))
        raise
    _tell(fault_lines(read.notices))
    _answer(as_json, facts.model_document(read.spec), facts.model_lines(read.spec))


def _option(field: str) -> str:
    """The option that gives a key of the layout: layout.tp is --tp, layout.rank_order --order."""
    name = field.removeprefix("layout.").replace("_", "-")
    return "--order" if name == "rank-order" else f"--{name}"


@app.command()
def groups(
    world_size: Annotated[int, typer.Option(help="Ranks in all.")],
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: Annotated[int | None, typer.Option(help="Tensor parallel inside an expert; default tp.")] = None,
    order: Annotated[str, typer.Option(help="Which degree varies fastest, first to last.")] = "tp-cp-ep-dp-pp",
    as_json: Json = False,
) -> None:
    """Which ranks form which group."""
    from tpdpdash.layout.groups import rank_groups

    try:
        found = rank_groups(world_size=world_size, tp=tp, cp=cp, pp=pp, ep=ep, etp=etp, order=order)
    except InvalidInputError as invalid:  # the fields are named as keys of a Job: here they are options
        raise InvalidInputError(replace(fault, field=_option(fault.field)) for fault in invalid.faults) from invalid
    _answer(as_json, found, facts.group_lines(found, order))


# ---------------------------------------------------------------------------------------- planning


@app.command()
def estimate(job: JobFile, as_json: Json = False) -> None:
    """One layout: memory of each stage, step time, throughput, budget. Exit 1 when it does not fit."""
    from tpdpdash.cost.estimate import estimate_job
    from tpdpdash.job import read_job
    from tpdpdash.layout.advice import advice

    asked = read_job(job).resolved()
    found = estimate_job(asked)
    _tell(fault_lines([*asked.notices, *advice(asked.model, asked.cluster, asked.training, found.layout)]))
    _answer(as_json, found.to_json(), plans.estimate_lines(found))
    raise typer.Exit(DONE if found.fits else FAILED)


@app.command()
def plan(
    job: JobFile,
    top: Annotated[int, typer.Option(min=1, help="How many layouts to list.")] = 20,
    as_json: Json = False,
) -> None:
    """Search every layout key that the job leaves open. Exit 1 when nothing fits."""
    from tpdpdash.job import read_job
    from tpdpdash.search.plan import plan as search

    asked = read_job(job)
    _tell(fault_lines(asked.notices))
    found = search(asked, top=top)
    _answer(as_json, found.to_json(top), plans.plan_lines(found, top))
    raise typer.Exit(DONE if found.feasible else FAILED)


@app.command()
def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Measured runs, one a row.")],
    as_json: Json = False,
) -> None:
    """Predictions against measured runs: errors by source, and the rows that are predicted worst."""
    from tpdpdash.compare.validate import validate as compare

    found = compare(file)
    _answer(as_json, found.to_json(), scores.validation_lines(found))


# -------------------------------------------------------------------------------------------- runs


@app.command()
def run(
    job: JobFile,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="The same layout, shrunken to this machine.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return once the run folder stands.")] = False,
) -> None:
    """Run a job with the built-in worker. Prints the run's id, follows it; Ctrl-C asks: stop or detach."""
    from tpdpdash.cost.estimate import estimate_job
    from tpdpdash.job import parse_job, read_job_text
    from tpdpdash.run.preflight import failed, preflight
    from tpdpdash.run.start import runnable, start_run

    asked = read_job_text(job)
    wanted = parse_job(asked, job.parent)
    _tell(fault_lines(wanted.notices))
    planned, changes = _rehearsed(wanted) if rehearse else (runnable(wanted), ())
    prediction = estimate_job(planned).to_json()
    here = None if planned.cluster.device.is_cpu else _gpus_here()
    against = failed(preflight(planned, here=here, prediction=prediction))
    if against:
        raise InvalidInputError(against)
    folder = start_run(planned, asked=asked, prediction=prediction, changes=changes)
    print(folder.run_id, flush=True)
    if not detach:
        raise typer.Exit(_follow(folder))


def _gpus_here() -> ClusterSpec | None:
    """This machine's GPUs; None where there is none that can be planned with."""
    from tpdpdash.cluster.local import read_local
    from tpdpdash.job import detect_here

    try:
        return read_local(detect_here()).cluster
    except InvalidInputError as unknown:
        _tell(fault_lines(unknown.faults))
        return None


def _rehearsed(wanted: Job) -> tuple[Job, tuple[Change, ...]]:
    """The job shrunken to this machine; every change is told before anything starts."""
    from tpdpdash.cluster.local import read_local
    from tpdpdash.job import detect_here
    from tpdpdash.run.rehearsal import rehearse

    local = read_local(detect_here())
    _tell(fault_lines(local.notices))
    rehearsal = rehearse(wanted, local.cluster)
    _tell(history.change_lines(rehearsal.changes))
    return rehearsal.job, rehearsal.changes


def _follow(folder: RunFolder) -> int:
    """Show progress until the run ends; 0 when it finished."""
    from tpdpdash.run.follow import follow
    from tpdpdash.run.history import read_state

    told = ""
    try:
        for progress in follow(folder):
            line = history.progress_line(progress.view)
            if line != told:
                _tell([line])
                told = line
    except KeyboardInterrupt:
        return _interrupted(folder)
    view = read_state(folder)
    _tell(history.run_lines(view))
    return DONE if view.state == "finished" else FAILED


def _interrupted(folder: RunFolder) -> int:
    """Ctrl-C: ask what to do with the run; whoever cannot be asked is taken to detach, for nothing is lost by that."""
    _tell([t("\n[s]top the run, or [d]etach and leave it running?")])
    try:
        answer = input().strip().lower() if sys.stdin.isatty() else "d"
    except (EOFError, KeyboardInterrupt):
        answer = "d"
    if answer.startswith("s"):
        return _stop(folder, as_json=False)
    _tell([t("It goes on: tpdpdash show {run}, tpdpdash stop {run}", run=folder.run_id)])
    return DONE


def _stop(folder: RunFolder, *, as_json: bool) -> int:
    from tpdpdash.run.stop import stop_run

    result = stop_run(folder, by="cli")
    _answer(as_json, history.run_document(result.view), history.run_lines(result.view))
    _tell([t("process {pid} could not be killed", pid=pid) for pid in result.could_not_kill])
    return FAILED if result.could_not_kill or not result.view.is_over else DONE


def _find(name: str) -> RunFolder:
    from tpdpdash.run.folder import find_run, runs_root

    return find_run(runs_root(os.environ), name)


@app.command()
def runs(
    as_json: Json = False,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 100,
) -> None:
    """The history of runs, newest first."""
    from tpdpdash.run.history import list_runs

    views = list_runs(limit=limit)
    _answer(as_json, [history.run_document(view) for view in views], history.runs_lines(views))


@app.command()
def show(name: RunName, as_json: Json = False) -> None:
    """One run: its state as a reader judges it, and the first cause of a failure."""
    from tpdpdash.run.history import read_state

    view = read_state(_find(name))
    _answer(as_json, history.run_document(view), history.run_lines(view))


@app.command()
def logs(
    name: RunName,
    rank: Annotated[int | None, typer.Option(min=0, help="Output of this rank; without it the agent's.")] = None,
) -> None:
    """What a run wrote to its logs."""
    folder = _find(name)
    paths = [folder.agent_log] if rank is None else list(folder.rank_outputs(rank).values())
    paths = [path for path in paths if path.is_file()]
    if not paths:
        raise InvalidInputError([Fault(code="no_log", field="--rank", value="agent" if rank is None else rank)])
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as log:
            shutil.copyfileobj(log, sys.stdout)


@app.command()
def stop(name: RunName, as_json: Json = False) -> None:
    """Stop a run. Returns once the state is final and every process is gone."""
    raise typer.Exit(_stop(_find(name), as_json=as_json))


@app.command()
def serve(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8501,
    address: Annotated[
        str, typer.Option(help="Who may connect; this machine only unless told otherwise.")
    ] = "127.0.0.1",
) -> None:
    """The dashboard; prints its address with the start token."""
    from tpdpdash.serve import serve as serve_dashboard

    raise typer.Exit(serve_dashboard(port=port, address=address))
