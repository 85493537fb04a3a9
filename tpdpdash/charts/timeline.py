"""The pipeline timeline: one lane a stage, a bar an action, the bubble hollow behind, microbatches in flight below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tpdpdash.charts.canvas import box_layer, finish, path_layer, text_layer
from tpdpdash.charts.lanes import left_names, spread
from tpdpdash.charts.palette import Theme, phase_colors, phase_label, ui_colors
from tpdpdash.text import t
from tpdpdash.units import ceil_div

MAX_MARKS = 2000
"""Bars of one timeline; a longer step is shown in windows."""
MAX_LANES = 16
LANE, BAR, LOW_BAR, BELOW, FLIGHT = 30, 24, 14, 34, 44


PARTS_OF_BACKWARD = {"input_gradient": "input gradients", "weight_gradient": "weight gradients"}
"""Kinds of bars that are drawn as backward: what the stage before waits for, and, lower, what can wait."""


def phase_of(kind: str) -> str:
    """The phase whose colour a bar has."""
    return "backward" if kind in PARTS_OF_BACKWARD else kind


def _told(kind: str) -> str:
    return t(PARTS_OF_BACKWARD[kind]) if kind in PARTS_OF_BACKWARD else phase_label(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of a timeline that is drawn."""

    bars: pd.DataFrame
    """Rows that are drawn."""
    lanes: tuple[int, ...]
    """Stages that are drawn."""
    start_s: float
    """Left edge, seconds since the step began."""
    end_s: float
    """Right edge."""
    num_windows: int
    """How many windows the whole step takes."""


def window_of(bars: pd.DataFrame, total_s: float, *, index: int = 0, max_marks: int = MAX_MARKS) -> Window:
    """Window `index` of a timeline (columns lane, kind, label, start_s, end_s) with at most `max_marks` bars.

    Above 16 stages the first, the last and evenly spaced ones between are kept, so that the fill and the drain
    of the pipeline stay visible.
    """
    lanes = spread(sorted(int(lane) for lane in bars["lane"].unique()), MAX_LANES)
    kept = bars[bars["lane"].isin(lanes)].sort_values("start_s", kind="stable").reset_index(drop=True)
    # Neighbouring windows both draw the bars that cross their border, at most one or two a lane.
    room = max(1, max_marks - 2 * len(lanes))
    num_windows = max(1, ceil_div(len(kept), room))
    if num_windows == 1:
        return Window(bars=kept, lanes=lanes, start_s=0.0, end_s=total_s, num_windows=1)
    index = min(max(index, 0), num_windows - 1)
    first = kept["start_s"].iloc[index * room] if index else 0.0
    last = index == num_windows - 1
    end = total_s if last else float(kept["start_s"].iloc[(index + 1) * room])
    inside = kept[(kept["end_s"] > first) & (kept["start_s"] < end)]
    clipped = inside.assign(start_s=inside["start_s"].clip(lower=first), end_s=inside["end_s"].clip(upper=end))
    return Window(bars=clipped, lanes=lanes, start_s=float(first), end_s=end, num_windows=num_windows)


def timeline(
    window: Window,
    theme: Theme,
    *,
    pipeline_end_s: float,
    in_flight: pd.DataFrame | None = None,
    in_flight_note: str = "",
    in_flight_name: str = "",
) -> Any:
    """The chart. `in_flight` (columns t_s, count) is drawn below for one stage; lanes end at `pipeline_end_s`."""
    rows = {lane: i for i, lane in enumerate(window.lanes)}
    lanes_height = LANE * len(rows)
    height = lanes_height + (BELOW + FLIGHT if in_flight is not None else 4)
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[window.start_s, window.end_s], nice=False, zero=False),
        axis=alt.Axis(title=t("Seconds since the step began"), grid=False, tickCount=8),
    )
    layers = [_bubbles(window, rows, x, height, theme, pipeline_end_s)]
    layers += _bars(window, rows, x, height, theme)
    layers.append(_lane_names(rows, height, theme))
    if in_flight is not None and len(in_flight):
        layers += _flight_layers(in_flight, window, x, height, theme, in_flight_note, in_flight_name)
    description = t(
        "Timeline of {lanes} pipeline stages: {bars} actions between {start:.3g} s and {end:.3g} s.",
        lanes=len(rows), bars=len(window.bars), start=window.start_s, end=window.end_s,
    )  # fmt: skip
    padding = {"left": 66, "right": 8, "top": 4, "bottom": 4}
    return finish(layers, height=height, theme=theme, description=description, padding=padding)


def _bubbles(window: Window, rows: dict[int, int], x: Any, height: int, theme: Theme, end_s: float) -> Any:
    """Each lane's whole pipeline time, hollow: what no action covers is the bubble."""
    bubble = phase_colors(theme)["bubble"]
    table = pd.DataFrame(
        {
            "x": window.start_s,
            "x2": min(max(end_s, window.start_s), window.end_s),
            "y": [row * LANE + 2 for row in rows.values()],
            "y2": [row * LANE + 2 + BAR for row in rows.values()],
            "fill": bubble.fill,
            "outline": bubble.outline,
        }
    )
    return box_layer(table, x=x, height=height)


