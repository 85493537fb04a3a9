"""The pipeline timeline: bounded marks, windows that cover the whole step, and lanes that stay few."""

from __future__ import annotations

import pandas as pd
import pytest

from tpdpdash.charts.lanes import spread
from tpdpdash.charts.timeline import BAR, LOW_BAR, MAX_LANES, MAX_MARKS, timeline, window_of


def bars(stages: int, microbatches: int) -> pd.DataFrame:
    """F then B of each microbatch on each stage, one second each, without gaps."""
    rows = [
        (stage, kind, str(i), stage + 2.0 * i + shift, stage + 2.0 * i + shift + 1)
        for stage in range(stages)
        for i in range(microbatches)
        for shift, kind in enumerate(("forward", "backward"))
    ]
    return pd.DataFrame(rows, columns=["lane", "kind", "label", "start_s", "end_s"])


def test_a_short_step_is_one_window_with_every_bar() -> None:
    window = window_of(bars(4, 8), 20.0)
    assert window.num_windows == 1
    assert len(window.bars) == 64
    assert (window.start_s, window.end_s) == (0.0, 20.0)


def test_no_window_of_a_long_step_exceeds_the_bound_and_together_they_show_every_bar() -> None:
    table = bars(12, 300)
    total = float(table["end_s"].max())
    first = window_of(table, total)
    seen: set[tuple[int, str, str]] = set()
    edge = 0.0
    for index in range(first.num_windows):
        window = window_of(table, total, index=index)
        assert len(window.bars) <= MAX_MARKS
        assert window.start_s == pytest.approx(edge)
        edge = window.end_s
        seen |= set(map(tuple, window.bars[["lane", "kind", "label"]].to_numpy()))
    assert edge == pytest.approx(total)
    assert len(seen) == len(table)


def test_many_stages_keep_the_first_and_the_last() -> None:
    window = window_of(bars(64, 4), 100.0)
    assert len(window.lanes) == MAX_LANES
    assert (window.lanes[0], window.lanes[-1]) == (0, 63)


def test_spread_keeps_short_lists_whole() -> None:
    assert spread((3, 5, 9), 4) == (3, 5, 9)


def test_the_height_depends_on_the_number_of_lanes_only() -> None:
    heights = {
        timeline(window_of(bars(4, m), 99.0), "light", pipeline_end_s=90.0).to_dict()["height"] for m in (1, 8, 32)
    }
    assert len(heights) == 1


def test_lanes_carry_a_hollow_bubble_behind_the_bars_and_numbers_only_where_they_fit() -> None:
    flight = pd.DataFrame({"t_s": [0.0, 1.0, 5.0], "count": [1, 2, 0]})
    spec = timeline(
        window_of(bars(2, 2), 7.0), "dark", pipeline_end_s=6.0, in_flight=flight, in_flight_note="2 at most"
    ).to_dict()
    first = spec["datasets"][spec["layer"][0]["data"]["name"]]
    assert {row["x2"] for row in first} == {6.0}
    assert all(row["fill"] != row["outline"] for row in first)
    filters = [t["filter"] for layer in spec["layer"] for t in layer.get("transform", ())]
    assert any("width" in str(text) for text in filters)


def test_a_weight_gradient_is_a_low_bar_of_the_backwards_colour() -> None:
    rows = [
        (0, kind, "0", float(i), i + 1.0) for i, kind in enumerate(("backward", "input_gradient", "weight_gradient"))
    ]
    table = pd.DataFrame(rows, columns=["lane", "kind", "label", "start_s", "end_s"])
    chart = timeline(window_of(table, 3.0), "light", pipeline_end_s=3.0).to_dict()
    drawn = next(each for each in chart["datasets"].values() if "seconds" in each[0])
    assert len({bar["fill"] for bar in drawn}) == 1
    heights = [bar["y2"] - bar["y"] for bar in drawn]
    assert heights == [BAR, BAR, LOW_BAR]
    assert [bar["phase"] for bar in drawn] == ["backward", "input gradients", "weight gradients"]
