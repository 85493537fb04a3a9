"""The order of layouts, and what the others lose against the best."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import cluster_of, dense_model, training_of

from tpdpdash.cost.figures import TIME_PARTS
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import SCHEDULES, LayoutPins
from tpdpdash.search.plan import plan
from tpdpdash.search.ranking import (
    BY_SIMPLICITY,
    near_equal_in_set,
    on_front,
    pareto_front,
    ranked_order,
    simplest_of_each,
    simplicity,
)


def columns_of(**given: object) -> LayoutColumns:
    return LayoutColumns.build(num_layers=8, **given)


def test_layouts_go_by_time_and_equal_ones_by_simplicity():
    assert list(ranked_order(np.array([1.0, 1.004, 1.0, 0.9]), np.array([3, 0, 2, 4]))) == [3, 2, 0, 1]


def test_the_simplest_near_row_of_each_set_stands_for_it():
    near, of = np.array([True, True, True, False, True]), np.array([1, 0, 0, 0, 1])
    assert list(simplest_of_each(near, of, np.array([4, 3, 1, 0, 2]))) == [2, 4]


@pytest.mark.parametrize(
    ("simpler", "other"),
    [
        ({}, {"offload_optimizer": True}),
        ({"offload_optimizer": False, "tp": 8, "pp": 8}, {"offload_optimizer": True}),
        ({"tp": 8}, {"tp": 2, "pp": 2}),
        ({"tp": 2}, {"tp": 4}),
        ({"pp": 4}, {"pp": 4, "num_model_chunks": 2}),
        ({"recompute": 1}, {"recompute": 2}),
        ({"recompute": 2}, {"recompute": 2, "recompute_num_layers": 2}),
        ({"zero_stage": 1, "dp": 8}, {"zero_stage": 3, "dp": 8}),
        ({"dp": 8}, {"dp": 8, "dp_shard_size": 2}),
    ],
)
def test_the_plainer_of_two_layouts_is_the_simpler_one(simpler, other):
    both = LayoutColumns.joined([columns_of(**other), columns_of(**simpler)])
    assert list(simplicity(both, np.ones(2))) == [1, 0]


def test_every_schedule_has_its_place_by_simplicity():
    assert sorted(BY_SIMPLICITY) == sorted(SCHEDULES)


def test_each_set_keeps_what_is_near_equal_to_its_own_fastest():
    kept = near_equal_in_set(np.array([1.0, 1.1, 2.0, 2.009, 2.011]), np.array([0, 0, 1, 1, 1]))
    assert list(kept) == [True, False, True, True, False]


def test_the_front_needs_less_memory_than_every_faster_row():
    steps, peaks = np.array([1.0, 2.0, 3.0, 2.0]), np.array([5.0, 4.0, 4.0, 4.0])
    assert list(pareto_front(steps, peaks)) == [0, 1]
    assert list(on_front(steps, peaks)) == [True, True, True, True]
    assert not on_front(np.array([1.0, 2.0]), np.array([1.0, 2.0]))[1]


def test_margins_say_in_which_part_a_layout_loses_and_add_up():
    job = Job(name="small", model=dense_model(), cluster=cluster_of(1), training=training_of(), pins=LayoutPins())
    found = plan(job)
    layouts = found.top(30)
    lost_by = found.margins(30)
    assert len(lost_by) == len(layouts)
    assert (lost_by[0].step_frac, lost_by[0].memory_bytes, lost_by[0].where) == (0.0, 0.0, "")
    for layout, lost in zip(layouts, lost_by, strict=True):
        assert lost.time.step_s == pytest.approx(layout.step_s - layouts[0].step_s, abs=1e-12)
        assert lost.step_frac == pytest.approx(layout.step_s / layouts[0].step_s - 1, abs=1e-12)
        assert lost.memory_bytes == layout.peak_bytes - layouts[0].peak_bytes
        assert (
            lost.where == ""
            or getattr(lost.time, lost.where) == max(getattr(lost.time, name) for name in TIME_PARTS) > 0
        )
    again = {
        layout.layout.recompute: lost for layout, lost in zip(layouts, lost_by, strict=True) if lost.step_frac > 0.01
    }
    assert again["selective"].time.recompute_s > 0
    assert found.to_json(3)["margins"][0]["where"] == ""
