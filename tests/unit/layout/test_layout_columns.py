"""Many layouts as columns: nothing is lost on the way there and back."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import layout_of

from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import SCHEDULES

LAYOUTS = [
    layout_of(8, tp=2, pp=4, dp=2),
    layout_of(8, pp=2, num_model_chunks=2, recompute="full", recompute_num_layers=3, recompute_method="block"),
    layout_of(8, cp=2, dp=4, ep=2, etp=1, rank_order="tp-cp-ep-pp-dp", zero_stage=3, dp_shard_size=2),
    layout_of(8, tp=8, recompute="selective", offload_optimizer=True, overlap_tp=True, sequence_parallel=False),
]


def test_layouts_come_back_as_they_went_in() -> None:
    columns = LayoutColumns.from_layouts(LAYOUTS)
    assert len(columns) == 4
    assert [columns.layout(row) for row in range(4)] == LAYOUTS


def test_rows_can_be_taken_and_joined() -> None:
    columns = LayoutColumns.from_layouts(LAYOUTS)
    some = columns.take(np.array([3, 1]))
    assert some.stage_layers.shape == (2, 2)
    joined = LayoutColumns.joined([some, columns.take(columns.pp > 2)])
    assert [joined.layout(row) for row in range(3)] == [LAYOUTS[3], LAYOUTS[1], LAYOUTS[0]]


def test_joined_columns_keep_their_own_rank_orders() -> None:
    parts = [LayoutColumns.from_layouts([layout]) for layout in LAYOUTS]
    joined = LayoutColumns.joined(parts)
    assert [joined.layout(row) for row in range(4)] == LAYOUTS
    assert joined.rank_orders == ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")


def test_built_columns_follow_the_defaults_of_a_job() -> None:
    columns = LayoutColumns.build(
        num_layers=8, tp=np.array([1, 2, 2]), pp=np.array([1, 4, 2]), dp=2, num_model_chunks=np.array([1, 1, 2])
    )
    assert [columns.layout(row) for row in range(3)] == [
        layout_of(8, dp=2),
        layout_of(8, tp=2, pp=4, dp=2),
        layout_of(8, tp=2, pp=2, dp=2, num_model_chunks=2),
    ]


def test_empty_columns_are_columns() -> None:
    columns = LayoutColumns.from_layouts(LAYOUTS).take(np.array([], np.int64))
    assert len(columns) == 0
    assert columns.world_size.shape == (0,)
    assert len(LayoutColumns.from_layouts([])) == 0


def test_derived_columns_are_those_of_each_layout() -> None:
    columns = LayoutColumns.from_layouts(LAYOUTS)
    assert columns.world_size.tolist() == [layout.world_size for layout in LAYOUTS]
    assert columns.expert_dp.tolist() == [layout.expert_dp for layout in LAYOUTS] == [2, 1, 4, 1]
    assert columns.num_microbatches(64).tolist() == [layout.num_microbatches(64) for layout in LAYOUTS]
    assert columns.is_schedule("interleaved").tolist() == [layout.schedule == "interleaved" for layout in LAYOUTS]
    assert columns.schedule.dtype == np.uint8
    assert SCHEDULES[columns.schedule[0]] == "1f1b"


def test_products_of_degrees_cannot_overflow() -> None:
    columns = LayoutColumns.build(num_layers=8, tp=2**20, cp=2**20, dp=2**20, pp=1)
    assert columns.world_size[0] == pytest.approx(2.0**60, rel=0)
