"""Rows that are equal in what a formula reads are priced once, and every row gets its own figure."""

from __future__ import annotations

import numpy as np
from strategies import cluster_of, dense_model, moe_model, training_of

from tpdpdash.cost.case import case_of
from tpdpdash.cost.distinct import PIPELINE, column_runs, runs_of
from tpdpdash.cost.estimate import step_seconds
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.passes import layer_passes
from tpdpdash.layout.columns import SHARDING, LayoutColumns


def test_a_run_ends_where_any_array_changes():
    runs = runs_of([np.array([1.0, 1, 2, 2, 2]), np.array([[0, 0], [0, 0], [0, 0], [0, 1], [0, 1]])])
    assert runs.first.tolist() == [0, 2, 3]
    assert runs.of_row.tolist() == [0, 0, 1, 2, 2]
    assert runs.spread(runs.firsts(np.array([5.0, 5, 6, 7, 7]))).tolist() == [5, 5, 6, 7, 7]


def test_layouts_that_recompute_all_layers_are_equal_in_it():
    columns = LayoutColumns.build(num_layers=8, zero_stage=np.array([0.0, 1, 1]), recompute=2)
    assert len(column_runs(columns, ignoring=SHARDING).first) == 1
    assert len(column_runs(columns, ignoring=frozenset()).first) == 2


def varied(shuffled: np.random.Generator) -> LayoutColumns:
    """Layouts that differ in every key, in any order."""
    parts = [
        LayoutColumns.build(
            num_layers=8, tp=float(tp), pp=float(pp), dp=8.0 / tp * 4 / pp, ep=float(ep), etp=1.0,
            num_model_chunks=float(2 if pp == 2 and zero == 1 else 1), zero_stage=float(zero),
            micro_batch_size=float(size), recompute=how, dp_shard_size=float(shard), offload_optimizer=zero == 0,
            sequence_parallel=tp > 1,
        )
        for tp in (1, 2) for pp in (1, 2) for ep in (1, 2) for size in (1, 2) for how in (0, 1, 2)
        for shard in (2, 4) for zero in (0, 1, 3)
    ]  # fmt: skip
    columns = LayoutColumns.joined(parts)
    return columns.take(shuffled.permutation(len(columns)))


def test_a_rows_step_does_not_depend_on_its_neighbours():
    """Sorted, shuffled and alone: what rows share is never more than what they have in common."""
    shuffled = np.random.default_rng(1)
    model, cluster, training = moe_model(), cluster_of(4), training_of()
    columns = varied(shuffled)
    mixed = step_seconds(model, cluster, training, columns)
    order = np.lexsort([columns.zero_stage, columns.dp_shard_size, columns.recompute, columns.micro_batch_size,
                        columns.ep, columns.pp, columns.tp])  # fmt: skip
    np.testing.assert_array_equal(step_seconds(model, cluster, training, columns.take(order)), mixed[order])
    for row in range(0, len(columns), 17):
        assert step_seconds(model, cluster, training, columns.take(np.array([row])))[0] == mixed[row]


def test_the_passes_of_a_layer_read_none_of_the_columns_that_are_ignored():
    model, cluster, training = dense_model(), cluster_of(4), training_of()
    habits = framework_habits(training.framework)
    columns = varied(np.random.default_rng(2))
    first = columns.take(np.zeros(len(columns), np.intp))
    changed = {name: getattr(columns, name) for name in SHARDING | PIPELINE}
    kept = {name: getattr(first, name) for name in LayoutColumns.__slots__ if name not in changed}
    passes = layer_passes(case_of(model, cluster, training, habits, LayoutColumns(**kept, **changed)), moe=False)
    for one in (passes.forward, passes.backward, passes.recompute):
        assert len(set(one.total_s.tolist())) == 1
