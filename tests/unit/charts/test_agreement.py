"""Predicted against measured on two logarithmic axes."""

import pandas as pd
import pytest

from tpdpdash.charts.agreement import ROOM, agreement


def table():
    rows = {"measured": [1.0, 10.0], "predicted": [2.0, 9.0], "chosen": [True, False], "worst": [True, False]}
    return pd.DataFrame(
        {**rows, "name": ["a", "b"], "shown": ["2 s, 1 s", "9 s, 10 s"], "error": ["+ 100 %", "− 10 %"]}
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_axes_are_logarithmic_and_alike(theme):
    spec = agreement(table(), theme, unit="s", description="two runs").to_dict()
    points = spec["layer"][1]["encoding"]
    assert (
        points["x"]["scale"] == points["y"]["scale"] == {"type": "log", "domain": [1 / ROOM, 10 * ROOM], "nice": False}
    )
    assert points["x"]["axis"]["values"] == [1.0, 10.0]
    assert (points["x"]["axis"]["title"], points["y"]["axis"]["title"]) == ("Measured, s", "Predicted, s")
    assert spec["description"] == "two runs"


def test_runs_that_are_left_out_are_fainter_and_the_worst_has_a_ring():
    spec = agreement(table(), "light", unit="s", description="").to_dict()
    data = spec["datasets"]
    dots = data[spec["layer"][1]["data"]["name"]]
    by_name = {dot["name"]: dot for dot in dots}
    assert by_name["a"]["opacity"] > by_name["b"]["opacity"]
    assert by_name["a"]["color"] != by_name["b"]["color"]
    (ring,) = data[spec["layer"][2]["data"]["name"]]
    assert ring["name"] == "a"
