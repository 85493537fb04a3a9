"""A plan as sentences and plain tables: verdict, cards, ranked table, memory against speed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import streamlit as st

from tpdpdash.cost.result import TIME_PARTS, Estimate
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.job import Job, write_job
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER
from tpdpdash.text import t
from tpdpdash.ui import parts, services, state
from tpdpdash.ui.estimate_view import cluster_name, degrees, device_word, fullest_stage, variant
from tpdpdash.ui.parts import Metric
from tpdpdash.units import (
    DAY_S,
    format_count,
    format_difference,
    format_energy,
    format_large,
    format_memory,
    format_memory_of,
    format_money,
    format_share,
    format_time,
    gib,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.cost.estimate import Estimates
    from tpdpdash.search.plan import Plan

ROWS_SHOWN = 8
"""Rows of the ranked table before "Show all"."""
_LAST_PLAN = "plan-signature"
BARS_SHOWN = 6
"""Layouts of which the step is drawn."""


def best_sentence(best: Estimate, job: Job) -> str:
    """The answer: which layout, how fast, and that it fits."""
    return t(
        "Run **{degrees}** with {variant}: **{speed} tokens/s per {device}**, and it fits with {spare} to spare.",
        degrees=degrees(best.layout),
        variant=variant(best.layout),
        speed=format_large(best.throughput["tokens_per_s_per_device"]),
        device=device_word(job),
        spare=format_memory(best.spare_bytes),
    )


def runner_up_sentence(ranked: Estimates, rows: NDArray[np.intp]) -> str:
    """By how much the next degrees are slower, and that no error is known."""
    unknown = t("No error is known yet for this layout.")
    if len(rows) < 2:
        return t("No other TP × PP × DP fits.") + " " + unknown
    second = ranked.columns.layout(int(rows[1]))
    slower = _against_best(ranked, rows)[1]
    told = t("as fast") if format_difference(slower) == "0 %" else t("{by} slower", by=format_share(-slower))
    runner = t("The runner-up, {degrees}, is {told}.", degrees=degrees(second, " · "), told=told)
    return f"{runner} {unknown}"


def _against_best(ranked: Estimates, rows: NDArray[np.intp]) -> list[float]:
    speed = ranked.throughput.tokens_per_s[rows]
    return [float(value) for value in speed / speed[0] - 1]


def metrics(best: Estimate, job: Job) -> list[Metric]:
    """The six cards."""
    speed, budget, training = best.throughput, best.budget, job.training
    device = device_word(job)
    tokens = t("{tokens} tokens take", tokens=format_large(training.tokens)) if training.tokens else t("Training takes")
    held, _, capacity = format_memory_of(best.peak_bytes, best.capacity_bytes).partition(" ")
    money = format_money(budget["cost"])
    return [
        Metric(
            label=t("Tokens/s per {device}", device=device),
            value=format_large(speed["tokens_per_s_per_device"]),
            note=t("{tokens} tokens/s in all", tokens=format_large(speed["tokens_per_s"])),
        ),
        Metric(
            label=t("Step time"),
            value=format_time(best.step_s),
            note=t("{tokens} tokens a step", tokens=format_large(training.tokens_per_step)),
        ),
        Metric(
            label="MFU",
            value=format_share(speed["mfu"]),
            note=t("HFU {hfu}", hfu=format_share(speed["hfu"])),
            help=t(
                "Model FLOP/s over the dense peak: forward and backward, causal attention counted half. "
                "HFU counts what is recomputed as well."
            ),
        ),
        Metric(
            label=t("Memory, worst stage"),
            value=held,
            unit=capacity,
            note=t(
                "stage {stage} · {share}",
                stage=fullest_stage(best),
                share=format_share(best.held_frac),
            ),
        ),
        Metric(
            label=tokens,
            value=format_time(budget["days"] * DAY_S),
            note=t("{hours} {device}-hours", hours=format_large(budget["device_hours"]), device=device),
        ),
        Metric(
            label=t("and cost"),
            value=money,
            note=t("{energy} in the {device}s", energy=format_energy(budget["energy_kwh"]), device=device),
            help="" if job.cluster.price_per_device_hour else t("Give a price per device-hour on the Cluster page."),
        ),
    ]


# ------------------------------------------------------------------------------------------- the table


def codes(ranked: Estimates, rows: NDArray[np.intp]) -> list[str]:
    """The code of each row's layout, as it stands in the address."""
    return [state.layout_code(ranked.columns.layout(int(row))) for row in rows]


def chosen(ranked: Estimates, rows: NDArray[np.intp], codes: list[str], view: state.JobState) -> tuple[int, Estimate]:
    """(row of the table, estimate) of the layout in the address: a row itself, or another variant of a row's degrees.

    Anything else gives way to the best layout, in the address too.
    """
    if view.layout in codes and view.order == DEFAULT_RANK_ORDER:
        position = codes.index(view.layout)
        return position, ranked.row(int(rows[position]))
    estimate = _typed(view)
    if estimate is not None and _name(estimate) in names_of(ranked, rows):
        return names_of(ranked, rows).index(_name(estimate)), estimate
    state.choose_layout(codes[0])
    return 0, ranked.row(int(rows[0]))


