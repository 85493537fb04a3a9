"""The charts of Watch as constant Vega-Lite specs: everything that changes from tick to tick stands in the table.

A spec that changes makes the browser build the chart anew; one that stays is only handed new rows. So a spec depends
on the chart, the theme, the language and the number of rows that are drawn, and colours, labels and limits come with
the data. Building one takes microseconds: it is made anew each time, in the reader's language.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tpdpdash.charts.palette import Theme, chart_theme, ui_colors
from tpdpdash.text import t

Spec = dict[str, Any]
ROW_PX = 24
AXIS_PX = 46
FIGURE_PX, LABEL_PX = 66, 22


ALL_KINDS = ("step", "predicted", "image", "chosen", "bar", "number", "limit")
"""Kinds of rows in the tables of live charts."""


def _spec(layers: list[Spec], *, theme: Theme, height: int) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "height": height,
        # Streamlit leaves 20 px below a chart that does not say otherwise.
        "padding": {"left": 4, "right": 8, "top": 4, "bottom": 2},
        "layer": layers,
        "config": chart_theme(theme),
    }


def _step_axis() -> Spec:
    axis = {"title": t("Step"), "grid": False, "tickMinStep": 1, "format": "d", "tickCount": 7}
    return {"field": "step", "type": "quantitative", "axis": axis, "scale": {"zero": False, "nice": False}}


def _y(field: str) -> Spec:
    axis = {"title": None, "tickCount": 5, "domain": False, "ticks": False}
    return {"field": field, "type": "quantitative", "axis": axis, "scale": {"zero": False, "nice": True}}


def _of_kind(kind: str) -> list[Spec]:
    return [{"filter": f"datum.kind == '{kind}'"}]


def for_kinds(spec: Spec, kinds: Collection[str]) -> Spec:
    """The spec without layers whose kind of row the table lacks: Vega warns of an axis without values."""
    missing = [_of_kind(kind) for kind in ALL_KINDS if kind not in kinds]
    return {**spec, "layer": [layer for layer in spec["layer"] if layer.get("transform") not in missing]}


def step_time_spec(theme: Theme) -> Spec:
    """Step time: band from the quickest to the slowest rank, the median as a line, the prediction dashed in its error.

    Table: kind ("step" or "predicted"), step, low_s, median_s, high_s; a prediction is two rows, low_s to high_s its
    error bar.
    """
    ui = ui_colors(theme)
    tooltip = [
        {"field": "step", "type": "quantitative", "title": t("step"), "format": "d"},
        {"field": "low_s", "type": "quantitative", "title": t("quickest rank, s"), "format": ".3f"},
        {"field": "median_s", "type": "quantitative", "title": t("median, s"), "format": ".3f"},
        {"field": "high_s", "type": "quantitative", "title": t("slowest rank, s"), "format": ".3f"},
    ]
    band = {
        "transform": _of_kind("step"),
        "mark": {"type": "area", "opacity": 0.35, "color": ui["axis"]},
        "encoding": {"x": _step_axis(), "y": _y("low_s"), "y2": {"field": "high_s"}},
    }
    line = {
        "transform": _of_kind("step"),
        "mark": {"type": "line", "strokeWidth": 1.8, "color": ui["text"], "point": False},
        "encoding": {"x": _step_axis(), "y": _y("median_s")},
    }
    predicted = {
        "transform": _of_kind("predicted"),
        "mark": {"type": "line", "strokeDash": [5, 4], "strokeWidth": 1.5, "color": ui["primary"]},
        "encoding": {"x": _step_axis(), "y": _y("median_s")},
    }
    error = {
        "transform": _of_kind("predicted"),
        "mark": {"type": "area", "opacity": 0.14, "color": ui["primary"]},
        "encoding": {"x": _step_axis(), "y": _y("low_s"), "y2": {"field": "high_s"}},
    }
    points = {
        "transform": _of_kind("step"),
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 0},
        "encoding": {"x": _step_axis(), "y": _y("median_s"), "tooltip": tooltip},
    }
    return _spec([error, band, predicted, line, points], theme=theme, height=250)


def heat_spec(theme: Theme) -> Spec:
    """Rank × step as one image with real axes.

    Table: kind "image" (one row: url, first_step, last_step, first_row, last_row: edges) and kind "chosen"
    (at most one row: the same edges around one rank).
    """
    ui = ui_colors(theme)
    x_axis = {"title": t("Step"), "grid": False, "format": "d", "tickMinStep": 1, "tickCount": 7}
    y_axis = {"title": t("Rank"), "grid": False, "format": "d", "tickMinStep": 1, "domain": False, "ticks": False}
    x = {"field": "first_step", "type": "quantitative", "axis": x_axis, "scale": {"zero": False, "nice": False}}
    y = {
        "field": "first_row",
        "type": "quantitative",
        "axis": y_axis,
        "scale": {"zero": False, "nice": False, "reverse": True},
    }
    edges = {"x": x, "x2": {"field": "last_step"}, "y": y, "y2": {"field": "last_row"}}
    image = {
        "transform": _of_kind("image"),
        "mark": {"type": "image", "aspect": False, "smooth": False},
        "encoding": {**edges, "url": {"field": "url", "type": "nominal"}},
    }
    chosen = {
        "transform": _of_kind("chosen"),
        "mark": {"type": "rect", "fillOpacity": 0, "stroke": ui["text"], "strokeWidth": 1.2},
        "encoding": edges,
    }
    return _spec([image, chosen], theme=theme, height=220)


def _bar_layer(x: Spec, *, key: str) -> Spec:
    """Segments from x to x2 in the row `row`, each with its own fill and outline."""
    return {
        "transform": _of_kind(key),
        "mark": {"type": "bar", "height": {"band": 0.74}, "strokeWidth": 1},
        "encoding": {
            "x": x,
            "x2": {"field": "x2"},
            "y": _row_axis(),
            "fill": {"field": "fill", "type": "nominal", "scale": None, "legend": None},
            "stroke": {"field": "outline", "type": "nominal", "scale": None, "legend": None},
            "tooltip": [
                {"field": "row", "type": "nominal", "title": t("rank")},
                {"field": "label", "type": "nominal", "title": t("what")},
                {"field": "shown", "type": "nominal", "title": t("value")},
            ],
        },
    }


def _row_axis() -> Spec:
    axis = {"title": None, "domain": False, "ticks": False, "labelLimit": 160, "labelPadding": 8}
    return {"field": "row", "type": "nominal", "sort": None, "axis": axis}


def phases_spec(theme: Theme, num_rows: int) -> Spec:
    """What each rank does in a step: a stacked bar a rank.

    Table: kind "bar": row (its label), x, x2 (seconds), fill, outline, label (the phase), shown ("0.84 s · 21 %").
    """
    x = {
        "field": "x",
        "type": "quantitative",
        "axis": {"title": t("Seconds a step, mean of the window"), "grid": True, "tickCount": 6},
        "scale": {"zero": True, "nice": False},
    }
    return _spec([_bar_layer(x, key="bar")], theme=theme, height=num_rows * ROW_PX + AXIS_PX)


def timeline_spec(theme: Theme, num_rows: int, title: str) -> Spec:
    """One step as it was predicted and measured, on one axis: a lane a stage or rank, numbered microbatches.

    Table: kind "bar" (as in phases_spec, x in seconds since the step began) and kind "number" (row, x, label, fill).
    """
    x = {
        "field": "x",
        "type": "quantitative",
        "axis": {"title": title, "grid": True, "tickCount": 6},
        "scale": {"zero": True, "nice": False},
    }
    numbers = {
        "transform": _of_kind("number"),
        "mark": {"type": "text", "baseline": "middle", "align": "center", "fontSize": 12},
        "encoding": {
            "x": x,
            "y": _row_axis(),
            "text": {"field": "label", "type": "nominal"},
            "color": {"field": "fill", "type": "nominal", "scale": None, "legend": None},
        },
    }
    return _spec([_bar_layer(x, key="bar"), numbers], theme=theme, height=num_rows * ROW_PX + AXIS_PX)


def loss_spec(theme: Theme) -> Spec:
    """Loss: thin as it is, thick smoothed. Table: step, loss, smoothed."""
    ui = ui_colors(theme)
    tooltip = [
        {"field": "step", "type": "quantitative", "title": t("step"), "format": "d"},
        {"field": "loss", "type": "quantitative", "title": t("loss"), "format": ".4f"},
    ]
    raw = {
        "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.45, "color": ui["axis"]},
        "encoding": {"x": _step_axis(), "y": _y("loss")},
    }
    smooth = {
        "mark": {"type": "line", "strokeWidth": 1.8, "color": ui["primary"]},
        "encoding": {"x": _step_axis(), "y": _y("smoothed")},
    }
    points = {
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 0},
        "encoding": {"x": _step_axis(), "y": _y("loss"), "tooltip": tooltip},
    }
    return _spec([raw, smooth, points], theme=theme, height=200)


def memory_spec(theme: Theme, num_rows: int) -> Spec:
    """Peak memory of each rank against what there is.

    Table: kind "bar" (row, x, x2 in GiB, fill, outline, label, shown), "predicted" (row, x), "limit" (x, label).
    Its figures stand at the right.
    """
    ui = ui_colors(theme)
    x = {
        "field": "x",
        "type": "quantitative",
        "axis": {"title": t("GiB"), "grid": True, "tickCount": 3},
        "scale": {"zero": True, "nice": False},
    }
    predicted = {
        "transform": _of_kind("predicted"),
        "mark": {"type": "tick", "thickness": 2, "color": ui["text"], "size": 0.74 * ROW_PX},
        "encoding": {"x": x, "y": _row_axis()},
    }
    limit = {
        "transform": _of_kind("limit"),
        "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5, "color": ui["bad"]},
        "encoding": {"x": x},
    }
    limit_text = {
        "transform": _of_kind("limit"),
        "mark": {"type": "text", "color": ui["bad"], "align": "right", "dx": 4, "dy": -8},
        "encoding": {"x": x, "y": {"value": 0}, "text": {"field": "label", "type": "nominal"}},
    }
    figures = {
        "transform": _of_kind("bar"),
        "mark": {"type": "text", "baseline": "middle", "align": "right", "dx": FIGURE_PX, "color": ui["text"]},
        "encoding": {
            "x": {"value": {"expr": "width"}},
            "y": _row_axis(),
            "text": {"field": "shown", "type": "nominal"},
        },
    }
    layers = [_bar_layer(x, key="bar"), predicted, limit, limit_text, figures]
    # The figures stand right of the axis, the limit's name above it: the browser leaves room for both.
    return _spec(layers, theme=theme, height=num_rows * ROW_PX + AXIS_PX + LABEL_PX)
