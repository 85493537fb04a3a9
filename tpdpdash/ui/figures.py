"""Charts on a page: placing one, a legend in the palette's colours, and words in the colour of their group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from tpdpdash.charts.live import Spec, for_kinds
from tpdpdash.charts.palette import CODE_FONT, Fill, Theme, phase_colors, ui_colors

BAR_COLUMN_PX = 128
LIVE_TABLE = "table"
"""Name of a live chart's table in its spec."""
LARGE_FIGURE = 100.0
"""From here on a bar's figure has no decimals."""


class _Unchecked:
    """A chart as streamlit asks for it, without Altair's check against Vega-Lite's schema: it takes a third of a
    page's time, and what our charts are made of is checked by their tests."""

    def __init__(self, chart: Any) -> None:
        self._chart = chart

    def to_dict(self) -> dict[str, Any]:
        """The chart's spec."""
        spec: dict[str, Any] = self._chart.to_dict(validate=False)
        return spec


def figure(chart: Any, key: str) -> None:
    """Place a chart at the full width. Its description is its text for screen readers."""
    st.altair_chart(_Unchecked(chart), theme=None, width="stretch", key=key)


def picking_figure(chart: Any, key: str, field: str, on_pick: Callable[[Any], None]) -> None:
    """Place a chart whose marks can be clicked; `on_pick` gets the clicked mark's `field`."""

    def picked() -> None:
        points = st.session_state[key].selection.get("pick", [])
        if points and field in points[0]:
            on_pick(points[0][field])

    st.altair_chart(_Unchecked(chart), theme=None, width="stretch", key=key, on_select=picked)


def live_chart(table: pd.DataFrame, spec: Spec, key: str, alt: str) -> None:
    """A chart whose table changes under one spec. The table goes in by name: then the chart is made with it, and not
    first without rows, of which Vega warns."""
    shown = for_kinds(spec, set(table["kind"])) if "kind" in table else spec
    named = {**shown, "data": {"name": LIVE_TABLE}, "datasets": {LIVE_TABLE: table}}
    st.vega_lite_chart(None, named, key=key, theme=None, width="stretch", alt=alt)


def legend(fills: Mapping[str, Fill], labels: Mapping[str, str]) -> None:
    """Coloured squares with their names, in the order of `labels`; it stands under a card's title."""
    items = "".join(
        f'<span style="white-space:nowrap"><span style="display:inline-block;width:11px;height:11px;border-radius:3px;'
        f'margin-right:6px;background:{fills[name].fill};border:1px solid {fills[name].outline}"></span>'
        f"{escape(label)}</span>"
        for name, label in labels.items()
    )
    st.html(f'<div style="display:flex;flex-wrap:wrap;gap:4px 16px;font-size:12.5px">{items}</div>')


def group_lines(groups: Sequence[tuple[str, str, str]], theme: Theme) -> None:
    """Blocks (kind, title, members) beside each other, each with a bar in its kind's colour."""
    colors, muted = phase_colors(theme), ui_colors(theme)["muted"]
    blocks = "".join(
        f'<div style="border-left:3px solid {colors[kind].outline};padding:2px 0 2px 10px;flex:1 1 220px;min-width:0">'
        f'<div style="font-size:13px;color:{muted}"><b style="color:{colors[kind].text}">{escape(kind.upper())}</b> '
        f"{escape(title)}</div>"
        f'<div style="font:12.5px {CODE_FONT.replace(chr(34), chr(39))};overflow-wrap:anywhere">{escape(members)}</div>'
        "</div>"
        for kind, title, members in groups
    )
    st.html(f'<div style="display:flex;flex-wrap:wrap;gap:10px 22px">{blocks}</div>')


def ranked_table(
    table: pd.DataFrame, *, key: str, selected: int, limits: Mapping[str, float], on_select: Callable[[int], None]
) -> None:
    """A table with bars in the columns of `limits`; its one selected row is handed to `on_select` as a position."""

    def picked() -> None:
        rows = st.session_state[key].selection.rows
        if rows:
            on_select(int(rows[0]))

    # Speed in the primary colour, memory in grey: totals have no phase.
    bars = {
        column: st.column_config.ProgressColumn(
            min_value=0.0,
            max_value=limit,
            format=f"%,.{_bar_decimals(limit)}f",
            width=BAR_COLUMN_PX,
            color=color,
        )
        for (column, limit), color in zip(limits.items(), ("primary", "gray"), strict=True)
    }
    st.dataframe(
        table,
        key=key,
        hide_index=True,
        column_config={"#": st.column_config.NumberColumn(width=36), **bars},
        on_select=picked,
        selection_mode="single-row-required",
        selection_default={"selection": {"rows": [selected]}},
        height="content",
    )


def bar_figure(value: float, limit: float) -> str:
    """A figure as it stands beside its bar, whose full length is `limit`."""
    return f"{value:,.{_bar_decimals(limit)}f}"


def _bar_decimals(limit: float) -> int:
    return 0 if limit >= LARGE_FIGURE else 1


def error_table(table: pd.DataFrame, column: str, *, key: str, alt: str) -> None:
    """A table of errors with a bar in one column, whose values are hundredths."""
    most = max(float(table[column].max()), 1.0)
    bar = st.column_config.ProgressColumn(
        min_value=0.0, max_value=most, format="%.1f", width=BAR_COLUMN_PX, color="gray"
    )
    st.dataframe(table, key=key, hide_index=True, column_config={column: bar}, height="content", alt=alt)


def degree_table(rows: Sequence[tuple[str, ...]], header: Sequence[str], theme: Theme) -> None:
    """A small table of our own words; the first entry of each row names the group kind that colours its first cell.

    It scrolls sideways in a narrow window, so that its columns stay readable.
    """
    ui = ui_colors(theme)
    cell = f"padding:7px 8px;border-bottom:1px solid {ui['line']};text-align:left;vertical-align:top"
    head = "".join(f'<th style="{cell};font-weight:400;color:{ui["muted"]}">{escape(title)}</th>' for title in header)
    lines = []
    for kind, *cells in rows:
        color = phase_colors(theme)[kind].text
        first, *rest = (escape(text) for text in cells)
        lines.append(f'<td style="{cell};font-weight:600;color:{color}">{first}</td>')
        lines[-1] += "".join(f'<td style="{cell}">{text}</td>' for text in rest)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    st.html(
        '<div style="overflow-x:auto">'
        '<table style="min-width:560px;width:100%;border-collapse:collapse;font-size:13.5px">'
        f"<tr>{head}</tr>{body}</table></div>"
    )


def group_table(table: pd.DataFrame, theme: Theme, *, key: str, right: Sequence[str], alt: str) -> None:
    """A table whose first column names group kinds (TP, DP …), each in its colour; columns of `right` are figures."""
    colors = {kind.upper(): fill.text for kind, fill in phase_colors(theme).items()}
    first = table.columns[0]
    styled = table.style.map(lambda kind: f"color: {colors.get(kind, 'inherit')}; font-weight: 600", subset=[first])
    aligned = {column: st.column_config.TextColumn(alignment="right") for column in right}
    st.dataframe(styled, hide_index=True, key=key, column_config=aligned, alt=alt, height="content")
