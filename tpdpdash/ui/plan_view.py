"""A plan as sentences and plain tables: verdict, cards, ranked table, memory against speed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import streamlit as st

from tpdpdash.compare.error_words import bar_sentence
from tpdpdash.cost.figures import TIME_PARTS, StepSeconds
from tpdpdash.cost.result import Estimate
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.job import Job, write_job
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER
from tpdpdash.search.margins import margins
from tpdpdash.text import t
from tpdpdash.ui import parts, plan_margins, services, state
from tpdpdash.ui.estimate_view import cluster_name, degrees, device_word, tight_sentence, variant
from tpdpdash.ui.figures import bar_figure
from tpdpdash.ui.job_state import JobState
from tpdpdash.units import (
    format_count,
    format_large,
    format_memory,
    format_share,
    format_time,
    gib,
    plus_minus,
    with_error,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

    from tpdpdash.cost.estimate import Estimates
    from tpdpdash.search.plan import Plan

ROWS_SHOWN = 8
"""Rows of the ranked table before "Show all"."""
_LAST_PLAN = "plan-signature"
BARS_SHOWN = 6
"""Layouts of which the step is drawn."""


def pick_place(plan: Plan) -> int:
    """Row of the ranked table that is the pick."""
    return int(np.flatnonzero(plan.variants == plan.pick)[0])


def pick_sentence(picked: Estimate, job: Job) -> str:
    """The answer: which layout, how fast, and that it fits."""
    return t(
        "Run **{degrees}** with {variant}: **{speed} tokens/s per {device}**, and it fits with {spare} to spare.",
        degrees=degrees(picked.layout),
        variant=variant(picked.layout),
        speed=with_error(format_large(picked.throughput.tokens_per_s_per_device), picked.error_frac),
        device=device_word(job),
        spare=format_memory(picked.spare_bytes),
    ) + tight_sentence(picked)


def detail_sentence(picked: Estimate, plan: Plan, ranked: Estimates) -> str:
    """Why this one, the fastest of other degrees, and how the error of the answer is known."""
    told = [] if plan.near < 2 else [plan_margins.simplest_sentence(plan.near)]
    others = plan.variants[plan.variants != plan.pick]
    if len(others):
        pair = np.array([plan.pick, others[0]])
        told.append(plan_margins.runner_up_sentence(ranked, pair, names_of(ranked, pair[1:])[0]))
    else:
        told.append(t("No other TP × PP × DP fits."))
    return " ".join((*told, bar_sentence(picked.time_error)))


# ------------------------------------------------------------------------------------------- the table


def codes(ranked: Estimates, rows: NDArray[np.intp]) -> list[str]:
    """The code of each row's layout, as it stands in the address."""
    return [state.layout_code(ranked.columns.layout(int(row))) for row in rows]


def chosen(
    ranked: Estimates, rows: NDArray[np.intp], codes: list[str], pick: int, view: JobState
) -> tuple[int, Estimate]:
    """(row of the table, estimate) of the layout in the address: a row itself, or another variant of a row's degrees.

    Anything else gives way to row `pick`, in the address too.
    """
    if view.layout in codes and view.order == DEFAULT_RANK_ORDER:
        position = codes.index(view.layout)
        return position, ranked.row(int(rows[position]))
    estimate = _typed(view)
    if estimate is not None and _name(estimate) in names_of(ranked, rows):
        return names_of(ranked, rows).index(_name(estimate)), estimate
    state.choose_layout(codes[pick])
    return pick, ranked.row(int(rows[pick]))


def _typed(view: JobState) -> Estimate | None:
    """The estimate of the layout in the address; None when there is none, or it is not possible."""
    try:
        job = state.chosen_job(view)
        return None if job is None else services.estimate_for(job)
    except InvalidInputError as wrong:
        told = Fault(code="address_layout_not_possible", field="layout", value=view.layout)
        state.tell((told, *wrong.faults))
        parts.faults((told, *wrong.faults), "info")
        return None


