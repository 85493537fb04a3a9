"""The step of one layout as bars for the timeline chart: actions, messages and optimizer, microbatches in flight."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from streamlit.delta_generator import DeltaGenerator

from tpdpdash.charts.palette import PHASE_ORDER
from tpdpdash.charts.timeline import MAX_MARKS, Window, phase_of, window_of
from tpdpdash.cost.result import Estimate
from tpdpdash.cost.timeline import StepTimeline, step_timeline
from tpdpdash.job import Job
from tpdpdash.layout.layout import SCHEDULES, Layout
from tpdpdash.layout.schedules import SCHEDULE_FACTS
from tpdpdash.schedule.closed_form import microbatches_in_flight
from tpdpdash.schedule.timeline import BACKWARD, FORWARD, WEIGHT_GRADIENT, Timeline
from tpdpdash.text import t
from tpdpdash.units import format_count, format_memory, format_time

SCHEDULE_NAMES = {
    "none": "one stage",
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "zb-1p": "zero bubble, ZB-1p",
    "zb-2p": "zero bubble, ZB-2p",
    "zb-v": "zero bubble, ZB-V",
    "dualpipe": "DualPipe",
    "dualpipe-v": "DualPipe-V",
}
BAR_KINDS = np.array(["forward", "backward", "input_gradient", "weight_gradient"])
"""Bars by the kind of an action in schedule.timeline."""
MAX_ACTIONS = 40_000
"""Actions that are simulated for a page; beyond it the same schedule is drawn with fewer microbatches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStep:
    """A step as the chart takes it."""

    bars: pd.DataFrame
    """Columns lane, kind, label, start_s, end_s."""
    total_s: float
    """End of the step."""
    pipeline_end_s: float
    """Where the pipeline ends, and with it the bubble."""
    in_flight: pd.DataFrame
    """Columns t_s, count: microbatches whose activations the first stage keeps."""
    in_flight_note: str
    """The most of them in the whole step, in words."""
    phases: tuple[str, ...]
    """Phases that occur, in stack order: the legend."""
    num_microbatches: int
    """Microbatches that are drawn."""


