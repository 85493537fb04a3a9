"""Tables of Watch's charts: what a bar of the timeline says."""

from __future__ import annotations

import numpy as np
import pytest

from tpdpdash.compare.prediction import Prediction
from tpdpdash.telemetry.analysis import StepBand
from tpdpdash.ui.live_tables import action_rows, drawn_span, heat_legend, step_time_table, timeline_table


@pytest.mark.parametrize(
    ("kind", "words"),
    [("F", "forward"), ("B", "backward"), ("I", "input gradients"), ("W", "weight gradients")],
)
def test_each_kind_of_pass_is_told_in_words_with_its_part_of_the_model(kind: str, words: str) -> None:
    (bar,) = action_rows("rank 0", [(kind, 3, 5, 0.0, 1.0)], 100.0, "light")
    assert bar["label"] == f"{words} of microbatch 5, stage 3"


def test_a_split_backward_has_backwards_colour() -> None:
    whole, inputs, weights = (action_rows("rank 0", [(k, 0, 0, 0.0, 1.0)], 100.0, "light")[0] for k in "BIW")
    assert whole["fill"] == inputs["fill"] == weights["fill"]


@pytest.mark.parametrize(("lanes", "microbatches", "until_s"), [(16, 16, 32.0), (16, 64, 64.0), (2, 256, 512.0)])
def test_a_lane_ends_where_its_bars_end_and_waits_nowhere_that_they_are_left_out(
    lanes: int, microbatches: int, until_s: float
) -> None:
    lane = [(kind, 0, m, 2.0 * m + (kind == "B"), 1.0) for m in range(microbatches) for kind in "FB"]
    actions = dict.fromkeys(range(lanes), lane)
    assert drawn_span(actions) == (until_s, 2.0 * microbatches)
    table = timeline_table(actions, until_s, {}, "light")
    bars = table[table["kind"] == "bar"]
    waiting = bars["label"] == "waiting and messages"
    assert set(bars[waiting]["x2"]) == {until_s}
    assert list(bars[~waiting].groupby("row")["x2"].max().unique()) == [until_s]
    assert (~waiting).sum() == lanes * until_s <= 1024


def test_the_heat_maps_legend_begins_with_the_noise_and_names_no_share_below_it() -> None:
    assert list(heat_legend("light", 0.26)[1].values()) == ["median, or noise", "+ 26 %", "+ 32 %", "+ 50 % or more"]
    assert list(heat_legend("light", 1.09)[1].values()) == ["median, or noise", "+ 109 % or more"]
    assert len(heat_legend("light", 0.0)[1]) == 8


def test_a_prediction_is_a_band_from_the_first_step_to_the_last() -> None:
    seconds = np.array([2.0, 2.1, 2.2])
    band = StepBand(steps=np.array([1, 2, 3]), min_s=seconds, median_s=seconds, max_s=seconds)
    drawn = step_time_table(band, None, Prediction(step_s=2.0, error_frac=0.1))
    ends = drawn[drawn["kind"] == "predicted"]
    assert list(ends["step"]) == [1, 3]
    assert list(ends["low_s"]) == pytest.approx([1.8, 1.8])
    assert list(ends["high_s"]) == pytest.approx([2.2, 2.2])
    unknown = step_time_table(band, None, Prediction(step_s=2.0))
    assert list(unknown["low_s"][-2:]) == list(unknown["high_s"][-2:]) == [2.0, 2.0]
    assert "predicted" not in set(step_time_table(band, None, None)["kind"])
