"""Kinds of pipeline stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from strategies import dense_model, layout_of, moe_model

from tpdpdash.cost.stages import stage_kinds, stage_rows
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.model.presets import preset


def kinds_of(model, pp, chunks=1, **split):
    """Stage kinds of one even pipeline."""
    columns = LayoutColumns.build(num_layers=model.num_layers, pp=float(pp), num_model_chunks=float(chunks), **split)
    return stage_kinds(model, columns)


def test_an_even_pipeline_has_a_first_a_middle_and_a_last_kind():
    found = kinds_of(dense_model(num_layers=64), 64)
    assert found.count.tolist() == [[1, 62, 1]]
    assert found.index.tolist() == [[0, 1, 63]]
    assert found.layers.tolist() == [[1, 1, 1]]


def test_one_stage_is_first_and_last():
    found = kinds_of(dense_model(), 1)
    assert found.is_first.tolist() == found.is_last.tolist() == [[1]]


def test_uneven_middle_stages_are_kinds_of_their_own():
    found = kinds_of(dense_model(num_layers=30), 8)
    assert (found.count * found.layers).sum() == 30
    assert found.count.sum() == 8


def test_layers_are_never_lost_when_kinds_are_spread_over_stages():
    columns = LayoutColumns.build(num_layers=61, pp=np.array([1.0, 4, 8, 16]))
    model = replace(preset("deepseek-v3"), mtp_num_layers=0)
    every = stage_kinds(model, columns).every_stage()
    assert every.layers.sum(axis=1).tolist() == [61] * 4
    assert every.moe_layers.sum(axis=1).tolist() == [58] * 4
    assert every.count.sum(axis=1).tolist() == [1, 4, 8, 16]


def test_leading_dense_layers_stand_on_the_first_stages():
    rows = stage_rows(preset("deepseek-v3"), np.array([2.0, 2, 57]), 1)  # and the prediction module
    assert [(dense, moe) for _, _, _, dense, moe, _, _ in rows] == [(2, 0), (1, 1), (0, 58)]


def test_chunks_deal_layers_round_the_stages():
    """Two stages of two chunks over 8 layers: stage 0 has layers 0-1 and 4-5; the first three are dense."""
    rows = stage_rows(moe_model(first_k_dense_layers=3), np.array([4.0, 4.0]), 2)
    assert [(dense, moe) for _, _, _, dense, moe, _, _ in rows] == [(2, 2), (1, 3)]


def test_a_v_has_both_ends_and_both_directions_on_each_rank():
    """Three ranks of two chunks over 12 layers: rank 0 has layers 0-1 and 10-11; the first three are dense."""
    rows = stage_rows(moe_model(num_layers=12, first_k_dense_layers=3), np.array([4.0, 4.0, 4.0]), 2, "fold")
    assert [row[3:] for row in rows] == [(2, 2, 1, 1), (1, 3, 0, 0), (0, 4, 0, 0)]


def test_an_odd_layer_of_a_v_is_one_of_the_way_down():
    rows = stage_rows(moe_model(first_k_dense_layers=2), np.array([3.0, 3.0]), 2, "fold")
    assert [row[3:5] for row in rows] == [(2, 1), (0, 3)]


def test_two_copies_give_each_rank_two_stages():
    rows = stage_rows(moe_model(first_k_dense_layers=1), np.array([1.0, 2.0, 2.0, 3.0]), 1, "mirror")
    assert [row[3:] for row in rows] == [(1, 3, 1, 1), (0, 4, 0, 0), (0, 4, 0, 0), (1, 3, 1, 1)]


def test_kinds_of_one_split_differ_by_where_a_schedule_puts_its_parts():
    model, names = dense_model(num_layers=8), ["1f1b", "zb-v", "dualpipe"]
    layouts = [layout_of(8, pp=4, schedule=name, num_model_chunks=2 if name == "zb-v" else 1) for name in names]
    every = stage_kinds(model, LayoutColumns.from_layouts(layouts)).every_stage()
    assert every.is_last[:, :4].tolist() == [[0, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 1]]
    assert every.layers[:, :4].tolist() == [[2] * 4, [2] * 4, [4] * 4]
