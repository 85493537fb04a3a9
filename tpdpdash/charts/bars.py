"""Stacked and plain bars: memory of each stage, where the step goes, and what was refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from tpdpdash.charts.canvas import box_layer, finish, right_text_layer, text_layer, whisker_layer, y_sheet
from tpdpdash.charts.lanes import left_names
from tpdpdash.charts.palette import (
    MEMORY_ORDER,
    PHASE_ORDER,
    Fill,
    Theme,
    memory_colors,
    memory_label,
    phase_colors,
    phase_label,
    ui_colors,
)
from tpdpdash.text import t
from tpdpdash.units import format_count, format_memory, format_share, format_time, gib

MEMORY_ROW, MEMORY_BAR = 29, 20
STEP_ROW, STEP_BAR, STEP_LABEL = 47, 18, 18
REFUSED_ROW, REFUSED_BAR = 40, 9


def stacked(table: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Columns row, part, value → the same with start and end of each segment, stacked in `order` within a row."""
    ranks = {part: i for i, part in enumerate(order)}
    sorted_table = table.assign(_rank=table["part"].map(ranks)).sort_values(["row", "_rank"], kind="stable")
    ends = sorted_table.groupby("row", sort=False)["value"].cumsum()
    result: pd.DataFrame = sorted_table.assign(start=ends - sorted_table["value"], end=ends)
    return result[result["value"] > 0].drop(columns="_rank").reset_index(drop=True)