def _bars(window: Window, rows: dict[int, int], x: Any, height: int, theme: Theme) -> list[Any]:
    colors, ui = phase_colors(theme), ui_colors(theme)
    bars = window.bars
    if not len(bars):
        return []
    phase, low = bars["kind"].map(phase_of), bars["kind"] == "weight_gradient"
    top = bars["lane"].map(rows) * LANE + 2 + low * (BAR - LOW_BAR)
    table = pd.DataFrame(
        {
            "x": bars["start_s"], "x2": bars["end_s"], "y": top, "y2": top + np.where(low, LOW_BAR, BAR),
            "fill": phase.map({kind: color.fill for kind, color in colors.items()}),
            "outline": ui["card"], "text": bars["label"].astype(str),
            "color": phase.map({kind: color.on for kind, color in colors.items()}),
            "stage": bars["lane"], "phase": bars["kind"].map(_told),
            "seconds": bars["end_s"] - bars["start_s"],
        }
    )  # fmt: skip
    tips = [
        alt.Tooltip("stage:Q", title=t("stage")),
        alt.Tooltip("phase:N", title=t("phase")),
        alt.Tooltip("text:N", title=t("microbatch")),
        alt.Tooltip("x:Q", title=t("starts at, s"), format=".4~g"),
        alt.Tooltip("seconds:Q", title=t("takes, s"), format=".4~g"),
    ]
    span = max(window.end_s - window.start_s, 1e-12)
    labels = table[table["text"] != ""].assign(
        x=(table["x"] + table["x2"]) / 2, y=(table["y"] + table["y2"]) / 2, share=table["seconds"] / span
    )
    # Bars are parted by a line of the ground, unless they are so narrow that only the lines would be seen.
    typical = float(table["seconds"].median()) / span
    parted = alt.expr(f"width * {typical:.6f} > 5 ? 0.8 : 0")
    layers = [box_layer(table, x=x, height=height, stroke_width=parted, tooltip=tips)]
    if len(labels):
        texts = text_layer(labels, x=x, height=height, baseline="middle", fontSize=12)
        # Only numbers that fit their bar are drawn: 7 px a digit and a little air.
        layers.append(texts.transform_filter("datum.share * width > 7 * length(datum.text) + 3"))
    return layers


def _lane_names(rows: dict[int, int], height: int, theme: Theme) -> Any:
    ui = ui_colors(theme)
    texts = [t("stage {stage}", stage=lane) for lane in rows]
    table = pd.DataFrame({"y": [row * LANE + 2 + BAR / 2 for row in rows.values()], "text": texts, "color": ui["text"]})
    return left_names(table, height)


def _flight_layers(
    in_flight: pd.DataFrame, window: Window, x: Any, height: int, theme: Theme, note: str, name: str
) -> list[Any]:
    """Microbatches whose activations one stage keeps, as a stepped area under the lanes."""
    colors, ui = phase_colors(theme), ui_colors(theme)
    bottom, most = height - 2, max(1, int(in_flight["count"].max()))
    shown = in_flight[(in_flight["t_s"] >= window.start_s) & (in_flight["t_s"] <= window.end_s)]
    starts = shown["t_s"].to_list()
    table = pd.DataFrame(
        {
            "x": starts, "x2": [*starts[1:], window.end_s], "y2": bottom,
            "y": bottom - shown["count"].to_numpy() * (FLIGHT - 6) / most,
            "fill": colors["recompute"].fill, "outline": "transparent", "count": shown["count"],
        }
    )  # fmt: skip
    tips = [alt.Tooltip("count:Q", title=t("microbatches in flight")), alt.Tooltip("x:Q", title=t("from, s"))]
    corners = [
        {"x": px, "y": row["y"], "order": 2 * i + j, "path": "edge", "color": colors["recompute"].outline}
        for i, row in enumerate(table.to_dict("records"))
        for j, px in enumerate((row["x"], row["x2"]))
    ]
    top = height - FLIGHT
    names = pd.DataFrame(
        [
            {"y": top + 8, "text": t("in flight"), "color": ui["text"]},
            {"y": top + 24, "text": name, "color": ui["muted"]},
        ]
    )
    notes = pd.DataFrame([{"x": window.end_s, "y": top - 7, "text": note, "color": ui["muted"]}])
    area = box_layer(table, x=x, height=height, stroke_width=0, tooltip=tips)
    return [
        area.encode(fillOpacity=alt.FillOpacityValue(0.28)),
        path_layer(pd.DataFrame(corners), x=x, height=height, strokeWidth=1.5),
        left_names(names, height),
        text_layer(notes, x=x, height=height, align="right", baseline="middle"),
    ]
