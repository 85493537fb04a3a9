"""The predicted step above the measured one, on its axis: the cost room's timeline of the Job that runs."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from tpdpdash.charts.lanes import spread
from tpdpdash.charts.palette import Theme, phase_colors
from tpdpdash.cost.result import Estimate
from tpdpdash.cost.timeline import StepTimeline, step_timeline
from tpdpdash.job import Job
from tpdpdash.schedule.timeline import FORWARD
from tpdpdash.text import t
from tpdpdash.ui.live import Prediction
from tpdpdash.ui.live_tables import action_rows, phase_word
from tpdpdash.ui.timeline_view import MAX_ACTIONS
from tpdpdash.units import format_time

COMPARABLE = 3.0
"""A prediction further off than this factor is told in words: on one axis it would flatten what was measured, or be
flattened."""
SAME_FRAC = 0.02
"""So much may the estimate of today's machine differ from the one that was made at the start."""
MAX_STAGES = 8
MAX_BARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What stands beside the chart."""

    text: str = ""
    """Where the prediction is, or why it is not drawn."""
    phases: tuple[str, ...] = ()
    """Phases of the prediction that the measured step has not: for the legend."""


def is_near(predicted_s: float | None, measured_s: float | None) -> bool:
    """Whether both can be read on one axis."""
    return bool(predicted_s and measured_s and 1 / COMPARABLE < predicted_s / measured_s < COMPARABLE)


def above(
    measured: pd.DataFrame, run: tuple[Job, Estimate] | None, prediction: Prediction, theme: Theme
) -> tuple[pd.DataFrame, Said]:
    """The measured lanes with a predicted lane a stage above them, and what to say of it."""
    if run is None or prediction.step_s is None:
        return measured, Said(text=t("There is no prediction of this run."))
    job, estimate = run
    told = t("Predicted: {time}", time=format_time(prediction.step_s))
    if abs(estimate.step_s / prediction.step_s - 1) > SAME_FRAC:
        return measured, Said(text=t("{told}, made on another machine: not drawn.", told=told))
    layout = estimate.layout
    if 2 * layout.pp * layout.num_model_chunks * estimate.num_microbatches > MAX_ACTIONS:
        return measured, Said(text=t("{told}; too many microbatches to draw.", told=told))
    if not is_near(estimate.step_s, float(measured["x2"].max())):
        return measured, Said(text=t("{told}, off this axis.", told=told))
    step = step_timeline(job, estimate)
    lanes = spread(range(layout.pp), MAX_STAGES)
    rows = [row for stage in lanes for row in _lane(step, stage, theme)]
    phases = ("bubble", *sorted({bar.part for bar in step.bars if bar.duration_s > 0}))
    table = pd.concat([pd.DataFrame(rows, columns=measured.columns), measured], ignore_index=True)
    return table, Said(text=f"{told}.", phases=phases)


def _lane(step: StepTimeline, stage: int, theme: Theme) -> list[dict[str, object]]:
    """One predicted stage: the bubble behind, its actions, then its messages and the optimizer."""
    colors, name = phase_colors(theme), t("predicted, stage {stage}", stage=stage)
    bubble = {"kind": "bar", "row": name, "x": 0.0, "x2": step.pipeline.total_s, "label": t("bubble"), "shown": ""}
    rows: list[dict[str, object]] = [bubble | {"fill": colors["bubble"].fill, "outline": colors["bubble"].outline}]
    ran = step.pipeline
    own = (ran.rank == stage).nonzero()[0][:MAX_BARS]
    actions = [
        (
            "F" if ran.kind[i] == FORWARD else "B",
            stage,
            int(ran.microbatch[i]),
            float(ran.start_s[i]),
            float(ran.duration_s[i]),
        )
        for i in own
    ]
    rows += action_rows(name, actions, step.total_s, theme)
    for bar in step.bars:
        if bar.stage == stage and bar.duration_s > 0:
            color, place = colors[bar.part], {"x": bar.start_s, "x2": bar.start_s + bar.duration_s}
            shown = {"label": phase_word(bar.part), "shown": format_time(bar.duration_s)}
            rows.append({"kind": "bar", "row": name, **place, **shown, "fill": color.fill, "outline": color.outline})
    return rows