def memory_bars(
    table: pd.DataFrame, theme: Theme, *, capacity_bytes: float, names: Sequence[str], bold_row: int | None = None
) -> Any:
    """Columns row, part (weights …), value in bytes: a bar a stage against the usable memory, totals at the right."""
    ui = ui_colors(theme)
    height = MEMORY_ROW * len(names) + 22
    totals = table.groupby("row")["value"].sum()
    longest = gib(max(float(totals.max()), capacity_bytes))
    x = _value_axis(longest * 1.5, t("GiB"), 5)
    segments = stacked(table, MEMORY_ORDER)
    segments = segments.assign(start=gib(segments["start"]), end=gib(segments["end"]))
    texts = gib(segments["value"]).map(lambda held: f"{held:.1f}")
    top = segments["row"] * MEMORY_ROW + 24
    drawn = _segments(segments, top, MEMORY_BAR, memory_colors(theme), texts, theme)
    drawn = drawn.assign(
        what=segments["part"].map(memory_label), amount=segments["value"].map(format_memory), share=drawn["share"]
    )
    free = pd.DataFrame(
        {
            "x": 0.0, "x2": gib(capacity_bytes), "y": [r * MEMORY_ROW + 24 for r in range(len(names))],
            "y2": [r * MEMORY_ROW + 24 + MEMORY_BAR for r in range(len(names))],
            "fill": ui["grid"], "outline": ui["grid"],
        }
    )  # fmt: skip
    rows = [int(row) for row in totals.index]
    figures = pd.DataFrame(
        {
            "y": [row * MEMORY_ROW + 24 + MEMORY_BAR / 2 for row in rows],
            "text": [format_memory(float(totals[row])) for row in rows],
            "color": [ui["bad"] if totals[row] > capacity_bytes else ui["text"] for row in rows],
        }
    )
    limit = _limit_layers(gib(capacity_bytes), t("{gib} usable", gib=format_memory(capacity_bytes)), x, height, theme)
    layers = [box_layer(free, x=x, height=height), *_segment_layers(drawn, x, height, longest * 1.5)]
    layers += [*limit, right_text_layer(figures, height=height)]
    layers.append(_row_names(names, MEMORY_ROW, 24 + MEMORY_BAR // 2, height, theme, bold_row))
    description = t(
        "Memory of each stage. {rows}; usable: {capacity}.",
        rows="; ".join(f"{names[row]}: {format_memory(float(totals[row]))}" for row in rows),
        capacity=format_memory(capacity_bytes),
    )
    padding = {"left": 62, "right": 4, "top": 2, "bottom": 4}
    return finish(layers, height=height, theme=theme, description=description, padding=padding)


def step_bars(
    table: pd.DataFrame,
    theme: Theme,
    *,
    names: Sequence[str],
    figures: Sequence[str],
    as_share: bool = False,
    errors: Sequence[float] = (),
    title: str = "",
    axis_title: str = "",
) -> Any:
    """Columns row, part (a phase), value in seconds: label and total above each bar, parts stacked in phase order.

    errors: half-width of each total's error bar in seconds, drawn as a whisker under the bar; NaN = none is known.
    """
    ui = ui_colors(theme)
    height = STEP_ROW * len(names)
    segments = stacked(table, PHASE_ORDER)
    whole = segments.groupby("row")["value"].transform("sum")
    if as_share:
        segments = segments.assign(start=segments["start"] / whole, end=segments["end"] / whole)
    whiskers = _whiskers(segments, errors if not as_share else ())
    longest = max([float(segments["end"].max()) if len(segments) else 1.0, *whiskers["x2"]])
    x = _value_axis(longest * 1.02, axis_title, 5, "%" if as_share else None)
    texts = segments["value"].map(lambda s: f"{s:#.3g}".rstrip("."))
    if as_share:
        texts = (segments["value"] / whole).map(format_share)
    top = segments["row"] * STEP_ROW + STEP_LABEL
    drawn = _segments(segments, top, STEP_BAR, phase_colors(theme), texts, theme).assign(
        what=segments["part"].map(phase_label), amount=segments["value"].map(format_time)
    )
    label_y = [row * STEP_ROW + STEP_LABEL / 2 for row in range(len(names))]
    labels = pd.DataFrame({"x": 0.0, "y": label_y, "text": list(names), "color": ui["text"]})
    totals = pd.DataFrame({"y": label_y, "text": list(figures), "color": ui["muted"]})
    layers = [*_segment_layers(drawn, x, height, longest * 1.02)]
    layers.append(text_layer(labels, x=x, height=height, align="left", baseline="middle"))
    layers.append(right_text_layer(totals, height=height))
    if len(whiskers):
        layers.append(whisker_layer(whiskers.assign(color=ui["text"]), x=x, height=height))
    description = t("{title}: {rows}.", title=title, rows="; ".join(map(" ".join, zip(names, figures, strict=True))))
    return finish(layers, height=height, theme=theme, description=description)


def _whiskers(segments: pd.DataFrame, errors: Sequence[float]) -> pd.DataFrame:
    """Columns x, x2, y: the error of each row's total, in the gap under its bar."""
    ends = segments.groupby("row")["end"].max()
    rows = [
        (float(ends[row]) - error, float(ends[row]) + error, row * STEP_ROW + STEP_LABEL + STEP_BAR + 4)
        for row, error in enumerate(errors)
        if row in ends.index and math.isfinite(error)
    ]
    return pd.DataFrame(rows, columns=["x", "x2", "y"])


def refused_bars(table: pd.DataFrame, theme: Theme) -> Any:
    """Columns label, count, note, is_limit: a thin bar a reason, the count at its end, the mend at the right."""
    ui = ui_colors(theme)
    height = REFUSED_ROW * len(table)
    most = max(1.0, float(table["count"].max()))
    rows = pd.Series(range(len(table)), index=table.index)
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, most * 1.25], nice=False), axis=None)
    colors = table["is_limit"].map({True: ui["bad"], False: ui["axis"]})
    top = rows * REFUSED_ROW + 20
    bars = table.assign(x=0.0, x2=table["count"], y=top, y2=top + REFUSED_BAR, fill=colors, outline=colors)
    labels = table.assign(x=0.0, y=rows * REFUSED_ROW + 9, text=table["label"], color=ui["text"])
    notes = table.assign(y=rows * REFUSED_ROW + 9, text=table["note"], color=ui["muted"])
    counts = table.assign(
        x=table["count"], y=top + REFUSED_BAR / 2, text=table["count"].map(format_count), color=ui["text"]
    )
    tips = [alt.Tooltip("label:N", title=t("reason")), alt.Tooltip("count:Q", title=t("layouts"), format=",")]
    layers = [
        box_layer(bars, x=x, height=height, radius=1, tooltip=tips),
        text_layer(labels, x=x, height=height, align="left", baseline="middle"),
        text_layer(counts, x=x, height=height, align="left", baseline="middle", dx=6),
        # On a narrow sheet the note would run into the label: the page's table carries it there.
        right_text_layer(notes, height=height, opacity=alt.expr("width > 520 ? 1 : 0")),
    ]
    described = "; ".join(f"{label} {count}" for label, count in zip(table["label"], table["count"], strict=True))
    return finish(layers, height=height, theme=theme, description=t("Refused layouts: {rows}.", rows=described))