def _typed(view: state.JobState) -> Estimate | None:
    """The estimate of the layout in the address; None when there is none, or it is not possible."""
    try:
        job = state.chosen_job(view)
        return None if job is None else services.estimate_for(job)
    except InvalidInputError as wrong:
        told = Fault(code="address_layout_not_possible", field="layout", value=view.layout)
        state.tell((told, *wrong.faults))
        parts.faults((told, *wrong.faults), "info")
        return None


def follow_inputs(view: state.JobState, job: Job, best: str) -> state.JobState:
    """The view; when this tab's inputs have changed since its last plan, with the new plan's best layout chosen.

    A layout that came with the address of a first visit stays.
    """
    before = st.session_state.get(_LAST_PLAN)
    st.session_state[_LAST_PLAN] = signature(job)
    if before in (None, signature(job)):
        return view
    state.choose_layout(best)
    return state.read_job_state()


def _name(estimate: Estimate) -> str:
    return degrees(estimate.layout, " · ")


def ranked_table(ranked: Estimates, rows: NDArray[np.intp], job: Job) -> pd.DataFrame:
    """One row a TP × PP × DP: what a person reads, speed and memory as numbers for their bars."""
    device = device_word(job)
    layouts = [ranked.columns.layout(int(row)) for row in rows]
    bubble = ranked.bubble_frac
    return pd.DataFrame(
        {
            "#": range(1, len(rows) + 1),
            t("Layout"): [degrees(layout, " · ") for layout in layouts],
            t("Tokens/s per {device}", device=device): ranked.throughput.tokens_per_s_per_device[rows],
            t("Memory, GiB"): gib(ranked.peak_bytes[rows]),
            t("Step time"): [format_time(float(s)) for s in ranked.step_s[rows]],
            "MFU": [format_share(float(mfu)) for mfu in ranked.throughput.mfu[rows]],
            t("Bubble"): [format_share(float(share)) for share in bubble[rows]],
            t("Against best"): [_difference(value) for value in _against_best(ranked, rows)],
            t("Micro-batch"): [layout.micro_batch_size for layout in layouts],
            t("Chunks"): [layout.num_model_chunks for layout in layouts],
            t("Recompute"): [layout.recompute for layout in layouts],
            "ZeRO": [layout.zero_stage for layout in layouts],
        }
    )


def _difference(value: float) -> str:
    return t("best") if value == 0 else format_difference(value)


def csv_table(ranked: Estimates, rows: NDArray[np.intp]) -> pd.DataFrame:
    """The same with full figures in base units, for a spreadsheet."""
    layouts = [ranked.columns.layout(int(row)) for row in rows]
    keys = ("tp", "cp", "ep", "pp", "dp", "micro_batch_size", "num_model_chunks", "schedule", "zero_stage", "recompute")
    table = {key: [getattr(layout, key) for layout in layouts] for key in keys}
    figures = {
        "step_s": ranked.step_s[rows],
        "tokens_per_s_per_device": ranked.throughput.tokens_per_s_per_device[rows],
        "mfu": ranked.throughput.mfu[rows],
        "peak_bytes": ranked.peak_bytes[rows],
    }
    times = {name: getattr(ranked.time, name)[rows] for name in TIME_PARTS}
    return pd.DataFrame({"layout": codes(ranked, rows), **table, **figures, **times})


def parts_of(ranked: Estimates, rows: NDArray[np.intp]) -> list[Mapping[str, float]]:
    """Seconds of a step by part, one mapping a row."""
    return [{name: float(getattr(ranked.time, name)[row]) for name in TIME_PARTS} for row in rows]


def names_of(ranked: Estimates, rows: NDArray[np.intp]) -> list[str]:
    """Degrees of each row."""
    return [degrees(ranked.columns.layout(int(row)), " · ") for row in rows]


def search_caption(considered: int, feasible: int, seconds: float, shown: int, total: int) -> str:
    """What the ranked table is a part of."""
    cut = parts.truncated(shown, total)
    told = t(
        "{feasible} fit of {considered} considered in {seconds} · one row for each TP × PP × DP, its best variant",
        feasible=format_count(feasible), considered=format_count(considered), seconds=format_time(seconds),
    )  # fmt: skip
    return f"{cut} · {told}" if cut else told


def scatter_table(ranked: Estimates, front: NDArray[np.intp]) -> pd.DataFrame:
    """Columns memory_bytes, speed, name, layout, on_front, is_best: one row a layout that was kept."""
    layouts = [ranked.columns.layout(i) for i in range(len(ranked))]
    on_front = np.zeros(len(ranked), np.bool_)
    on_front[front] = True
    return pd.DataFrame(
        {
            "memory_bytes": ranked.peak_bytes,
            "speed": ranked.throughput.tokens_per_s_per_device,
            "name": [f"{degrees(layout, ' · ')}, {variant(layout)}" for layout in layouts],
            "layout": [state.layout_code(layout) for layout in layouts],
            "on_front": on_front,
            "is_best": np.arange(len(ranked)) == 0,
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
