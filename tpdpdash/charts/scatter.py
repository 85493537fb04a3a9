"""Memory against speed: every layout a dot, the best of each memory size a line, and the region that does not fit."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from tpdpdash.charts.canvas import finish
from tpdpdash.charts.palette import Theme, ui_colors
from tpdpdash.text import t
from tpdpdash.units import ceil_div, format_memory, gib

HEIGHT = 300
MAX_DOTS = 600
"""Dots of one picture: the front is always whole, of the others an even selection is drawn."""
ROOM = 1.3
"""The picture ends at this multiple of the usable memory; what needs more is counted in the caption."""


def shown_dots(table: pd.DataFrame, capacity_bytes: float) -> pd.DataFrame:
    """Columns memory_bytes, speed, on_front, is_pick → the rows that are drawn: near the limit, evenly thinned."""
    near = table[table["memory_bytes"] <= capacity_bytes * ROOM]
    keep = near["on_front"] | near["is_pick"]
    others = near[~keep]
    step = max(1, ceil_div(len(others), MAX_DOTS))
    result: pd.DataFrame = pd.concat([near[keep], others.iloc[::step]]).reset_index(drop=True)
    return result


def memory_speed(
    table: pd.DataFrame, theme: Theme, *, capacity_bytes: float, pick_label: str, error_frac: float | None = None
) -> Any:
    """Columns memory_bytes, speed (tokens/s per GPU), name, layout, on_front, is_pick, fits.

    The selection parameter is "pick" with the field "layout". error_frac: half-width of the error bar of the best's
    speed, as a share of it.
    """
    ui = ui_colors(theme)
    dots = table.assign(gib=gib(table["memory_bytes"]), memory=table["memory_bytes"].map(format_memory))
    capacity = gib(capacity_bytes)
    right = max(capacity * ROOM, float(dots["gib"].max()) if len(dots) else 0.0)
    low, high = _speed_range(dots)
    x = alt.X(
        "gib:Q",
        scale=alt.Scale(domain=[0, right], nice=False),
        axis=alt.Axis(title=t("Memory of the worst stage, GiB"), grid=False, tickCount=6),
    )
    y = alt.Y(
        "speed:Q",
        scale=alt.Scale(domain=[low, high], nice=False, zero=False),
        axis=alt.Axis(title=None, tickCount=6, domain=False, ticks=False),
    )
    layers = [*_limit(capacity, right, low, high, x, y, theme), *_dots(dots, x, y, theme)]
    texts = [
        {"gib": right * 0.01, "speed": high, "text": t("tokens/s per GPU"), "color": ui["muted"], "dy": 9},
    ]
    layers.append(_text(pd.DataFrame(texts), x, y, "left", 9, 4))
    best = dots[dots["is_pick"]]
    if len(best) and error_frac is not None:
        ends = best.assign(speed=best["speed"] * (1 - error_frac), top=best["speed"] * (1 + error_frac))
        rule = alt.Chart(ends).mark_rule(color=ui["text"], strokeWidth=1.5, clip=True)
        layers.append(rule.encode(x=x, y=y, y2=alt.Y2("top:Q"), tooltip=alt.TooltipValue(None)))
    if len(best):
        left_half = float(best["gib"].iloc[0]) < right / 2
        side, shift = ("left", 12) if left_half else ("right", -12)
        name = best.assign(text=pick_label, color=ui["text"])
        layers.append(_text(name, x, y, side, -14, shift, fontWeight=600))
    description = t(
        "Memory of the worst stage against tokens/s per GPU: {count} layouts; usable memory {capacity}.",
        count=len(dots), capacity=format_memory(capacity_bytes),
    )  # fmt: skip
    return finish(layers, height=HEIGHT, theme=theme, description=description)


def _speed_range(dots: pd.DataFrame) -> tuple[float, float]:
    """The axis may be cut: dots are positions, not bars. Slow outliers are kept inside."""
    if not len(dots):
        return 0.0, 1.0
    low, high = float(dots["speed"].min()), float(dots["speed"].max())
    margin = max(high - low, high * 0.05) * 0.14
    return max(0.0, low - margin), high + margin


def _limit(capacity: float, right: float, low: float, high: float, x: Any, y: Any, theme: Theme) -> list[Any]:
    ui = ui_colors(theme)
    region = pd.DataFrame([{"gib": capacity, "right": right, "speed": low, "top": high}])
    area = alt.Chart(region).mark_rect(color=ui["badbg"], opacity=1).encode(
        x=x, x2=alt.X2("right:Q"), y=y, y2=alt.Y2("top:Q"), tooltip=alt.TooltipValue(None)
    )  # fmt: skip
    line = (
        alt.Chart(region)
        .mark_rule(color=ui["bad"], strokeDash=[4, 3], strokeWidth=1.5)
        .encode(x=x, tooltip=alt.TooltipValue(None))
    )
    said = pd.DataFrame([{"gib": capacity, "speed": high, "text": t("does not fit"), "color": ui["bad"]}])
    return [area, line, _text(said, x, y, "left", 9, 5)]


def _dots(dots: pd.DataFrame, x: Any, y: Any, theme: Theme) -> list[Any]:
    ui = ui_colors(theme)
    pick = alt.selection_point(name="pick", fields=["layout"], empty=False)
    tips = [
        alt.Tooltip("name:N", title=t("layout")),
        alt.Tooltip("speed:Q", title=t("tokens/s per GPU"), format=",.4~g"),
        alt.Tooltip("memory:N", title=t("memory")),
    ]
    looks = dots.assign(
        color=[ui["primary"] if front else ui["axis"] for front in dots["on_front"]],
        size=[70 if front else 34 for front in dots["on_front"]],
        opacity=[1.0 if front else 0.5 for front in dots["on_front"]],
    )
    front = dots[dots["on_front"]].sort_values("gib")
    line = (
        alt.Chart(front)
        .mark_line(interpolate="step-after", color=ui["primary"], strokeWidth=2)
        .encode(x=x, y=y, tooltip=alt.TooltipValue(None))
    )
    points = (
        alt.Chart(looks)
        .mark_point(filled=True, stroke=ui["card"], strokeWidth=0.8)
        .encode(
            x=x,
            y=y,
            fill=alt.Fill("color:N", scale=None, legend=None),
            size=alt.Size("size:Q", scale=None, legend=None),
            opacity=alt.Opacity("opacity:Q", scale=None, legend=None),
            tooltip=tips,
        )
        .add_params(pick)
    )
    ring = (
        alt.Chart(dots[dots["is_pick"]])
        .mark_point(size=190, color=ui["text"], strokeWidth=2, filled=False)
        .encode(x=x, y=y, tooltip=alt.TooltipValue(None))
    )
    return [line, points, ring]


def _text(table: pd.DataFrame, x: Any, y: Any, align: str, dy: int, dx: int, **mark: Any) -> Any:
    return (
        alt.Chart(table)
        .mark_text(align=align, baseline="middle", dx=dx, dy=dy, **mark)
        .encode(
            x=x,
            y=y,
            text=alt.Text("text:N"),
            color=alt.Color("color:N", scale=None, legend=None),
            tooltip=alt.TooltipValue(None),
        )
    )
