"""Prediction beside measurement: each part with its own, parts that add up, the bubble told from waiting."""

from __future__ import annotations

import json

import numpy as np
import pytest
from made_telemetry import STEP, made, places, slowed

from tpdpdash.compare.attribution import attribute
from tpdpdash.compare.prediction import Prediction
from tpdpdash.compare.run_plan import RunPlan, better_layout, planned_idle_s
from tpdpdash.compare.verdict_words import gap_sentence
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.cost.figures import TIME_PARTS
from tpdpdash.job import parse_job
from tpdpdash.telemetry.record import PHASES

JOB = """
[model]
name = "tiny"
num_layers = 8
hidden_size = 128
num_attention_heads = 8
num_kv_heads = 4
head_dim = 16
ffn_hidden_size = 384
vocab_size = 512
[cluster]
device = "CPU"
nodes = 1
devices_per_node = {world_size}
[training]
seq_len = 64
global_batch_size = 8
precision = "fp32"
framework = "builtin"
[layout]
{layout}
"""
PREDICTION = Prediction(
    step_s=1.0,
    error_frac=0.1,
    part_s=dict.fromkeys(TIME_PARTS, 0.0) | {"compute_s": 0.7, "recompute_s": 0.1, "dp_s": 0.15, "optimizer_s": 0.05},
    stage_bytes=(300e6,),
)


def planned(layout: str, world_size: int) -> RunPlan:
    job = parse_job(JOB.format(layout=layout, world_size=world_size)).resolved()
    return RunPlan(job=job, estimate=estimate_job(job))


def test_each_part_stands_beside_the_measured_one_and_they_add_up() -> None:
    seen = made(places(dp=2), phase_s={"data": 0.1, "forward": 0.3, "loss": 0.1, "backward": 0.6, "dp": 0.2,
                                       "optimizer": 0.05, "other": 0.02})  # fmt: skip
    seen.step_s[:] += 0.03
    seen.phase_s[0, :, PHASES.index("dp")] += 0.1
    seen.step_s[:] += 0.1
    found = attribute(seen, PREDICTION, None)
    assert found is not None
    shown = {part.part: (part.predicted_s, part.measured_s) for part in found.parts}
    assert shown["compute"] == pytest.approx((0.8, 1.1))
    assert shown["dp"] == pytest.approx((0.15, 0.2))
    assert shown["optimizer"] == pytest.approx((0.05, 0.05))
    assert shown["waiting"] == pytest.approx((0.0, 0.05))
    assert shown.keys() == {"compute", "dp", "optimizer", "waiting", "other"}
    assert sum(part.measured_s for part in found.parts) == pytest.approx(found.measured_step_s)
    assert sum(part.predicted_s or 0 for part in found.parts) == pytest.approx(found.predicted_step_s)
    assert found.where is not None
    assert found.where.part == "compute"
    assert found.is_within_error is False
    assert "Most of the gap is in compute: 1.10 s instead of 800 ms." in gap_sentence(found)
    assert gap_sentence(found).startswith(f"A step takes 1.50 s in the mean of {found.num_steps} steps, predicted")
    assert [(m.predicted_bytes, m.measured_bytes) for m in found.memory] == [(300e6, 400e6)]
    json.dumps(found.to_json(), allow_nan=False)


def test_a_step_that_is_shorter_than_predicted_names_the_part_that_saves_most() -> None:
    found = attribute(made(places(dp=2), phase_s={"forward": 0.75, "dp": 0.01}), PREDICTION, None)
    assert found is not None
    assert found.where is not None
    assert found.where.part == "dp"


def test_without_a_prediction_the_measured_parts_stand_alone() -> None:
    found = attribute(made(places(dp=2)), Prediction(), None)
    assert found is not None
    assert (found.gap_s, found.where, found.is_within_error) == (None, None, None)
    assert all(part.predicted_s is None for part in found.parts)
    assert gap_sentence(found) == "There is no prediction of this run."
    assert attribute(made(places(dp=2), steps=1), PREDICTION, None) is None


def test_the_idle_time_that_a_schedule_plans_is_no_waiting() -> None:
    """1F1B of 8 microbatches on two equal stages: each is idle for one microbatch of forward and backward."""
    run = planned("pp = 2", 2)
    seen = made(places(pp=2), phase_s={"forward": 0.8, "backward": 1.6, "pp": 0.35})
    idle = planned_idle_s(seen, run)
    assert idle == pytest.approx([0.3, 0.3])
    slowed(seen, 1, "pp", 0.1)
    found = attribute(seen, PREDICTION, planned_idle_s(seen, run))
    assert found is not None
    shown = {part.part: part.measured_s for part in found.parts}
    assert (shown["bubble"], shown["pp"]) == pytest.approx((0.3, 0.05))


def test_a_longer_stage_plans_idle_time_for_the_others_only() -> None:
    """Stage 1 takes 2.4 s more: stage 0 is idle for it."""
    run = planned("pp = 2", 2)
    seen = made(places(pp=2), phase_s={"forward": 0.8, "backward": 1.6, "pp": 0.3})
    seen.phase_s[1, :, PHASES.index("forward")] += 0.8
    seen.phase_s[1, :, PHASES.index("backward")] += 1.6
    idle = planned_idle_s(seen, run)
    assert idle is not None
    assert idle[0] == pytest.approx(2.4 + 0.3, rel=0.05)
    assert idle[1] == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize(
    ("layout", "world_size"),
    [("pp = 2\nnum_model_chunks = 2", 2), ('pp = 4\nschedule = "gpipe"', 4), ('pp = 2\nschedule = "dualpipe-v"', 2)],
)
def test_every_schedule_has_its_idle_time(layout: str, world_size: int) -> None:
    run = planned(layout, world_size)
    idle = planned_idle_s(made(places(pp=run.estimate.layout.pp), phase_s={**STEP, "pp": 1.0}), run)
    assert idle is not None
    assert (idle >= 0).all()
    assert (idle < 0.9 * run.estimate.layout.pp).all()


def test_without_a_pipeline_or_with_a_stage_that_told_nothing_no_idle_time_is_planned() -> None:
    assert planned_idle_s(made(places(dp=2)), planned("dp = 2", 2)) is None
    assert planned_idle_s(made(places(pp=2)), None) is None
    silent = made(places(pp=2))
    silent.phase_s[1] = np.nan
    assert planned_idle_s(silent, planned("pp = 2", 2)) is None


def test_the_planner_proposes_a_layout_only_where_it_is_clearly_faster() -> None:
    better = better_layout(planned("tp = 4", 4))
    assert better is not None
    assert better.saved_frac > 0.05
    best = planned("\n".join(f"{part[:2]} = {part[2:]}" for part in better.layout_id.split("-")), 4)
    assert better_layout(best) is None or better_layout(best).saved_frac < better.saved_frac
