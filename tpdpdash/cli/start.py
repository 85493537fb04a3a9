"""The command that runs: a Job or a script; its run is followed until it ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperCommand

from tpdpdash.cli.shell import DONE, FAILED, UsageError, app, ranks_of, tell
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.fields import nearest
from tpdpdash.report import history
from tpdpdash.text import fault_lines, t

if TYPE_CHECKING:
    from tpdpdash.cluster.detection import Detection
    from tpdpdash.cluster.spec import ClusterSpec
    from tpdpdash.job import Job
    from tpdpdash.run.change import Change
    from tpdpdash.run.folder import RunFolder
    from tpdpdash.run.place import Engine, Place
    from tpdpdash.run.profile import StepAndRanks


class _RunCommand(TyperCommand):
    """`run JOB` and `run -- SCRIPT [ARGS]`: what follows the dashes is the script's, whatever it looks like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the script's words in ctx.obj; None where a Job is run."""
        ours, dashes, script = args, "--" in args, None
        if dashes:
            at = args.index("--")
            ours, script = args[:at], args[at + 1 :]
        ctx.obj = script
        return super().parse_args(ctx, ours)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """JOB or a script."""
        return [*super().collect_usage_pieces(ctx), "|", "-- SCRIPT [ARGS]..."]


@app.command(cls=_RunCommand)
def run(
    context: typer.Context,
    job: Annotated[Path | None, typer.Argument(metavar="JOB", help="A Job file (TOML).")] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="The same layout, shrunken to this machine.")] = False,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Ranks of a script on each machine; default: one a GPU, without one 1.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Machines of a script, with --engine slurm or hosts; default: 1.")
    ] = None,
    share_devices: Annotated[
        bool, typer.Option("--share-devices", help="Also on GPUs that another run or process uses.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return once the run folder stands.")] = False,
    engine: Annotated[
        str, typer.Option(help="local: here; hosts: here, and by hand on other machines; slurm: as a batch job.")
    ] = "local",
    partition: Annotated[str | None, typer.Option(help="Slurm's partition; default: Slurm's own default.")] = None,
    profile_step: Annotated[int | None, typer.Option(help="Take a deep profile of this step.")] = None,
    profile_ranks: Annotated[str, typer.Option(help="On these ranks, with --profile-step: 0,3")] = "0",
) -> None:
    """Run a job with the built-in worker, or any script under torchrun.

    Prints the run's id, follows it; Ctrl-C asks: stop or detach.
    """
    words: list[str] | None = context.obj
    profile = None if profile_step is None else (profile_step, ranks_of(profile_ranks, "--profile-ranks"))
    if words is None and (job is None or nproc is not None or nodes is not None):
        raise UsageError("run takes a JOB, or [--nproc N] [--nodes N] -- SCRIPT [ARGS]")
    place = _place(engine, partition, rehearse=rehearse, share_devices=share_devices)
    if words is not None:
        _refuse_of_a_job({str(job): job is not None, "--rehearse": rehearse})
        folder = _start_script(words, place, nodes or 1, nproc, share_devices=share_devices, profile=profile)
    elif job is not None:
        folder = _start_job(job, place, rehearse=rehearse, share_devices=share_devices, profile=profile)
    print(folder.run_id, flush=True)
    tell(history.elsewhere_lines(folder))
    if not detach:
        raise typer.Exit(follow_run(folder))


def _refuse_of_a_job(given: dict[str, bool]) -> None:
    """A script runs as it is: what only a Job can have is refused."""
    of_a_job = next((word for word, is_given in given.items() if is_given), None)
    if of_a_job:
        raise InvalidInputError([Fault(code="script_or_job", field="run", value=of_a_job)])


def _start_script(
    words: list[str],
    place: Place,
    nodes: int,
    nproc: int | None,
    *,
    share_devices: bool,
    profile: StepAndRanks | None,
) -> RunFolder:
    """A script on GPUs or the CPU: of this machine, of some like it, or of Slurm's nodes."""
    from tpdpdash.job import detect_here
    from tpdpdash.run.script import start_script

    if place.engine == "local" and nodes > 1:
        raise InvalidInputError([Fault(code="conflicting_keys", field="--nodes", values={"other": "--engine local"})])
    if place.engine == "hosts" and nodes == 1:
        raise InvalidInputError([Fault(code="hosts_need_nodes", field="--nodes", value=nodes)])
    here = None if place.engine == "slurm" else detect_here()
    return start_script(
        words,
        here=here,
        ranks_per_node=nproc,
        cwd=Path.cwd(),
        place=place,
        nodes=nodes,
        share_devices=share_devices,
        profile=profile,
    )


