"""Memory against speed, and the pictures of split weights and passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tpdpdash.charts.pictures import PassBox, Split, pass_picture, weight_splits
from tpdpdash.charts.scatter import MAX_DOTS, ROOM, memory_speed, shown_dots
from tpdpdash.units import GIB


def dots(count: int) -> pd.DataFrame:
    """Layouts of growing memory and speed; every hundredth stands on the front."""
    index = np.arange(count)
    return pd.DataFrame(
        {
            "memory_bytes": (10 + index * 100 / count) * GIB,
            "speed": 100.0 + index / count,
            "name": [f"TP {i}" for i in index],
            "layout": [f"tp{i}" for i in index],
            "on_front": index % 100 == 0,
            "is_pick": index == count // 2,
        }
    )


def test_many_layouts_are_thinned_but_the_front_is_whole() -> None:
    table = dots(20_000)
    shown = shown_dots(table, 80 * GIB)
    near = table[table["memory_bytes"] <= 80 * GIB * ROOM]
    assert shown["on_front"].sum() == near["on_front"].sum()
    assert (~shown["on_front"] & ~shown["is_pick"]).sum() <= MAX_DOTS
    assert shown["memory_bytes"].max() <= 80 * GIB * ROOM


def test_the_best_layout_is_named_and_the_limit_drawn() -> None:
    spec = memory_speed(shown_dots(dots(500), 80 * GIB), "light", capacity_bytes=80 * GIB, pick_label="pick: TP 8")
    texts = {row.get("text") for rows in spec.to_dict()["datasets"].values() for row in rows}
    assert {"pick: TP 8", "does not fit"} <= texts


def test_the_error_of_the_best_is_drawn_where_it_is_known() -> None:
    shown = shown_dots(dots(500), 80 * GIB)
    speed = float(shown[shown["is_pick"]]["speed"].iloc[0])
    spec = memory_speed(shown, "light", capacity_bytes=80 * GIB, pick_label="", error_frac=0.1).to_dict()
    ends = [row for rows in spec["datasets"].values() for row in rows if "top" in row and "name" in row]
    assert [(row["speed"], row["top"]) for row in ends] == [(speed * 0.9, speed * 1.1)]


def test_no_layout_at_all_still_gives_a_picture() -> None:
    empty = dots(10).iloc[:0]
    assert memory_speed(empty, "dark", capacity_bytes=80 * GIB, pick_label="").to_dict()["height"] > 0


def rows_of(chart: Any) -> list[dict[str, Any]]:
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def test_slices_divide_the_weight_and_the_chosen_one_is_lit() -> None:
    splits = [
        Split(title="up", direction="columns", labels=["t0", "t1", "t2", "t3"], chosen=(1,)),
        Split(title="down", direction="rows", labels=["t0", "t1"], chosen=(0,)),
    ]
    boxes = [row for row in rows_of(weight_splits(splits, "light")) if "x2" in row and "y2" in row]
    widths = [box["x2"] - box["x"] for box in boxes[:4]]
    assert widths == pytest.approx([0.25] * 4)
    assert len({box["fill"] for box in boxes[:4]}) == 2


def test_more_slices_than_can_be_labelled_keep_the_label_of_the_chosen_one() -> None:
    labels = [f"t{i}" for i in range(64)]
    chart = weight_splits([Split(title="up", direction="columns", labels=labels, chosen=(7,))], "light")
    assert {row["text"] for row in rows_of(chart) if "x2" in row} == {"", "t7"}


def test_messages_cover_their_lanes_and_are_hollow() -> None:
    boxes = [
        PassBox(lanes=(0, 0), start=0, steps=1, text="X · W₁", phase="forward"),
        PassBox(lanes=(0, 1), start=1, steps=1, text="all-reduce", note="Y", phase="tp", is_message=True),
    ]
    chart = pass_picture(["g0", "g1"], boxes, "light", description="Forward pass")
    work, message = [row for row in rows_of(chart) if row.get("text") in ("X · W₁", "all-reduce") and "x2" in row][:2]
    assert work["fill"] == work["outline"]
    assert message["fill"] != message["outline"]
    assert message["y2"] - message["y"] > 2 * (work["y2"] - work["y"])
