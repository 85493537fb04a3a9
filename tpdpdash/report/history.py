"""Answers about runs: what a rehearsal changes, one run, the history, progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpdpdash import units
from tpdpdash.report.lines import table
from tpdpdash.text import fault_lines, t

if TYPE_CHECKING:
    from tpdpdash.run.change import Change
    from tpdpdash.run.history import RunView


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
    step = t(
        "step {last} of {steps}",
        last=status.last_step if status.last_step is not None else "–",
        steps=status.steps or "?",
    )
    lines = [
        f"{view.run_id}: {view.state}",
        f"{status.name}, {status.layout}, {t('{n} ranks', n=status.world_size)}, {step}",
    ]
    if status.started is not None and status.ended is not None:
        lines.append(t("took {time}", time=units.format_time(status.ended - status.started)))
    if status.first_failure is not None:
        lines += fault_lines([failure_fault(status.first_failure)])
        lines += (status.first_failure.traceback or "").splitlines()
    return lines


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


def progress_line(view: RunView) -> str:
    """One line of a run's progress."""
    status = view.status
    if status is None:
        return str(view.state)
    if status.last_step is not None:
        return t("{state}: step {step} of {steps}", state=view.state, step=status.last_step, steps=status.steps or "?")
    through = status.world_size - status.ranks_by_phase.get(status.phase, 0)
    values = {"phase": status.phase, "through": through, "all": status.world_size}
    return t("{state}: {phase}, {through} of {all} ranks are through", state=view.state, **values)
