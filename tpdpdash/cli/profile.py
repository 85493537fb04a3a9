"""The command that asks a run for a deep profile of one step, and shows it once it is written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tpdpdash.cli.history import found_run
from tpdpdash.cli.shell import DONE, FAILED, Json, RunName, answer, app, ranks_of, tell
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.report import profiles as words
from tpdpdash.text import t

if TYPE_CHECKING:
    from tpdpdash.run.folder import RunFolder
    from tpdpdash.run.profile import RankProfile
    from tpdpdash.telemetry.profile_request import ProfileRequest
    from tpdpdash.telemetry.reader import RunReader

POLL_S = 0.5


@app.command()
def profile(
    name: RunName,
    ranks: Annotated[str, typer.Option(help="Of these ranks: 0,3")] = "0",
    step: Annotated[str, typer.Option(metavar="N|next", help="This step, or the next that all can hear of.")] = "next",
    as_json: Json = False,
    wait: Annotated[bool, typer.Option(help="Until the profiles are written; else return once it is asked.")] = True,
) -> None:
    """A deep profile (torch.profiler) of one step of a run that goes on: its operators, by phase and kind of work.

    Prints it once it is written; `trace` puts it beside the other ranks and the predicted schedule.
    """
    from tpdpdash.run.history import read_state
    from tpdpdash.run.profile import ask_for_profile, profile_progress
    from tpdpdash.telemetry.reader import RunReader

    if step != "next" and not (step.isascii() and step.isdigit() and len(step) < 12):
        raise InvalidInputError([Fault(code="not_whole_number", field="--step", value=step)])
    folder = found_run(name)
    view = read_state(folder)
    reader = RunReader(folder.path, view.world_size)
    reader.refresh()
    telemetry = reader.snapshot()
    wanted = None if step == "next" else int(step)
    before = [each for each in profile_progress(view, telemetry) if each.progress == "asked"]
    asked = ask_for_profile(view, telemetry, ranks=ranks_of(ranks, "--ranks"), step=wanted, by="cli")
    tell([t("asked: step {step} of {ranks}", step=asked.step, ranks=", ".join(map(str, asked.ranks)))])
    tell([t("in place of a request that had not begun: rank {rank}, step {step}", rank=each.rank, step=each.step)
          for each in before])  # fmt: skip
    if wait:
        try:
            found = _followed(folder, reader, asked)
        except KeyboardInterrupt:
            tell([t("The request stands; once it is written: tpdpdash show {run}", run=folder.run_id)])
            raise typer.Exit(DONE) from None
        raise typer.Exit(_answered(found, as_json=as_json))


def _followed(folder: RunFolder, reader: RunReader, asked: ProfileRequest) -> tuple[RankProfile, ...]:
    """Until every rank has answered, somebody else asked for another step, or the run is over."""
    from tpdpdash.run.history import read_state
    from tpdpdash.run.profile import profile_progress

    told: list[str] = []
    while True:
        view = read_state(folder)
        reader.refresh()
        found = profile_progress(view, reader.snapshot(), asked)
        lines = [words.progress_word(each) for each in found]
        tell([line for line in lines if line not in told])
        told = lines
        if not any(each.progress in ("asked", "running") for each in found):
            return found
        time.sleep(POLL_S)


def _answered(found: tuple[RankProfile, ...], *, as_json: bool) -> int:
    """Show what was written; 1 where a rank has none."""
    from tpdpdash.run.profile import open_profile
    from tpdpdash.telemetry.profile_table import profile_table

    read = [open_profile(each.path) for each in found if each.path is not None]
    tables = [(profile, profile_table(profile)) for profile in read]
    lines = [line for each in tables for line in (*words.profile_lines(*each), "")]
    answer(as_json, [words.profile_document(*each) for each in tables], lines[:-1])
    return DONE if len(read) == len(found) else FAILED