def _place(engine: str, partition: str | None, *, rehearse: bool, share_devices: bool) -> Place:
    """Where it is to run. Raises InvalidInputError with every fault."""
    from tpdpdash.run.place import ENGINES, Place
    from tpdpdash.run.request import SLURM_DEALS

    faults = []
    if engine not in ENGINES:
        values = {"choices": ENGINES, "nearest": nearest(engine, ENGINES)}
        faults.append(Fault(code="unknown_choice", field="--engine", value=engine, values=values))
    if partition is not None and engine != "slurm":
        faults.append(Fault(code="conflicting_keys", field="--partition", values={"other": f"--engine {engine}"}))
    if rehearse and engine != "local":
        faults.append(Fault(code="conflicting_keys", field="--rehearse", values={"other": f"--engine {engine}"}))
    if share_devices and engine == "slurm":
        faults.append(SLURM_DEALS)
    if faults:
        raise InvalidInputError(faults)
    return Place(engine=cast("Engine", engine), partition=partition)


def _start_job(
    job: Path, place: Place, *, rehearse: bool, share_devices: bool, profile: StepAndRanks | None
) -> RunFolder:
    """A job with the built-in worker, checked first."""
    from tpdpdash.cost.estimate import estimate_job
    from tpdpdash.job import detect_here, parse_job, read_job_text
    from tpdpdash.run.claims import devices_in_use
    from tpdpdash.run.place import checks
    from tpdpdash.run.preflight import failed
    from tpdpdash.run.start import runnable, start_run

    asked = read_job_text(job)
    wanted = parse_job(asked, job.parent)
    tell(fault_lines(wanted.notices))
    planned, changes = _rehearsed(wanted) if rehearse else (runnable(wanted), ())
    prediction = estimate_job(planned).to_json()
    here: ClusterSpec | None = None
    in_use: tuple[Fault, ...] = ()
    if gpus_here := place.gpus_here(planned):
        detection = detect_here()
        here, in_use = _gpus_here(detection), devices_in_use(detection, gpus_here)
    against = failed(
        checks(planned, place, here=here, prediction=prediction, in_use=in_use, share_devices=share_devices)
    )
    if against:
        raise InvalidInputError(against)
    return start_run(
        planned,
        asked=asked,
        prediction=prediction,
        changes=changes,
        share_devices=share_devices,
        place=place,
        profile=profile,
    )


def _gpus_here(detection: Detection) -> ClusterSpec | None:
    """This machine's GPUs; None where there is none that can be planned with."""
    from tpdpdash.cluster.local import read_local

    try:
        return read_local(detection).cluster
    except InvalidInputError as unknown:
        tell(fault_lines(unknown.faults))
        return None


def _rehearsed(wanted: Job) -> tuple[Job, tuple[Change, ...]]:
    """The job shrunken to this machine; every change is told before anything starts."""
    from tpdpdash.cluster.local import read_local
    from tpdpdash.job import detect_here
    from tpdpdash.run.rehearsal import rehearse

    local = read_local(detect_here())
    tell(fault_lines(local.notices))
    rehearsal = rehearse(wanted, local.cluster)
    tell(history.change_lines(rehearsal.changes))
    return rehearsal.job, rehearsal.changes


def follow_run(folder: RunFolder) -> int:
    """Show progress until the run ends; 0 when it finished."""
    from tpdpdash.compare.account import take_account
    from tpdpdash.report.accounts import shown_lines
    from tpdpdash.run.follow import follow
    from tpdpdash.run.history import read_state

    told = ""
    try:
        for progress in follow(folder):
            line = history.progress_line(progress.view)
            if line != told:
                tell([line])
                told = line
    except KeyboardInterrupt:
        return _interrupted(folder)
    view = read_state(folder)
    tell(shown_lines(view, take_account(view)))
    return DONE if view.state == "finished" else FAILED


def _interrupted(folder: RunFolder) -> int:
    """Ctrl-C: ask what to do with the run; whoever cannot be asked is taken to detach, for nothing is lost by that."""
    tell([t("\n[s]top the run, or [d]etach and leave it running?")])
    try:
        answer = input().strip().lower() if sys.stdin.isatty() else "d"
    except (EOFError, KeyboardInterrupt):
        answer = "d"
    if answer.startswith("s"):
        from tpdpdash.cli.history import stopped

        return stopped(folder, as_json=False)
    tell([t("It goes on: tpdpdash show {run}, tpdpdash stop {run}", run=folder.run_id)])
    return DONE
