"""Layers that several charts share: boxes, texts and lines on a sheet whose height is in pixels.

Sheets measure y in pixels downwards and x in units of their own, because the window decides the width: what depends
on it (font sizes, whether a number fits its box) is an expression over the browser's `width`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from tpdpdash.charts.palette import Theme, chart_theme

Domain = tuple[float, float]


def x_sheet(name: str, domain: Domain) -> Any:
    """The x channel of a sheet without an axis."""
    return alt.X(f"{name}:Q", scale=alt.Scale(domain=list(domain), nice=False, zero=False), axis=None)


def y_sheet(name: str, height: int) -> Any:
    """The y channel of a sheet: pixels from the top."""
    return alt.Y(f"{name}:Q", scale=alt.Scale(domain=[height, 0], nice=False, zero=False), axis=None)


def box_layer(
    table: pd.DataFrame,
    *,
    x: Any,
    height: int,
    radius: int = 0,
    stroke_width: Any = 1,
    tooltip: Sequence[Any] = (),
) -> Any:
    """Rectangles: columns x, x2, y, y2, fill, outline. `x` is the x channel, with or without an axis."""
    return (
        alt.Chart(table)
        .mark_rect(cornerRadius=radius, strokeWidth=stroke_width)
        .encode(
            x=x,
            x2=alt.X2("x2:Q"),
            y=y_sheet("y", height),
            y2=alt.Y2("y2:Q"),
            fill=alt.Fill("fill:N", scale=None, legend=None),
            stroke=alt.Stroke("outline:N", scale=None, legend=None),
            tooltip=list(tooltip) or alt.TooltipValue(None),
        )
    )


def text_layer(table: pd.DataFrame, *, x: Any, height: int, text: str = "text", **mark: Any) -> Any:
    """Texts: columns x, y, color and the one named by `text`; `mark` are mark_text's own properties."""
    return (
        alt.Chart(table)
        .mark_text(**mark)
        .encode(
            x=x,
            y=y_sheet("y", height),
            text=alt.Text(f"{text}:N"),
            color=alt.Color("color:N", scale=None, legend=None),
            tooltip=alt.TooltipValue(None),
        )
    )


def whisker_layer(table: pd.DataFrame, *, x: Any, height: int) -> Any:
    """Error bars along x: columns x, x2, y, color."""
    color = alt.Color("color:N", scale=None, legend=None)
    line = (
        alt.Chart(table)
        .mark_rule(strokeWidth=1.4, clip=True)
        .encode(x=x, x2=alt.X2("x2:Q"), y=y_sheet("y", height), color=color, tooltip=alt.TooltipValue(None))
    )
    ends = pd.concat([table, table.assign(x=table["x2"])], ignore_index=True)
    ticks = (
        alt.Chart(ends)
        .mark_tick(orient="vertical", size=7, thickness=1.4, clip=True)
        .encode(x=x, y=y_sheet("y", height), color=color, tooltip=alt.TooltipValue(None))
    )
    return alt.layer(line, ticks)


def path_layer(table: pd.DataFrame, *, x: Any, height: int, **mark: Any) -> Any:
    """Lines: columns path (which line), order, x, y, color."""
    return (
        alt.Chart(table)
        .mark_line(**{"strokeJoin": "round", "strokeCap": "round", **mark})
        .encode(
            x=x,
            y=y_sheet("y", height),
            detail=alt.Detail("path:N"),
            order=alt.Order("order:Q"),
            stroke=alt.Stroke("color:N", scale=None, legend=None),
            tooltip=alt.TooltipValue(None),
        )
    )


def right_text_layer(table: pd.DataFrame, *, height: int, **mark: Any) -> Any:
    """Figures that stand at the right edge whatever the width: columns y, color and text."""
    return (
        alt.Chart(table)
        .mark_text(**{"align": "right", "baseline": "middle", **mark})
        .encode(
            x=alt.XValue(alt.expr("width")),
            y=y_sheet("y", height),
            text=alt.Text("text:N"),
            color=alt.Color("color:N", scale=None, legend=None),
            tooltip=alt.TooltipValue(None),
        )
    )


def font_that_fits(span: float, per_text: float, characters: int, largest: float = 12.5) -> Any:
    """Font size at which `characters` fit in `per_text` of the `span` units that the chart is wide."""
    # A digit of the interface font is about 0.55 em wide; 0.66 leaves a margin at both sides.
    room = per_text / (span * 0.66 * max(1, characters))
    return alt.expr(f"max(6, min({largest}, width * {room:.5f}))")


def finish(layers: Sequence[Any], *, height: int, theme: Theme, description: str, **properties: Any) -> Any:
    """The layered chart with its constant height, the theme's config and its text for screen readers; `properties` are
    the chart's own besides."""
    # Only the width is fitted: a sheet's pixels stay pixels, whatever room its axis takes.
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    # All at once: properties and configure would each copy the whole chart.
    config = alt.Config(**chart_theme(theme))
    return alt.layer(*layers, height=height, description=description, autosize=fit, config=config, **properties)
