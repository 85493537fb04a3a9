"""Watch's cards: placed by the timed fragment, from tables that are made once for each look at the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from tpdpdash.charts import live as specs
from tpdpdash.charts.heat import noise_floor
from tpdpdash.charts.palette import phase_colors
from tpdpdash.telemetry import analysis
from tpdpdash.telemetry.reader import Telemetry
from tpdpdash.text import t
from tpdpdash.ui import (
    figures,
    live_tables,
    parts,
    phases_strip,
    predicted_step,
    services,
    state,
    watch_metrics,
    watch_words,
)
from tpdpdash.ui.live import Look
from tpdpdash.units import format_difference, format_memory, format_share, format_time

WINDOWS = {"50": 50, "200": 200, "all": None}


def _controls(look: Look, cores: int | None) -> tuple[int | None, int | None]:
    """The rank that is looked at, the window of steps, and what to know about the figures."""
    row = st.container(horizontal=True, vertical_alignment="bottom")
    ranks = ("all", *map(str, range(look.telemetry.world_size)))
    rank = row.selectbox(t("Rank"), width=110, **state.choice("of", ranks, "all"))
    window = row.segmented_control(t("Window, steps"), required=True, **state.choice("window", tuple(WINDOWS), "200"))
    told = watch_words.notes(look, cores)
    row.caption(" ".join(told) or t("All times are wall times of the ranks."), width="stretch")
    return (None if rank in (None, "all") else int(rank)), WINDOWS[window or "200"]


def screen(look: Look, *, paused: bool = False) -> None:
    """Everything of one run that changes while it runs."""
    found = watch_words.sentence(look)
    parts.verdict(found.kind, found.text, found.detail)
    if paused:
        step = watch_words.last_step(look.telemetry)
        parts.verdict("info", t("Charts paused at step {step}. The run goes on.", step=step if step is not None else 0))
    _failure_log(look)
    if not len(look.telemetry.steps):
        with parts.card(t("Starting"), phases_strip.caption()):
            phases_strip.strip(look)
        return
    parts.cards(watch_metrics.metrics(look))
    rank, window = _controls(look, services.detection().host.cores)
    left, right = st.columns(2)
    with left:
        _step_time(look, window)
    with right:
        _who_is_slow(look, rank, window)
    left, right = st.columns([2, 1])
    with left:
        _phases(look, rank, window)
    with right:
        _memory(look, rank)
    left, right = st.columns([2, 1])
    with left:
        _timeline(look, rank)
    with right:
        _loss(look)


def _failure_log(look: Look) -> None:
    """The log of the rank that failed first, as text."""
    status = look.view.status
    failure = status.first_failure if status else None
    if failure is None or not failure.traceback:
        return
    who = t("Log of rank {rank}", rank=failure.rank) if failure.rank is not None else t("Log of torchrun")
    with st.expander(who):
        st.code(failure.traceback, language=None, wrap_lines=True)


def _chart(table: Any, spec: specs.Spec, key: str, alt: str) -> None:
    st.vega_lite_chart(table, spec, key=key, theme=None, width="stretch", alt=alt)


# ---------------------------------------------------------------------------------------------- charts


def _step_time(look: Look, window: int | None) -> None:
    band = analysis.step_band(look.telemetry)
    predicted, usual = look.prediction.step_s, watch_metrics.recent(band.median_s)
    is_near = predicted_step.is_near(predicted, usual)
    caption = t("seconds; band: slowest to quickest rank")
    if is_near:
        caption += " · " + t("dashed: predicted {time}", time=format_time(predicted))
    elif predicted:
        caption += " · " + t("predicted {time}, off this axis", time=format_time(predicted))
    with parts.card(t("Step time"), caption):
        table = live_tables.step_time_table(band, window, predicted if is_near else None)
        _chart(table, specs.step_time_spec(parts.theme()), "chart-step-time", t("Step time by step, over the ranks"))


def _who_is_slow(look: Look, rank: int | None, window: int | None) -> None:
    theme = parts.theme()
    excess = live_tables.excess_work(look.telemetry, window)
    noise = noise_floor(excess)
    caption = t("own work above the median of its stage; blank: within its noise, {share}",
                share=format_difference(noise))  # fmt: skip
    with parts.card(t("Who is slow"), caption):
        table = live_tables.heat_table(look.telemetry, excess, noise, theme, rank)
        _chart(table, specs.heat_spec(theme), "chart-heat", t("Own work of each rank and step, as a heat map"))
        figures.legend(*live_tables.heat_legend(theme, noise))
        pooled = live_tables.pooled_note(look.telemetry.world_size)
        if pooled:
            st.caption(pooled)


def _phases(look: Look, rank: int | None, window: int | None) -> None:
    telemetry = look.telemetry
    phases = analysis.rank_phases(telemetry, window)
    ranks = live_tables.shown_ranks(telemetry, rank)
    caption = t("s stage, d replica, t tensor slice; mean of {n} steps", n=phases.num_steps)
    cut = parts.truncated(len(ranks), telemetry.world_size)
    with parts.card(t("What each rank does"), f"{caption} · {cut}" if cut else caption) as right:
        shown = right.segmented_control(
            t("Show"),
            ("phases", "summary"),
            default="phases",
            required=True,
            format_func=lambda option: t(option).capitalize(),
            label_visibility="collapsed",
            key="phases-or-summary",
        )
        if shown == "summary":
            st.dataframe(live_tables.summary_table(phases, ranks, telemetry.ranks), hide_index=True, key="summary")
            return
        theme = parts.theme()
        fills = live_tables.bar_phases(theme)
        table = live_tables.phases_table(phases, ranks, telemetry.ranks, theme)
        _chart(table, specs.phases_spec(theme, len(ranks)), "chart-phases", t("Phases of a step by rank"))
        figures.legend(fills, _phase_legend(telemetry, phases))
        st.caption(t("Waiting for a pipeline neighbour holds the bubble that the schedule plans."))


def _phase_legend(telemetry: Telemetry, phases: analysis.RankPhases) -> dict[str, str]:
    """The phases that occur; unattributed and other always, with their shares."""
    shares = {
        "unattributed": float(np.nanmean(analysis.unattributed_share(telemetry))),
        "other": float(np.nanmean(analysis.other_share(telemetry))),
    }
    seen = live_tables.occurring(phases)
    return {
        phase: f"{live_tables.phase_word(phase)} {format_share(shares[phase])}"
        if phase in shares
        else live_tables.phase_word(phase)
        for phase in live_tables.bar_phases("light")
        if phase in seen or phase in shares
    }


def _memory(look: Look, rank: int | None) -> None:
    telemetry, expected = look.telemetry, look.prediction
    ranks = live_tables.shown_ranks(telemetry, rank)
    on_cpu = all(info.device.startswith("cpu") for info in telemetry.ranks.values())
    caption = t("peak of each rank; process memory on a CPU") if on_cpu else t("peak of each rank")
    with parts.card(t("Memory"), caption):
        capacity = expected.capacity_bytes
        shown = format_memory(capacity)
        limit = t("{memory} a rank", memory=shown) if on_cpu else t("{memory} usable", memory=shown)
        table = live_tables.memory_table(telemetry, ranks, parts.theme(), expected.stage_bytes, capacity, limit)
        _chart(table, specs.memory_spec(parts.theme(), len(ranks)), "chart-memory", t("Peak memory by rank"))
        if expected.stage_bytes:
            st.caption(t("Upright line: predicted."))


def _timeline(look: Look, rank: int | None) -> None:
    sampled, theme = look.telemetry.timelines, parts.theme()
    with parts.card(t("One step: predicted and measured"), t("microbatch numbers; hollow: bubble, waiting, messages")):
        if not sampled:
            st.caption(t("Every tenth step is recorded in detail, from step 2 on; none has come yet."))
            return
        step = max(sampled)
        actions = live_tables.lanes_of(sampled[step], look.telemetry.ranks, rank)
        measured = live_tables.timeline_table(actions, look.telemetry.ranks, theme)
        table, said = predicted_step.above(measured, services.predicted_run(look.view.run_id), look.prediction, theme)
        spec = specs.timeline_spec(theme, table["row"].nunique(), t("Seconds since the step began"))
        _chart(table, spec, "chart-timeline", t("Forward and backward of each microbatch in one step"))
        words = {name: live_tables.phase_word(name) for name in ("forward", "backward", *said.phases)}
        figures.legend(phase_colors(theme), {**words, "idle": t("waiting and messages")})
        cut = parts.truncated(len(actions), len(sampled[step]))
        st.caption(" ".join(filter(None, (t("Measured: step {step}.", step=step), cut, said.text))))


def _loss(look: Look) -> None:
    with parts.card(t("Loss"), t("smoothed {a}; thin: raw", a=live_tables.SMOOTHING)):
        table = live_tables.loss_table(look.telemetry)
        if not len(table):
            st.caption(t("No loss yet: the ranks of the last stage report it."))
            return
        _chart(table, specs.loss_spec(parts.theme()), "chart-loss", t("Loss by step"))