def drawn_microbatches(layout: Layout, num_microbatches: int) -> int:
    """Microbatches that a page can simulate: all, or whole groups of pp up to MAX_ACTIONS actions."""
    facts = SCHEDULE_FACTS[layout.schedule]
    per_microbatch = (3 if facts.splits_backward else 2) * layout.pp * layout.num_model_chunks
    if num_microbatches * per_microbatch <= MAX_ACTIONS:
        return num_microbatches
    group = max(layout.microbatch_group_size_per_vp_stage, layout.pp, facts.microbatches_per_rank * layout.pp)
    return max(group, MAX_ACTIONS // per_microbatch // group * group)


def draw(job: Job, estimate: Estimate) -> DrawnStep:
    """The schedule of an estimate with its own stage times, then what follows the pipeline."""
    layout, training = estimate.layout, job.training
    microbatches = drawn_microbatches(layout, estimate.num_microbatches)
    if microbatches < estimate.num_microbatches:
        smaller = microbatches * layout.micro_batch_size * layout.dp
        job = replace(job, training=replace(training, global_batch_size=smaller))
    step = step_timeline(job, estimate)
    bars = _bars(step)
    parts = 2 if SCHEDULE_FACTS[layout.schedule].placement == "mirror" else layout.num_model_chunks
    flight = _in_flight(step.pipeline, parts)
    most = microbatches_in_flight(
        SCHEDULES.index(layout.schedule), layout.pp, estimate.num_microbatches, layout.num_model_chunks, 0,
        layout.microbatch_group_size_per_vp_stage,
    )  # fmt: skip
    present = {phase_of(kind) for kind in bars["kind"].unique()} | ({"bubble"} if layout.pp > 1 else set())
    return DrawnStep(
        bars=bars,
        total_s=step.total_s,
        pipeline_end_s=step.pipeline.total_s,
        in_flight=flight,
        in_flight_note=t(
            "{count} in flight at most, {bytes} of activations",
            count=f"{float(most):.3g}",
            bytes=format_memory(estimate.stages[0].activations_bytes),
        ),
        phases=tuple(phase for phase in PHASE_ORDER if phase in present),
        num_microbatches=microbatches,
    )


def _bars(step: StepTimeline) -> pd.DataFrame:
    """Every action as a bar with its microbatch, then the messages and the optimizer after them."""
    ran = step.pipeline
    actions = pd.DataFrame(
        {
            "lane": ran.rank,
            "kind": BAR_KINDS[ran.kind],
            "label": ran.microbatch.astype(str),
            "start_s": ran.start_s,
            "end_s": ran.start_s + ran.duration_s,
        }
    )
    after = [(bar.stage, bar.part, "", bar.start_s, bar.start_s + bar.duration_s) for bar in step.bars]
    return pd.concat([actions, pd.DataFrame(after, columns=actions.columns)], ignore_index=True)


def _in_flight(ran: Timeline, parts: int) -> pd.DataFrame:
    """Microbatches that the first stage keeps: from the start of a forward to the end of its backward, of its weight
    gradient where that is apart."""
    first = ran.rank == 0
    forwards, backwards = first & (ran.kind == FORWARD), first & np.isin(ran.kind, (BACKWARD, WEIGHT_GRADIENT))
    times = np.concatenate([ran.start_s[forwards], (ran.start_s + ran.duration_s)[backwards]])
    change = np.concatenate([np.ones(int(forwards.sum())), -np.ones(int(backwards.sum()))])
    order = np.lexsort((change, times))
    counts = np.cumsum(change[order]) / parts
    table = pd.DataFrame({"t_s": times[order], "count": counts})
    return table.drop_duplicates("t_s", keep="last").reset_index(drop=True)


def part_caption(window: Window, drawn: DrawnStep) -> str:
    """Which part of the step is drawn; empty when all of it is."""
    if window.num_windows == 1 and len(window.lanes) == drawn.bars["lane"].nunique():
        return ""
    return t(
        "Showing {start} to {end} of {total}, {lanes} of {stages} stages.",
        start=format_time(window.start_s),
        end=format_time(window.end_s),
        total=format_time(drawn.total_s),
        lanes=len(window.lanes),
        stages=drawn.bars["lane"].nunique(),
    )


def caption(estimate: Estimate) -> str:
    """1F1B · 4 stages · 8 microbatches, numbered from 0."""
    layout = estimate.layout
    parts = [t(SCHEDULE_NAMES.get(layout.schedule, layout.schedule))]
    if layout.pp > 1:
        parts.append(t("{count} stages", count=layout.pp))
    drawn = drawn_microbatches(layout, estimate.num_microbatches)
    told = format_count(estimate.num_microbatches)
    if drawn < estimate.num_microbatches:
        parts.append(t("drawn with {drawn} of {count} microbatches", drawn=format_count(drawn), count=told))
    else:
        parts.append(t("{count} microbatches, numbered from 0", count=told))
    if SCHEDULE_FACTS[layout.schedule].splits_backward:
        parts.append(t("low bars: weight gradients"))
    return " · ".join(parts)


ZOOMED_BARS = 24
"""Bars of one stage in a zoomed part: about as many as carry their number."""


def pick_window(drawn: DrawnStep, controls: DeltaGenerator) -> Window:
    """The part of the step that is drawn: all of it, or parts to move through when it is long or zoomed."""
    lanes = int(drawn.bars["lane"].nunique())
    can_zoom = len(drawn.bars) > ZOOMED_BARS * lanes
    zoomed = can_zoom and controls.toggle(t("Zoom"), key="timeline-zoom")
    limit = min(MAX_MARKS, ZOOMED_BARS * lanes) if zoomed else MAX_MARKS
    window = window_of(drawn.bars, drawn.total_s, max_marks=limit)
    if window.num_windows == 1:
        return window
    part = controls.number_input(
        t("Part of the step"), 1, window.num_windows, key="timeline-part", width=120, label_visibility="collapsed",
    )  # fmt: skip
    return window_of(drawn.bars, drawn.total_s, index=part - 1, max_marks=limit)
