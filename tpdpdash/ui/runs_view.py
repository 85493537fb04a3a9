"""Runs as rows and sentences: the state in words, the first cause of a failure, the table of the history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpdpdash.text import t
from tpdpdash.ui.parts import literal, plain
from tpdpdash.units import UNKNOWN, format_count, format_time

if TYPE_CHECKING:
    import pandas as pd

    from tpdpdash.run.history import RunView
    from tpdpdash.run.status import FirstFailure, RunStatus

COLUMNS = ("State", "Model", "Layout", "Steps", "Took", "Started", "Run")
LAYOUT_NAMES = {"tp": "TP", "cp": "CP", "ep": "EP", "pp": "PP", "dp": "DP"}


def layout_words(layout_id: str) -> str:
    """ "tp2-pp2-dp2" as people write it: TP 2 × PP 2 × DP 2."""
    parts = [(part.rstrip("0123456789"), part.lstrip("abcdefghijklmnopqrstuvwxyz")) for part in layout_id.split("-")]
    known = [f"{LAYOUT_NAMES[name]} {degree}" for name, degree in parts if name in LAYOUT_NAMES and degree]
    return " × ".join(known) or plain(layout_id)


def run_title(view: RunView) -> str:
    """Model and layout of a run (markdown)."""
    status = view.status
    if status is None:
        return literal(view.run_id)
    kind = f" · {t('rehearsal')}" if status.rehearsal else ""
    ranks = t("{n} ranks", n=format_count(status.world_size))
    return f"{literal(status.name)}{kind} · {layout_words(status.layout)} · {ranks}"


def failure_cause(failure: FirstFailure) -> str:
    """The first cause of a failure, in words (plain text)."""
    values = {"rank": failure.rank, "signal": failure.signal, "exit": failure.exit_code, "error": failure.error or ""}
    sentences = {
        "rank_killed": t("rank {rank} was killed ({signal}), often a sign of too little memory", **values),
        "rank_crashed": t("rank {rank} crashed ({signal})", **values),
        "rank_signalled": t("rank {rank} was ended by {signal}", **values),
        "rank_raised": t("rank {rank} raised {error}", **values),
        "rank_exited": t("rank {rank} ended with exit code {exit}", **values),
        "rank_left_early": t("rank {rank} ended before the others", **values),
        "agent_killed": t("torchrun itself was killed ({signal})", **values),
        "agent_failed": t("torchrun failed: {error}", **values),
    }
    return plain(sentences.get(failure.code, f"{failure.code} {failure.error or ''}"))


def state_words(view: RunView) -> str:
    """The state with its cause, for a table's cell (plain text)."""
    status = view.status
    if view.state == "failed" and status and status.first_failure:
        return t("failed: {cause}", cause=failure_cause(status.first_failure))
    if view.state == "stopped" and status and status.stop_requested_by:
        by = {"dashboard": t("by you"), "cli": t("from the shell"), "signal": t("by a signal")}
        return t("stopped {by}", by=by.get(status.stop_requested_by, plain(status.stop_requested_by)))
    if view.state == "damaged":
        return t("damaged: {why}", why=plain(view.damage))
    return t(view.state)


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
        }
        for view in runs
    ]
    return pd.DataFrame(rows, columns=[t(name) for name in COLUMNS])


def _model_words(status: RunStatus | None) -> str:
    if status is None:
        return t(UNKNOWN)
    return f"{plain(status.name)} · {t('rehearsal')}" if status.rehearsal else plain(status.name)


def column_config() -> dict[str, Any]:
    """Widths of that table: the state may carry a sentence."""
    import streamlit as st

    return {t("State"): st.column_config.TextColumn(width=300)}


def matching(runs: Sequence[RunView], text: str) -> list[RunView]:
    """Runs whose id, model, layout or state hold every word of the filter."""
    words = text.lower().split()

    def described(view: RunView) -> str:
        status = view.status
        told = f"{status.name} {layout_words(status.layout)} {status.layout}" if status else ""
        return f"{view.run_id} {told} {state_words(view)}".lower()

    return [view for view in runs if all(word in described(view) for word in words)]