def follow_inputs(view: JobState, job: Job, picked: str) -> JobState:
    """The view; when this tab's inputs have changed since its last plan, with the new plan's pick chosen.

    A layout that came with the address of a first visit stays.
    """
    before = st.session_state.get(_LAST_PLAN)
    st.session_state[_LAST_PLAN] = signature(job)
    if before in (None, signature(job)):
        return view
    state.choose_layout(picked)
    return state.read_job_state()


def _name(estimate: Estimate) -> str:
    return degrees(estimate.layout, " · ")


def ranked_table(ranked: Estimates, rows: NDArray[np.intp], job: Job) -> pd.DataFrame:
    """One row a TP × PP × DP: what a person reads, speed and memory as numbers for their bars."""
    device = device_word(job)
    layouts = [ranked.columns.layout(int(row)) for row in rows]
    bubble, speed, held = ranked.bubble_frac, ranked.throughput.tokens_per_s_per_device[rows], gib(ranked.peak_bytes)
    fastest, capacity = bar_limits(ranked, job).values()
    errors, memory_errors = ranked.error_frac[rows], ranked.memory_error_frac[rows]
    tie = plan_margins.tie_of(ranked)
    lost, best_s = margins(ranked, rows.tolist()), float(ranked.step_s[int(rows[0])])
    return pd.DataFrame(
        {
            "#": range(1, len(rows) + 1),
            t("Layout"): [degrees(layout, " · ") for layout in layouts],
            t("Tokens/s per {device}", device=device): speed,
            t("± tokens/s"): _errors(speed, errors, fastest),
            t("Memory, GiB"): held[rows],
            t("± GiB"): _errors(held[rows], memory_errors, capacity),
            t("Step time"): [
                with_error(format_time(float(s)), float(e)) for s, e in zip(ranked.step_s[rows], errors, strict=True)
            ],
            "MFU": [format_share(float(mfu)) for mfu in ranked.throughput.mfu[rows]],
            t("Bubble"): [format_share(float(share)) for share in bubble[rows]],
            t("Against best"): [plan_margins.against_best(each, tie) for each in lost],
            t("Where it loses"): [plan_margins.where(each, best_s) for each in lost],
            t("Micro-batch"): [layout.micro_batch_size for layout in layouts],
            t("Chunks"): [layout.num_model_chunks for layout in layouts],
            t("Recompute"): [layout.recompute for layout in layouts],
            "ZeRO": [layout.zero_stage for layout in layouts],
        }
    )


def _errors(values: Floats, fracs: Floats, limit: float) -> list[str]:
    """The error of each value, in the unit of its bar."""
    return [plus_minus(bar_figure(float(v), limit), float(f)) for v, f in zip(values, fracs, strict=True)]


def csv_table(ranked: Estimates, rows: NDArray[np.intp]) -> pd.DataFrame:
    """The same with full figures in base units, for a spreadsheet."""
    layouts = [ranked.columns.layout(int(row)) for row in rows]
    keys = ("tp", "cp", "ep", "pp", "dp", "micro_batch_size", "num_model_chunks", "schedule", "zero_stage", "recompute")
    table = {key: [getattr(layout, key) for layout in layouts] for key in keys}
    figures = {
        "step_s": ranked.step_s[rows],
        "tokens_per_s_per_device": ranked.throughput.tokens_per_s_per_device[rows],
        "error_frac": ranked.error_frac[rows],
        "mfu": ranked.throughput.mfu[rows],
        "peak_bytes": ranked.peak_bytes[rows],
        "memory_error_frac": ranked.memory_error_frac[rows],
    }
    times = {name: getattr(ranked.time, name)[rows] for name in TIME_PARTS}
    return pd.DataFrame({"layout": codes(ranked, rows), **table, **figures, **times})


def parts_of(ranked: Estimates, rows: NDArray[np.intp]) -> list[StepSeconds[float]]:
    """Seconds of a step by part, of each row."""
    return [StepSeconds(**{name: float(getattr(ranked.time, name)[row]) for name in TIME_PARTS}) for row in rows]


