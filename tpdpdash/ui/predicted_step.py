"""The predicted step above the measured one, on its axis: the cost room's timeline of the Job that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from tpdpdash.charts.lanes import spread
from tpdpdash.charts.palette import Theme, phase_colors
from tpdpdash.compare.prediction import Prediction
from tpdpdash.compare.run_plan import RunPlan
from tpdpdash.cost.timeline import StepTimeline, step_timeline
from tpdpdash.layout.schedules import SCHEDULE_FACTS, part_of
from tpdpdash.schedule.timeline import KINDS
from tpdpdash.text import t
from tpdpdash.ui.live_tables import action_rows, phase_word
from tpdpdash.ui.timeline_view import drawn_microbatches
from tpdpdash.units import format_time, with_error

COMPARABLE = 3.0
"""A prediction further off than this factor is told in words: on one axis it would flatten what was measured, or be
flattened."""
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
    measured: pd.DataFrame, run: RunPlan | None, prediction: Prediction, theme: Theme
) -> tuple[pd.DataFrame, Said]:
    """The measured lanes with a predicted lane a stage above them, and what to say of it."""
    if run is None or prediction.step_s is None:
        return measured, Said(text=t("There is no prediction of this run."))
    estimate = run.estimate
    told = t("Predicted: {time}", time=with_error(format_time(prediction.step_s), prediction.error_frac))
    if not run.still_takes(prediction.step_s):
        return measured, Said(text=t("{told}, made on another machine: not drawn.", told=told))
    layout = estimate.layout
    if drawn_microbatches(layout, estimate.num_microbatches) < estimate.num_microbatches:
        return measured, Said(text=t("{told}; too many microbatches to draw.", told=told))
    if not is_near(estimate.step_s, float(measured["x2"].max())):
        return measured, Said(text=t("{told}, off this axis.", told=told))
    step = step_timeline(run.job, estimate)
    lanes = spread(range(layout.pp), MAX_STAGES)
    placement = SCHEDULE_FACTS[layout.schedule].placement

    def part(stage: int, chunk: int) -> int:
        return part_of(placement, layout.pp, stage, chunk)

    rows = [row for stage in lanes for row in _lane(step, stage, part, theme)]
    phases = ("bubble", *sorted({bar.part for bar in step.bars if bar.duration_s > 0}))
    table = pd.concat([pd.DataFrame(rows, columns=measured.columns), measured], ignore_index=True)
    return table, Said(text=f"{told}.", phases=phases)


def _lane(step: StepTimeline, stage: int, part: Callable[[int, int], int], theme: Theme) -> list[dict[str, object]]:
    """One predicted pipeline rank: the bubble behind, its actions, then its messages and the optimizer."""
    colors, name = phase_colors(theme), t("predicted, stage {stage}", stage=stage)
    bubble = {"kind": "bar", "row": name, "x": 0.0, "x2": step.pipeline.total_s, "label": t("bubble"), "shown": ""}
    rows: list[dict[str, object]] = [bubble | {"fill": colors["bubble"].fill, "outline": colors["bubble"].outline}]
    ran = step.pipeline
    own = (ran.rank == stage).nonzero()[0][:MAX_BARS]
    actions = [
        (
            KINDS[ran.kind[i]],
            part(stage, int(ran.chunk[i])),
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
