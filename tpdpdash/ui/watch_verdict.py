"""Watch's two answers: what bounds this run, and whether it is what was predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import streamlit as st

from tpdpdash.charts import live as specs
from tpdpdash.charts.palette import Theme
from tpdpdash.compare.attribution import Attribution
from tpdpdash.compare.verdict_words import evidence, gap_sentence, headline, next_step, part_word
from tpdpdash.report.accounts import beside, part_rows
from tpdpdash.text import t
from tpdpdash.ui import figures, live_tables, parts, run_services
from tpdpdash.units import format_memory, format_share, format_time

if TYPE_CHECKING:
    from tpdpdash.ui.live import Look

FILL_OF_PART = {"compute": "forward", "waiting": "idle"}
"""Colours of parts that are not a phase of their own."""


def cards(look: Look) -> None:
    """Side by side under the figures."""
    left, right = st.columns([1, 2])
    with left, parts.card(t("What bounds this run"), t("last steps, all ranks")):
        _verdict(look)
    with right, parts.card(t("Predicted and measured"), t("seconds of a step on the busiest stage, by part")):
        _attribution(look)


def _verdict(look: Look) -> None:
    verdict = look.verdict
    if verdict.wants_layout and look.plan is not None:
        verdict = verdict.with_layout(run_services.better_layout(look.view.run_id, look.plan))
    st.markdown(f"**{parts.literal_text(headline(verdict))}**")
    st.markdown(parts.literal_text(evidence(verdict)))
    st.caption(parts.literal_text(next_step(verdict)))


def _attribution(look: Look) -> None:
    found = look.attribution
    if found is None:
        st.caption(t("From the second step on."))
        return
    st.markdown(parts.literal_text(gap_sentence(found)))
    theme = parts.theme()
    table = bars(found, theme)
    spec = specs.phases_spec(theme, table["row"].nunique())
    figures.live_chart(table, spec, "chart-attribution", t("Parts of the predicted and of the measured step"))
    fills = live_tables.bar_phases(theme)
    seen = {FILL_OF_PART.get(part.part, part.part): part_word(part.part) for part in found.parts}
    figures.legend(fills, seen)
    st.dataframe(
        gaps(found), hide_index=True, row_height=28, key="attribution", alt=t("Each part: predicted, measured")
    )


def bars(found: Attribution, theme: Theme) -> pd.DataFrame:
    """For charts.live.phases_spec: the predicted step above the measured one."""
    fills, rows = live_tables.bar_phases(theme), []
    for name, seconds in (
        (t("predicted"), {part.part: part.predicted_s or 0.0 for part in found.parts}),
        (t("measured"), {part.part: part.measured_s for part in found.parts}),
    ):
        start, whole = 0.0, sum(seconds.values())
        for part, spent in seconds.items():
            if spent > 0:
                fill = fills[FILL_OF_PART.get(part, part)]
                shown = f"{format_time(spent)} · {format_share(spent / whole)}"
                place = {"kind": "bar", "row": name, "x": start, "x2": start + spent, "label": part_word(part)}
                rows.append({**place, "shown": shown, "fill": fill.fill, "outline": fill.outline})
                start += spent
    return pd.DataFrame(rows, columns=["kind", "row", "x", "x2", "fill", "outline", "label", "shown"])


def gaps(found: Attribution) -> pd.DataFrame:
    """Each part, the step and the memory of each stage: predicted, measured, gap."""
    memory = [
        [t("memory, stage {stage}", stage=m.stage), *beside(m.predicted_bytes, m.measured_bytes, format_memory)]
        for m in found.memory
    ]
    columns = [t("part"), t("predicted"), t("measured"), t("gap")]
    return pd.DataFrame([*part_rows(found), *memory], columns=columns)