def sums_with_errors(table: pd.DataFrame, ranked: Estimates, rows: NDArray[np.intp] | None) -> tuple[Floats, Floats]:
    """(seconds of each row of a step table, its error as a share: NaN where rows is None, for parts of a step)."""
    sums = table.groupby("row")["value"].sum().to_numpy()
    return sums, np.full(len(sums), np.nan) if rows is None else ranked.error_frac[rows]


def sum_texts(sums: Floats, fracs: Floats) -> list[str]:
    """The totals as they stand beside their bars."""
    return [with_error(format_time(float(s)), float(e)) for s, e in zip(sums, fracs, strict=True)]


def known(frac: float) -> float | None:
    """A share of the columns as a single figure has it: None where it is not known."""
    return float(frac) if np.isfinite(frac) else None


def names_of(ranked: Estimates, rows: NDArray[np.intp]) -> list[str]:
    """Degrees of each row."""
    return [degrees(ranked.columns.layout(int(row)), " · ") for row in rows]


def search_caption(plan: Plan, ranked: Estimates, shown: int, total: int) -> str:
    """What the ranked table is a part of, and which of its rows are too near to tell apart."""
    told = t(
        "{feasible} fit of {considered} considered in {seconds} · one row for each TP × PP × DP, its best variant",
        feasible=format_count(plan.feasible), considered=format_count(plan.considered),
        seconds=format_time(plan.seconds),
    )  # fmt: skip
    tie = plan_margins.tie_of(ranked)
    near = "" if tie is None else t("tie: a step within {share} of the best one's", share=format_share(tie))
    return " · ".join(filter(None, (parts.truncated(shown, total), told, near)))


def scatter_table(ranked: Estimates, plan: Plan) -> pd.DataFrame:
    """Columns memory_bytes, speed, name, layout, on_front, is_pick: one row a layout that was kept."""
    layouts = [ranked.columns.layout(i) for i in range(len(ranked))]
    on_front = np.zeros(len(ranked), np.bool_)
    on_front[plan.front] = True
    return pd.DataFrame(
        {
            "memory_bytes": ranked.peak_bytes,
            "speed": ranked.throughput.tokens_per_s_per_device,
            "name": [f"{degrees(layout, ' · ')}, {variant(layout)}" for layout in layouts],
            "layout": [state.layout_code(layout) for layout in layouts],
            "on_front": on_front,
            "is_pick": np.arange(len(ranked)) == plan.pick,
        }
    )


def scatter_caption(plan: Plan, kept: int) -> str:
    """Which layouts the picture shows, and what its line is."""
    return t("{cut} · line: fastest for its memory", cut=parts.truncated(kept, plan.feasible) or t("all that fit"))


def bar_limits(ranked: Estimates, job: Job) -> dict[str, float]:
    """The full length of each bar in the table: the fastest layout, and the memory that can be used."""
    return {
        t("Tokens/s per {device}", device=device_word(job)): float(ranked.throughput.tokens_per_s_per_device.max()),
        t("Memory, GiB"): gib(ranked.capacity_bytes),
    }


def signature(job: Job) -> str:
    """Changes with what a person asked for, not with this machine's free memory: the table's key, so that no selection
    outlives its rows."""
    return hashlib.sha256(write_job(job).encode()).hexdigest()[:12]


def nothing_fits(plan: Plan, job: Job) -> tuple[str, str]:
    """The verdict when no layout fits, and how far the closest one misses."""
    nothing = t("**Nothing fits {cluster}.**", cluster=cluster_name(job))
    if plan.closest is None or plan.closest_bytes_short is None:
        # A rule about model or training refuses whatever the degrees are: it goes before those about a degree.
        most = max(
            plan.refusals.values(),
            key=lambda refusal: (not refusal.fault.field.startswith("layout."), refusal.count),
            default=None,
        )
        why = "" if most is None else parts.literal_sentence(most.fault)
        return t("**No layout is legal.** Nothing can be compared on {cluster}.", cluster=cluster_name(job)), why
    closest = t(
        "The closest layout, {degrees}, is {short} short.",
        degrees=degrees(plan.closest.layout),
        short=format_memory(plan.closest_bytes_short),
    )
    return f"{nothing} {closest}", variant(plan.closest.layout)
