"""Answers about runs: what a rehearsal changes, one run, the history, progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpdpdash import units
from tpdpdash.report.lines import table
from tpdpdash.run.status import PHASES
from tpdpdash.text import fault_lines, t

if TYPE_CHECKING:
    from tpdpdash.compare.run_trace import WrittenTrace
    from tpdpdash.run.archive import Archive
    from tpdpdash.run.change import Change
    from tpdpdash.run.folder import RunFolder
    from tpdpdash.run.history import RunView
    from tpdpdash.run.restore import Restored
    from tpdpdash.run.status import RunStatus


def change_lines(changes: Sequence[Change]) -> list[str]:
    """What a rehearsal changes."""
    if not changes:
        return []
    rows = [[change.key, str(change.asked), str(change.rehearsed)] for change in changes]
    return table([[t("rehearsed otherwise"), t("asked"), t("rehearsed")], *rows])


def run_document(view: RunView) -> dict[str, Any]:
    """`runs`, `show` and `stop --json`: status.json's fields, with the state as the reader judges it."""
    status = view.status.to_json() if view.status else {"v": 1}
    damage = {"damage": view.damage} if view.damage else {}
    return {**status, "run": view.run_id, "state": view.state, **damage}


def run_lines(view: RunView) -> list[str]:
    """One run, in words."""
    from tpdpdash.run.failure import failure_fault

    status = view.status
    if status is None:
        return [f"{view.run_id}: {view.state}", *([view.damage] if view.damage else [])]
    about = [status.name, status.layout, t("{n} ranks", n=status.world_size), _step_of(status)]
    lines = [f"{view.run_id}: {view.state}", ", ".join(word for word in about if word)]
    lines += [waits] if (waits := _queue_words(status)) else []
    if status.started is not None and status.ended is not None:
        lines.append(t("took {time}", time=units.format_time(status.ended - status.started)))
    if status.first_failure is not None:
        lines += fault_lines([failure_fault(status.first_failure)])
        lines += (status.first_failure.traceback or "").splitlines()
    return lines


def _step_of(status: RunStatus) -> str:
    """How far a run is; a script does not say how many steps it will take, nor must it tell its steps at all."""
    if status.steps is None:
        return t("step {last}", last=status.last_step) if status.last_step is not None else ""
    return t("step {last} of {steps}", last="–" if status.last_step is None else status.last_step, steps=status.steps)


def elsewhere_lines(folder: RunFolder) -> list[str]:
    """What to start by hand on each of the other machines; nothing where no person starts anything."""
    command = folder.elsewhere_command()
    if command is None:
        return []
    return [t("Run this on each of the other machines, where the run folder must be seen at the same path:"), command]


def _queue_words(status: RunStatus) -> str:
    """Where the job of a run waits: "job 7, place 2 in main: Priority"."""
    job = status.scheduler
    if job is None or job.state != "PENDING":
        return ""
    words = [t("job {id} waits", id=job.id), t("place {n} in {partition}", n=job.position, partition=job.partition)]
    return ", ".join(words if job.position is not None else words[:1]) + (f": {job.reason}" if job.reason else "")


def runs_lines(views: Sequence[RunView]) -> list[str]:
    """The history, newest first."""
    if not views:
        return [t("No run yet.")]
    rows = [
        [
            view.run_id,
            view.state,
            view.status.layout,
            str(view.status.last_step if view.status.last_step is not None else "–"),
        ]
        if view.status
        else [view.run_id, view.state, "", ""]
        for view in views
    ]
    return table([[t("run"), t("state"), t("layout"), t("last step")], *rows])


def trace_lines(written: WrittenTrace) -> list[str]:
    """Where a trace is and what it holds."""
    held = t("{ranks} ranks, {steps} steps, {events} events", ranks=written.num_ranks, steps=written.num_steps,
             events=f"{written.num_events:,}")  # fmt: skip
    beside = t("the predicted schedule beside them") if written.has_prediction else t("no predicted schedule")
    lines = [str(written.path), f"{held}; {beside}"]
    if written.num_profiles:
        lines.append(t("{n} deep profiles of a step", n=written.num_profiles))
    if written.left_out_profiles:
        lines.append(t("{n} deep profiles are left out: too many, or damaged", n=written.left_out_profiles))
    return lines


def archive_lines(archive: Archive) -> list[str]:
    """Where a run's records are now, and how to have them back."""
    sizes = {"before": units.format_memory(archive.folder_bytes), "after": units.format_memory(archive.archive_bytes)}
    return [
        str(archive.path),
        t("{n} files, {before} in {after}; tpdpdash restore {path} has it in the history again",
          n=archive.num_files, path=archive.path, **sizes),
    ]  # fmt: skip


def restored_lines(restored: Restored) -> list[str]:
    """Which run is back."""
    return [t("{run} is in the history again, {n} files", run=restored.folder.run_id, n=restored.num_files)]


def progress_line(view: RunView) -> str:
    """One line of a run's progress."""
    status = view.status
    if status is None:
        return str(view.state)
    if waits := _queue_words(status):
        return f"{view.state}: {waits}"
    if status.last_step is not None:
        return f"{view.state}: {_step_of(status)}"
    if not status.ranks_by_phase.keys() - {PHASES[0]} and view.state != "starting":  # a script that tells nothing
        return str(view.state)
    through = status.world_size - status.ranks_by_phase.get(status.phase, 0)
    values = {"phase": status.phase, "through": through, "all": status.world_size}
    return t("{state}: {phase}, {through} of {all} ranks are through", state=view.state, **values)
