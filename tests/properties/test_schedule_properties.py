"""Schedules: every action once and in an order that can run; the closed form against the simulation.

The stated bound: GPipe is equal. 1F1B and interleaved are equal for even stages; otherwise the closed form is never
above the simulation, and the simulation never above even stages as slow as the slowest; with one backward-to-forward
ratio it is also never above (m − 1)·max t + Σt/v + (1 − 1/v)·max t.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import closed
from strategies import interleavings, stage_times

from tpdpdash.layout.layout import SCHEDULES
from tpdpdash.schedule.action import Action
from tpdpdash.schedule.actions import schedule_actions
from tpdpdash.schedule.closed_form import microbatches_in_flight, pipeline_seconds
from tpdpdash.schedule.timeline import simulate

MANY = settings(max_examples=150)
TIGHT = 1e-9


def upper(forward: list[float], backward: list[float], m: int, v: int) -> float:
    """Even stages, all as slow as the slowest: an event graph can only become later with longer actions."""
    return (m + (len(forward) - 1) / v) * (max(forward) + max(backward))


def lattice(forward: list[float], backward: list[float], m: int, v: int) -> float:
    t = [f + b for f, b in zip(forward, backward, strict=True)]
    return (m - 1) * max(t) + sum(t) / v + (1 - 1 / v) * max(t)


def assert_each_action_once_and_in_order(actions: list[list[Action]], m: int, v: int) -> None:
    for own in actions:
        assert len(own) == len(set(own)) == 2 * m * v
        at = {action: place for place, action in enumerate(own)}
        assert all(at[Action("F", a.chunk, a.microbatch)] < at[a] for a in own if a.kind == "B")


@MANY
@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 9), st.integers(1, 20))
def test_every_forward_comes_before_its_backward(schedule: str, pp: int, m: int) -> None:
    assert_each_action_once_and_in_order(schedule_actions(schedule, pp, m), m, 1)


@MANY
@given(st.data(), st.integers(2, 8))
def test_every_chunk_is_run_once_and_its_forward_first(data: st.DataObject, pp: int) -> None:
    m, v, g = data.draw(interleavings(pp))
    actions = schedule_actions("interleaved", pp, m, v, g)
    assert_each_action_once_and_in_order(actions, m, v)
    for rank, own in enumerate(actions):
        held = int(np.cumsum([1 if a.kind == "F" else -1 for a in own]).max())
        counted = microbatches_in_flight(SCHEDULES.index("interleaved"), pp, m, v, rank, g)
        assert counted * v == pytest.approx(held, rel=1e-12)


@MANY
@given(stage_times(), st.integers(1, 24), st.floats(0, 0.2))
def test_actions_of_a_rank_do_not_overlap_and_wait_for_what_they_need(
    times: tuple[list[float], list[float]], m: int, x: float
) -> None:
    forward, backward = times
    timeline = simulate(schedule_actions("1f1b", len(forward), m), forward, backward, x)
    ends = timeline.start_s + timeline.duration_s
    end_of = {}
    for rank in range(len(forward)):
        own = timeline.rank == rank
        assert all(a <= b + TIGHT for a, b in pairwise(np.ravel(np.column_stack([timeline.start_s[own], ends[own]]))))
    for row in range(len(ends)):
        end_of[int(timeline.kind[row]), int(timeline.rank[row]), int(timeline.microbatch[row])] = ends[row]
    for row, start in enumerate(timeline.start_s):
        kind, rank, microbatch = int(timeline.kind[row]), int(timeline.rank[row]), int(timeline.microbatch[row])
        before = end_of.get((kind, rank - 1 if kind == 0 else rank + 1, microbatch))
        assert before is None or start >= before + x - TIGHT


@MANY
@given(st.sampled_from(["gpipe", "1f1b"]), stage_times(spread=5.0), st.integers(1, 24), st.floats(0, 0.5))
def test_the_closed_form_of_gpipe_is_the_simulation_and_of_1f1b_never_above_it(
    schedule: str, times: tuple[list[float], list[float]], m: int, x: float
) -> None:
    forward, backward = times
    total = simulate(schedule_actions(schedule, len(forward), m), forward, backward, x).total_s
    seconds = closed(schedule, forward, backward, m, x=x)
    assert seconds <= total * (1 + TIGHT)
    if schedule == "gpipe":
        assert seconds == pytest.approx(total, rel=TIGHT)
    if x == 0:
        assert total <= upper(forward, backward, m, 1) * (1 + TIGHT)


@MANY
@given(st.integers(1, 9), st.integers(1, 40), st.floats(0.1, 3.0), st.floats(0, 0.3))
def test_1f1b_of_even_stages_is_exact_with_transfers_too(pp: int, m: int, ratio: float, x: float) -> None:
    forward, backward = [1.0] * pp, [ratio] * pp
    total = simulate(schedule_actions("1f1b", pp, m), forward, backward, x).total_s
    assert closed("1f1b", forward, backward, m, x=x) == pytest.approx(total, rel=TIGHT)
    if x == 0:
        assert total == pytest.approx((m + pp - 1) * (1 + ratio), rel=TIGHT)


@MANY
@given(st.data(), st.integers(2, 8), st.floats(1.0, 3.0))
def test_interleaving_of_even_stages_is_exact(data: st.DataObject, pp: int, ratio: float) -> None:
    m, v, g = data.draw(interleavings(pp))
    forward, backward = [1.0] * pp, [ratio] * pp
    total = simulate(schedule_actions("interleaved", pp, m, v, g), forward, backward).total_s
    assert closed("interleaved", forward, backward, m, v, g) == pytest.approx(total, rel=TIGHT)
    assert total == pytest.approx((m + (pp - 1) / v) * (1 + ratio), rel=TIGHT)


@MANY
@given(st.data(), stage_times(ratio=2.0))
def test_with_one_ratio_the_simulation_lies_between_the_closed_form_and_the_lattice(
    data: st.DataObject, times: tuple[list[float], list[float]]
) -> None:
    forward, backward = times
    pp = len(forward)
    interleaved = pp > 1 and data.draw(st.booleans())
    m, v, g = data.draw(interleavings(pp)) if interleaved else (data.draw(st.integers(1, 24)), 1, pp)
    schedule = "interleaved" if interleaved else "1f1b"
    total = simulate(schedule_actions(schedule, pp, m, v, g), forward, backward).total_s
    assert closed(schedule, forward, backward, m, v, g) <= total * (1 + TIGHT)
    assert total <= lattice(forward, backward, m, v) * (1 + TIGHT)


@MANY
@given(st.data(), stage_times(spread=3.0), st.floats(0, 0.3))
def test_interleaving_of_any_stages_is_never_above_the_simulation(
    data: st.DataObject, times: tuple[list[float], list[float]], x: float
) -> None:
    forward, backward = times
    if len(forward) < 2:
        return
    m, v, g = data.draw(interleavings(len(forward)))
    total = simulate(schedule_actions("interleaved", len(forward), m, v, g), forward, backward, x).total_s
    assert closed("interleaved", forward, backward, m, v, g, x) <= total * (1 + TIGHT)


@MANY
@given(st.integers(2, 8), st.integers(1, 32), st.floats(0, 1.5), st.floats(0, 0.3), st.integers(2, 3))
def test_layers_with_a_head_and_an_embedding_are_exact_under_1f1b(
    pp: int, m: int, head: float, embedding: float, ratio: int
) -> None:
    forward = [4.0] * pp
    forward[0] += embedding
    forward[-1] += head + 0.3
    backward = [ratio * f for f in forward]
    total = simulate(schedule_actions("1f1b", pp, m), forward, backward).total_s
    assert closed("1f1b", forward, backward, m) == pytest.approx(total, rel=TIGHT)


@MANY
@given(st.lists(st.tuples(stage_times(most_stages=6), st.integers(1, 20)), min_size=1, max_size=6))
def test_many_rows_equal_each_row_alone(rows: list[tuple[tuple[list[float], list[float]], int]]) -> None:
    widest = max(len(forward) for (forward, _), _ in rows)
    forward, backward = np.zeros((len(rows), widest)), np.zeros((len(rows), widest))
    mask = np.zeros((len(rows), widest), np.bool_)
    for row, ((f, b), _) in enumerate(rows):
        forward[row, : len(f)], backward[row, : len(b)], mask[row, : len(f)] = f, b, True
    seconds = pipeline_seconds(
        schedule=SCHEDULES.index("1f1b"),
        forward_s=forward,
        backward_s=backward,
        stage_mask=mask,
        num_microbatches=np.array([m for _, m in rows]),
    )
    assert seconds.tolist() == pytest.approx([closed("1f1b", f, b, m) for (f, b), m in rows], rel=1e-12)
