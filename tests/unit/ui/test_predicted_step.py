"""Watch's predicted step: the cost room's own timeline above the measured lanes, or a sentence why it is not there."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from tpdpdash.compare.prediction import Prediction
from tpdpdash.compare.run_plan import RunPlan
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.cost.timeline import step_timeline
from tpdpdash.job import Job, parse_job
from tpdpdash.ui import predicted_step

COLUMNS = ["kind", "row", "x", "x2", "fill", "outline", "label", "shown"]


@pytest.fixture(scope="module")
def job() -> Job:
    """Two stages of four microbatches."""
    return parse_job(
        '[model]\npreset = "llama-3-8b"\n[cluster]\ndevice = "H100-SXM5-80GB"\nnodes = 1\n'
        "[training]\nseq_len = 4096\nglobal_batch_size = 8\n[layout]\ntp = 2\npp = 2\ndp = 2"
    ).resolved()


def measured(until_s: float) -> pd.DataFrame:
    """One measured lane."""
    bar = {"kind": "bar", "row": "rank 0", "x": 0.0, "x2": until_s, "label": "waiting", "shown": ""}
    return pd.DataFrame([bar], columns=COLUMNS)


def test_the_predicted_lanes_stand_above_and_end_where_the_prediction_ends(job: Job) -> None:
    estimate = estimate_job(job)
    prediction = Prediction(step_s=estimate.step_s)
    table, said = predicted_step.above(
        measured(1.2 * estimate.step_s), RunPlan(job=job, estimate=estimate), prediction, "light"
    )
    assert table["row"].unique().tolist() == ["predicted, stage 0", "predicted, stage 1", "rank 0"]
    predicted = table[table["row"].str.startswith("predicted") & (table["kind"] == "bar")]
    assert predicted["x2"].max() == pytest.approx(step_timeline(job, estimate).total_s)
    assert (predicted["label"].str.startswith("forward of microbatch")).sum() == 2 * estimate.num_microbatches
    assert {"bubble", "dp", "optimizer"} <= set(said.phases)
    assert said.text.startswith("Predicted: ")


def test_a_prediction_that_cannot_be_drawn_is_told_in_words(job: Job) -> None:
    estimate = estimate_job(job)
    own = RunPlan(job=job, estimate=estimate)
    told, lanes = Prediction(step_s=estimate.step_s), measured(1.2 * estimate.step_s)
    far = measured(10 * estimate.step_s)
    elsewhere = replace(told, step_s=1.5 * estimate.step_s)
    cases = [
        (lanes, None, told, "no prediction"),
        (lanes, own, Prediction(), "no prediction"),
        (far, own, told, "off this axis"),
        (lanes, own, elsewhere, "another machine"),
    ]
    for table, run, prediction, word in cases:
        drawn, said = predicted_step.above(table, run, prediction, "light")
        assert drawn is table
        assert word in said.text
