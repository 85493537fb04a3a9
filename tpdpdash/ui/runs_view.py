"""Runs as rows and sentences: the state in words, the first cause of a failure, the table of the history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpdpdash.run.failure import failure_fault
from tpdpdash.text import fault_text, t
from tpdpdash.ui.layout_code import id_words
from tpdpdash.ui.parts import literal, plain
from tpdpdash.units import UNKNOWN, ceil_div, format_count, format_time

if TYPE_CHECKING:
    import pandas as pd
    from streamlit.delta_generator import DeltaGenerator

    from tpdpdash.run.history import RunView
    from tpdpdash.run.status import FirstFailure, RunStatus

COLUMNS = ("State", "Model", "Layout", "Steps", "Took", "Started", "Cause", "Run")

WIDTHS = {"State": 120, "Steps": 110, "Took": 75, "Started": 90, "Cause": 230, "Run": 225}
"""Pixels of the columns whose texts are short, and of the one that holds a sentence."""


def layout_words(layout_id: str) -> str:
    """ "tp2-pp2-dp2" as people write it: TP 2 × PP 2 × DP 2."""
    return plain(id_words(layout_id))


def run_title(view: RunView) -> str:
    """Model and layout of a run (markdown)."""
    status = view.status
    if status is None:
        return literal(view.run_id)
    kind = f" · {t('rehearsal')}" if status.rehearsal else ""
    ranks = t("{n} ranks", n=format_count(status.world_size))
    layout = f" · {layout_words(status.layout)}" if status.layout else ""  # a plain script has none
    return f"{literal(status.name)}{kind}{layout} · {ranks}"


def failure_cause(failure: FirstFailure) -> str:
    """The first cause of a failure, in words (plain text)."""
    return plain(fault_text(failure_fault(failure)))


def state_words(view: RunView) -> str:
    """The state in a word or two, for a table's cell."""
    by = view.status.stop_requested_by if view.status else None
    if view.state == "stopped" and by:
        whom = {"dashboard": t("by you"), "cli": t("from the shell"), "signal": t("by a signal")}
        return t("stopped {by}", by=whom.get(by, plain(by)))
    return t(view.state)


def cause_words(view: RunView) -> str:
    """Why it ended as it did, where that is no wish of anybody (plain text)."""
    if view.state == "failed" and view.status and view.status.first_failure:
        return failure_cause(view.status.first_failure)
    return plain(view.damage) if view.state == "damaged" else ""


def steps_words(status: RunStatus | None) -> str:
    """ "12 of 20"."""
    if status is None or status.last_step is None:
        return t("none yet") if status is not None else t(UNKNOWN)
    done = format_count(status.last_step)
    return t("{done} of {total}", done=done, total=format_count(status.steps)) if status.steps else done


def age_words(view: RunView) -> str:
    """How long ago it was made."""
    return t("{time} ago", time=format_time(max(0.0, time.time() - view.created))) if view.created else t(UNKNOWN)


def duration_s(status: RunStatus | None) -> float | None:
    """Seconds from the start to the end, or until now."""
    if status is None or status.started is None:
        return None
    return max(0.0, (status.ended or time.time()) - status.started)


def runs_table(runs: Sequence[RunView]) -> pd.DataFrame:
    """One row a run, newest first."""
    import pandas as pd

    rows = [
        {
            t("State"): state_words(view),
            t("Model"): _model_words(view.status),
            t("Layout"): layout_words(view.status.layout) if view.status else t(UNKNOWN),
            t("Steps"): steps_words(view.status),
            t("Took"): format_time(duration_s(view.status)),
            t("Started"): age_words(view),
            t("Run"): view.run_id,
            t("Cause"): cause_words(view),
        }
        for view in runs
    ]
    table = pd.DataFrame(rows, columns=[t(name) for name in COLUMNS])
    return table if any(table[t("Cause")]) else table.drop(columns=t("Cause"))


def _model_words(status: RunStatus | None) -> str:
    if status is None:
        return t(UNKNOWN)
    return f"{plain(status.name)} · {t('rehearsal')}" if status.rehearsal else plain(status.name)


def picked_run(runs: Sequence[RunView], *, key: str) -> str | None:
    """The table of these runs; the id of the one that was clicked."""
    import streamlit as st

    narrow = {t(name): st.column_config.TextColumn(width=px) for name, px in WIDTHS.items()}
    picked = st.dataframe(
        runs_table(runs),
        # A selection is a position: another list of runs is another table.
        key=f"{key}-{runs[0].run_id}-{len(runs)}",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        alt=t("One row a run, newest first; a click opens it"),
        column_config=narrow,
    )
    rows = picked.selection.rows
    return runs[rows[0]].run_id if rows else None


def picked_page(place: DeltaGenerator, count: int, page_size: int) -> int:
    """Which page of a long history is shown, from 0: only its runs are opened."""
    pages = ceil_div(count, page_size)
    if pages <= 1:
        return 0
    page = place.number_input(
        t("Page of {n}", n=format_count(pages)), 1, pages, key="runs-page", width=120, label_visibility="collapsed",
    )  # fmt: skip
    return int(page) - 1


def matching(runs: Sequence[RunView], text: str) -> list[RunView]:
    """Runs whose id, model, layout or state hold every word of the filter."""
    words = text.lower().split()

    def described(view: RunView) -> str:
        status = view.status
        told = f"{status.name} {layout_words(status.layout)} {status.layout}" if status else ""
        return f"{view.run_id} {told} {state_words(view)} {cause_words(view)}".lower()

    return [view for view in runs if all(word in described(view) for word in words)]
