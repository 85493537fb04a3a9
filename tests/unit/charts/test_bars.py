"""Stacked bars: parts add up, keep one order, start at zero, and totals stand in the same picture."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from tpdpdash.charts.bars import memory_bars, refused_bars, stacked, step_bars
from tpdpdash.charts.palette import MEMORY_ORDER, PHASE_ORDER, memory_colors, phase_colors, ui_colors
from tpdpdash.units import GIB

MEMORY = pd.DataFrame(
    [
        (row, part, size * GIB)
        for row, extra in enumerate((0.0, 3.0))
        for part, size in (("activations", 20.0), ("weights", 8.0 + extra), ("logits", extra), ("optimizer", 12.0))
    ],
    columns=["row", "part", "value"],
)
STEP = pd.DataFrame(
    [(row, part, seconds) for row in (0, 1) for part, seconds in (("tp", 1.0), ("forward", 10.0), ("bubble", 0.5))],
    columns=["row", "part", "value"],
)


def rows_of(chart: Any) -> list[dict[str, Any]]:
    """Every row of every layer."""
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def test_segments_touch_each_other_in_stack_order_and_end_at_the_sum() -> None:
    table = stacked(MEMORY, MEMORY_ORDER)
    one = table[table["row"] == 0]
    assert list(one["part"]) == ["weights", "optimizer", "activations"]
    assert list(one["start"]) == pytest.approx([0.0, *one["end"].iloc[:-1]])
    assert one["end"].iloc[-1] == pytest.approx(40.0 * GIB)


def test_parts_of_nothing_are_not_drawn() -> None:
    table = stacked(MEMORY, MEMORY_ORDER)
    assert "logits" not in set(table[table["row"] == 0]["part"])
    assert "logits" in set(table[table["row"] == 1]["part"])


def test_memory_is_held_against_the_limit_and_says_its_total() -> None:
    chart = memory_bars(MEMORY, "light", capacity_bytes=39 * GIB, names=["stage 0", "stage 1"])
    rows = rows_of(chart)
    texts = {row.get("text"): row.get("color") for row in rows}
    assert texts["40.0 GiB"] == ui_colors("light")["bad"]
    assert "39.0 GiB usable" in texts
    fills = {row["fill"] for row in rows if "fill" in row}
    assert memory_colors("light")["activations"].fill in fills
    assert "stage 1: 46.0 GiB" in chart.to_dict()["description"]


def test_the_step_starts_at_zero_in_the_colours_of_its_phases() -> None:
    chart = step_bars(STEP, "dark", names=["a", "b"], figures=["11.5 s", "11.5 s"], title="Whole step")
    segments = [row for row in rows_of(chart) if "what" in row]
    assert min(row["x"] for row in segments) == 0
    assert [s["fill"] for s in segments[:3]] == [phase_colors("dark")[p].fill for p in ("forward", "tp", "bubble")]


def test_figures_in_bars_all_have_three_digits() -> None:
    chart = step_bars(STEP.assign(value=[0.2, 0.55, 100.0, 6.42][: len(STEP)] + [1.0] * (len(STEP) - 4)), "light",
                      names=["a", "b"], figures=["", ""])  # fmt: skip
    written = {row["text"] for row in rows_of(chart) if "what" in row}
    assert {"0.200", "0.550", "100", "6.42"} <= written


def test_shares_of_a_step_end_at_one() -> None:
    chart = step_bars(STEP, "light", names=["a", "b"], figures=["", ""], as_share=True)
    segments = [row for row in rows_of(chart) if "what" in row]
    assert max(row["x2"] for row in segments) == pytest.approx(1.0)


def test_every_phase_may_stand_in_a_step() -> None:
    table = pd.DataFrame([(0, phase, 1.0) for phase in PHASE_ORDER], columns=["row", "part", "value"])
    chart = step_bars(table, "light", names=["all"], figures=["14 s"])
    assert len({row["what"] for row in rows_of(chart) if "what" in row}) == len(PHASE_ORDER)


def test_refusals_for_memory_are_red_and_others_grey() -> None:
    table = pd.DataFrame(
        [("Out of memory", 4210, "closest is 3.1 GiB short", True), ("Heads", 416, "", False)],
        columns=["label", "count", "note", "is_limit"],
    )
    rows = rows_of(refused_bars(table, "light"))
    bars = {row["label"]: row["fill"] for row in rows if row.get("x2") is not None}
    assert bars == {"Out of memory": ui_colors("light")["bad"], "Heads": ui_colors("light")["axis"]}
    assert "4,210" in {row.get("text") for row in rows}


def whiskers(chart):
    rows = [row for table in chart.to_dict()["datasets"].values() for row in table]
    return [row for row in rows if set(row) == {"x", "x2", "y", "color"}]


def test_a_whisker_stands_under_each_bar_whose_error_is_known():
    chart = step_bars(STEP, "light", names=["a", "b"], figures=["", ""], errors=[1.5, math.nan])
    ends = whiskers(chart)
    total = float(STEP[STEP["row"] == 0]["value"].sum())
    assert {(row["x"], row["x2"]) for row in ends} >= {(total - 1.5, total + 1.5)}
    assert {row["y"] for row in ends} == {ends[0]["y"]}, "the second has none"
    shares = step_bars(STEP, "light", names=["a", "b"], figures=["", ""], errors=[1.5, 1.5], as_share=True)
    assert not whiskers(shares)
