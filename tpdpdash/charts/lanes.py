"""Rows of a chart: which are drawn when there are too many, and their names at the left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from tpdpdash.charts.canvas import y_sheet


def spread(values: Sequence[int], limit: int) -> tuple[int, ...]:
    """At most `limit` of the values: first, last and evenly spaced ones between."""
    if len(values) <= limit:
        return tuple(values)
    step = (len(values) - 1) / (limit - 1)
    return tuple(values[round(i * step)] for i in range(limit))


def left_names(table: pd.DataFrame, height: int) -> Any:
    """Names in the padding at the left of a sheet: columns y, text, color."""
    return (
        alt.Chart(table)
        .mark_text(align="right", baseline="middle", dx=-8)
        .encode(
            x=alt.XValue(0),
            y=y_sheet("y", height),
            text=alt.Text("text:N"),
            color=alt.Color("color:N", scale=None, legend=None),
            tooltip=alt.TooltipValue(None),
        )
    )