def _value_axis(most: float, title: str, ticks: int, number_format: str | None = None) -> Any:
    extra = {"format": number_format} if number_format else {}
    return alt.X(
        "x:Q",
        scale=alt.Scale(domain=[0, most], nice=False),
        axis=alt.Axis(title=title, grid=False, tickCount=ticks, **extra),
    )


def _segments(segments: pd.DataFrame, top: Any, bar: int, colors: Any, texts: Any, theme: Theme) -> pd.DataFrame:
    """Boxes of a stack; filled segments are parted by a line of the ground, hollow ones have their own outline."""
    ground = ui_colors(theme)["card"]

    def color(name: str) -> Any:
        return segments["part"].map({part: getattr(c, name) for part, c in colors.items()})

    def outline(part: str) -> str:
        look: Fill = colors[part]
        return look.outline if look.hollow else ground

    return pd.DataFrame(
        {
            "x": segments["start"], "x2": segments["end"], "y": top, "y2": top + bar, "fill": color("fill"),
            "outline": segments["part"].map(outline), "text": texts, "color": color("on"),
            "share": segments["end"] - segments["start"], "middle": (segments["start"] + segments["end"]) / 2,
        }
    )  # fmt: skip


def _segment_layers(drawn: pd.DataFrame, x: Any, height: int, span: float) -> list[Any]:
    if not len(drawn):
        return []
    tips = [alt.Tooltip("what:N", title=t("part")), alt.Tooltip("amount:N", title=t("amount"))]
    labels = drawn.assign(x=drawn["middle"], y=(drawn["y"] + drawn["y2"]) / 2, share=drawn["share"] / span)
    texts = text_layer(labels, x=x, height=height, baseline="middle", fontSize=11.5)
    return [
        box_layer(drawn, x=x, height=height, tooltip=tips),
        texts.transform_filter("datum.share * width > 6.5 * length(datum.text) + 6"),
    ]


def _limit_layers(at: float, label: str, x: Any, height: int, theme: Theme) -> list[Any]:
    bad = ui_colors(theme)["bad"]
    line = pd.DataFrame([{"x": at, "y": 16, "y2": height, "text": label, "color": bad}])
    rule = (
        alt.Chart(line)
        .mark_rule(strokeDash=[4, 3], strokeWidth=1.5)
        .encode(x=x, y=y_sheet("y", height), y2=alt.Y2("y2:Q"), color=alt.Color("color:N", scale=None, legend=None))
    )
    return [rule, text_layer(line.assign(y=7), x=x, height=height, baseline="middle", align="center")]


def _row_names(
    names: Sequence[str], row_height: int, first: int, height: int, theme: Theme, bold_row: int | None
) -> Any:
    ui = ui_colors(theme)
    table = pd.DataFrame(
        {
            "y": [row * row_height + first for row in range(len(names))],
            "text": list(names),
            "color": [ui["text"] if bold_row in (None, row) else ui["muted"] for row in range(len(names))],
        }
    )
    return left_names(table, height)
