"""Commands on runs that exist: list, show, read their logs, stop, trace, archive and restore, delete."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpdpdash.cli.shell import DONE, FAILED, Json, RunName, answer, app, tell
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.report import history
from tpdpdash.text import t

if TYPE_CHECKING:
    from tpdpdash.run.folder import RunFolder


def stopped(folder: RunFolder, *, as_json: bool) -> int:
    """Stop a run and say what became of it."""
    from tpdpdash.run.stop import stop_run

    result = stop_run(folder, by="cli")
    answer(as_json, history.run_document(result.view), history.run_lines(result.view))
    tell([t("process {pid} could not be killed", pid=pid) for pid in result.could_not_kill])
    return FAILED if result.could_not_kill or not result.view.is_over else DONE


def found_run(name: str) -> RunFolder:
    """The run of that name. Raises InvalidInputError."""
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
    answer(as_json, [history.run_document(view) for view in views], history.runs_lines(views))


@app.command()
def show(name: RunName, as_json: Json = False) -> None:
    """One run: its state, the first cause of a failure, its figures, what bounds it, prediction beside measurement."""
    from tpdpdash.compare.account import take_account
    from tpdpdash.report.accounts import shown_document, shown_lines
    from tpdpdash.run.history import read_state
    from tpdpdash.telemetry.profile_file import kept_profiles

    view = read_state(found_run(name))
    account, profiles = take_account(view), kept_profiles(view.folder.path)
    answer(as_json, shown_document(view, account, profiles), shown_lines(view, account, profiles))


@app.command()
def logs(
    name: RunName,
    rank: Annotated[int | None, typer.Option(min=0, help="Output of this rank; without it the agent's.")] = None,
) -> None:
    """What a run wrote to its logs."""
    from tpdpdash.report.agent_log import folded
    from tpdpdash.run.history import read_state

    folder = found_run(name)
    paths = folder.agent_logs() if rank is None else list(folder.rank_outputs(rank).values())
    if not paths:
        raise InvalidInputError([Fault(code="no_log", field="--rank", value="agent" if rank is None else rank)])
    is_folded = rank is None and read_state(folder).state == "stopped"
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as log:
            sys.stdout.writelines(folded(log) if is_folded else log)


@app.command()
def stop(name: RunName, as_json: Json = False) -> None:
    """Stop a run. Returns once the state is final and every process is gone."""
    raise typer.Exit(stopped(found_run(name), as_json=as_json))


@app.command()
def trace(
    name: RunName,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: RUN.trace.json.gz here.")] = None,
) -> None:
    """One file for Perfetto (ui.perfetto.dev): a lane a rank, the predicted schedule beside the measured one."""
    from tpdpdash.compare.run_trace import write_run_trace

    folder = found_run(name)
    written = write_run_trace(folder, out or Path(f"{folder.run_id}.trace.json.gz"))
    answer(False, None, history.trace_lines(written))


@app.command()
def delete(name: RunName) -> None:
    """Remove a run that is over, with all its records."""
    from tpdpdash.run.archive import delete_run

    folder = found_run(name)
    delete_run(folder)
    print(t("{run} is deleted", run=folder.run_id))


@app.command()
def archive(
    name: RunName,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Default: the user's state directory.")] = None,
) -> None:
    """Pack a run that is over into one file; its folder is removed once the file is proven whole."""
    from tpdpdash.run.archive import archive_run

    answer(False, None, history.archive_lines(archive_run(found_run(name), to)))


@app.command()
def restore(
    archive: Annotated[
        str, typer.Argument(metavar="ARCHIVE", help="A file that archive made, or the id of a run archived by default.")
    ],
) -> None:
    """Put an archived run back among the runs; its file is kept."""
    from tpdpdash.run.restore import find_archive, restore_run

    answer(False, None, history.restored_lines(restore_run(find_archive(archive))))
