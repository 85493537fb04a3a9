"""Predicted against measured: every run a dot on two logarithmic axes, the diagonal where both agree."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from tpdpdash.charts.canvas import finish
from tpdpdash.charts.palette import Theme, ui_colors
from tpdpdash.text import t

HEIGHT = 420
BAND_FRAC = 0.1
"""Dots inside the band are within this share of what was measured."""
ROOM = 1.25


def agreement(table: pd.DataFrame, theme: Theme, *, unit: str, description: str) -> Any:
    """Columns measured, predicted (in `unit`), chosen, worst, and the texts name, shown, error for the tooltip.

    Runs that are not chosen are grey; the worst of the chosen ones have a ring.
    """
    ui = ui_colors(theme)
    values = pd.concat([table["measured"], table["predicted"]])
    low, high = float(values.min()) / ROOM, float(values.max()) * ROOM
    x, y = (
        _axis("x", t("Measured, {unit}", unit=unit), low, high),
        _axis("y", t("Predicted, {unit}", unit=unit), low, high),
    )
    dots = table.assign(
        color=[ui["primary"] if chosen else ui["axis"] for chosen in table["chosen"]],
        opacity=[0.55 if chosen else 0.22 for chosen in table["chosen"]],
    ).sort_values("chosen")
    points = (
        alt.Chart(dots)
        .mark_circle(size=30, strokeWidth=0)
        .encode(
            x=x,
            y=y,
            color=alt.Color("color:N", scale=None, legend=None),
            opacity=alt.Opacity("opacity:Q", scale=None, legend=None),
            tooltip=[
                alt.Tooltip("name:N", title=t("run")),
                alt.Tooltip("shown:N", title=t("predicted, measured")),
                alt.Tooltip("error:N", title=t("error")),
            ],
        )
    )
    rings = (
        alt.Chart(table[table["worst"]])
        .mark_point(size=90, filled=False, strokeWidth=1.6, color=ui["warn"])
        .encode(x=x, y=y, tooltip=alt.TooltipValue(None))
    )
    return finish([_band(low, high, x, y, theme), points, rings], height=HEIGHT, theme=theme, description=description)


def _axis(channel: str, title: str, low: float, high: float) -> Any:
    powers = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    axis = alt.Axis(title=title, grid=channel == "y", format="~g", values=powers)
    make = alt.X if channel == "x" else alt.Y
    field = "measured:Q" if channel == "x" else "predicted:Q"
    return make(field, scale=alt.Scale(type="log", domain=[low, high], nice=False), axis=axis)


def _band(low: float, high: float, x: Any, y: Any, theme: Theme) -> Any:
    """The diagonal, and the runs within BAND_FRAC of it."""
    ui = ui_colors(theme)
    ends = pd.DataFrame([{"measured": end, "predicted": end} for end in (low, high)])
    edges = ends.assign(predicted=ends["measured"] * (1 - BAND_FRAC), top=ends["measured"] * (1 + BAND_FRAC))
    area = (
        alt.Chart(edges)
        .mark_area(color=ui["axis"], opacity=0.25, clip=True)
        .encode(x=x, y=y, y2=alt.Y2("top:Q"), tooltip=alt.TooltipValue(None))
    )
    line = (
        alt.Chart(ends)
        .mark_line(color=ui["text"], strokeWidth=1, clip=True)
        .encode(x=x, y=y, tooltip=alt.TooltipValue(None))
    )
    return alt.layer(area, line)
