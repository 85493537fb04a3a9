"""Watch's cards: placed by the timed fragment, from tables that are made once for each look at the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from tpdpdash.charts import live as specs
from tpdpdash.charts.heat import noise_floor
from tpdpdash.charts.palette import Theme, phase_colors
from tpdpdash.compare.verdict import RECENT_STEPS
from tpdpdash.telemetry import analysis
from tpdpdash.telemetry.record import PHASES
from tpdpdash.text import t
from tpdpdash.ui import (
    figures,
    live_tables,
    parts,
    phases_strip,
    predicted_step,
    profile_view,
    run_services,
    services,
    state,
    watch_metrics,
    watch_verdict,
    watch_words,
)
from tpdpdash.ui.live import Look
from tpdpdash.units import format_count, format_difference, format_memory, format_share, format_time, with_error

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
        step = watch_words.last_step(look.told)
        parts.verdict("info", t("Charts paused at step {step}. The run goes on.", step=step if step is not None else 0))
    _failure_log(look)
    if not len(look.telemetry.steps):
        with parts.card(t("Starting"), phases_strip.caption()):
            phases_strip.strip(look)
        return
    parts.cards(watch_metrics.metrics(look))
    watch_verdict.cards(look)
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
    profile_view.card(look)


def _failure_log(look: Look) -> None:
    """The log of the rank that failed first, as text."""
    status = look.view.status
    failure = status.first_failure if status else None
    if failure is None or not failure.traceback:
        return
    who = t("Log of rank {rank}", rank=failure.rank) if failure.rank is not None else t("Log of torchrun")
    with st.expander(who):
        st.code(failure.traceback, language=None, wrap_lines=True)


# ---------------------------------------------------------------------------------------------- charts


def _step_time(look: Look, window: int | None) -> None:
    predicted, usual = look.prediction.step_s, analysis.usual(look.band.median_s, RECENT_STEPS)
    shown = with_error(format_time(predicted), look.prediction.error_frac)
    is_near = predicted_step.is_near(predicted, usual)
    caption = t("seconds; band: slowest to quickest rank")
    if is_near:
        caption += " · " + t("dashed: predicted {time}", time=shown)
    elif predicted:
        caption += " · " + t("predicted {time}, off this axis", time=shown)
    with parts.card(t("Step time"), caption):
        table = look.shared.once(
            ("step time", window, is_near),
            lambda: live_tables.step_time_table(look.band, window, look.prediction if is_near else None),
        )
        figures.live_chart(
            table, specs.step_time_spec(parts.theme()), "chart-step-time", t("Step time by step, over the ranks")
        )


def _who_is_slow(look: Look, rank: int | None, window: int | None) -> None:
    theme, last = parts.theme(), slice(-window if window else None, None)
    excess = look.excess_frac[:, last]
    noise = look.shared.once(("noise", window), lambda: noise_floor(excess))
    caption = t("own work above the median of its stage; blank: within its noise, {share}",
                share=format_difference(noise))  # fmt: skip
    with parts.card(t("Who is slow"), caption):
        table = look.shared.once(
            ("heat", window, rank, theme),
            lambda: live_tables.heat_table(look.telemetry.steps[last], excess, noise, theme, rank),
        )
        figures.live_chart(
            table, specs.heat_spec(theme), "chart-heat", t("Own work of each rank and step, as a heat map")
        )
        figures.legend(*live_tables.heat_legend(theme, noise))
        pooled = live_tables.pooled_note(look.telemetry.world_size)
        if pooled:
            st.caption(pooled)


def _phases(look: Look, rank: int | None, window: int | None) -> None:
    telemetry = look.telemetry
    phases, ranks = look.phases(window), live_tables.shown_ranks(look.excess_frac, rank)
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
            st.dataframe(live_tables.summary_table(phases, ranks, telemetry.ranks), hide_index=True, key="summary",
                         alt=t("Step time of each rank, and its parts as shares"))  # fmt: skip
            return
        theme = parts.theme()
        fills = live_tables.bar_phases(theme)
        table = look.shared.once(
            ("phases table", window, rank, theme),
            lambda: live_tables.phases_table(phases, ranks, telemetry.ranks, theme),
        )
        figures.live_chart(table, specs.phases_spec(theme, len(ranks)), "chart-phases", t("Phases of a step by rank"))
        figures.legend(fills, _phase_legend(phases))
        if look.planned_idle_s is None and max(
            (info.coords.get("pp", 0) for info in telemetry.ranks.values()), default=0
        ):
            st.caption(t("Waiting for a pipeline neighbour holds the bubble that the schedule plans."))


def _phase_legend(phases: analysis.RankPhases) -> dict[str, str]:
    """The phases that occur; unattributed and other always, with their shares."""
    seconds = {"unattributed": phases.unattributed_s, "other": phases.phase_s[:, PHASES.index("other")]}
    shares = {phase: _mean(phases.share(spent)) for phase, spent in seconds.items()}
    seen = live_tables.occurring(phases)
    return {
        phase: f"{live_tables.phase_word(phase)} {format_share(shares[phase])}"
        if phase in shares
        else live_tables.phase_word(phase)
        for phase in live_tables.bar_phases("light")
        if phase in seen or phase in shares
    }


def _mean(values: NDArray[np.float64]) -> float | None:
    """Of those that are known."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _memory(look: Look, rank: int | None) -> None:
    telemetry, expected, theme = look.telemetry, look.prediction, parts.theme()
    ranks = live_tables.shown_ranks(look.excess_frac, rank)
    on_cpu = all(info.device.startswith("cpu") for info in telemetry.ranks.values())
    caption = t("peak of each rank; process memory on a CPU") if on_cpu else t("peak of each rank")
    with parts.card(t("Memory"), caption):
        capacity = expected.capacity_bytes
        shown = format_memory(capacity)
        limit = t("{memory} a rank", memory=shown) if on_cpu else t("{memory} usable", memory=shown)
        table = look.shared.once(
            ("memory", rank, theme),
            lambda: live_tables.memory_table(telemetry, ranks, theme, expected.stage_bytes, capacity, limit),
        )
        figures.live_chart(table, specs.memory_spec(theme, len(ranks)), "chart-memory", t("Peak memory by rank"))
        if expected.stage_bytes:
            st.caption(t("Upright line: predicted."))


def _timeline(look: Look, rank: int | None) -> None:
    sampled, theme = look.telemetry.timelines, parts.theme()
    caption, run_id = t("microbatch numbers; hollow: bubble, waiting, messages"), look.view.run_id
    with parts.card(t("One step: predicted and measured"), caption) as right:
        right.download_button(
            t("Trace"),
            partial(run_services.trace, run_id),
            f"{run_id}.trace.json.gz",
            help=t("All kept steps of all ranks, for ui.perfetto.dev"),
            icon=":material/download:",
        )
        if not sampled:
            st.caption(_no_timeline(look))
            return
        step = max(sampled)
        actions = live_tables.lanes_of(sampled[step], look.telemetry.ranks, rank)
        told = (step, look.telemetry.restarts, len(sampled[step]), len(look.telemetry.ranks))
        table, said = look.lasting.once(("timeline", *told, rank, theme), lambda: _timeline_table(look, actions, theme))
        spec = specs.timeline_spec(theme, table["row"].nunique(), t("Seconds since the step began"))
        figures.live_chart(table, spec, "chart-timeline", t("Forward and backward of each microbatch in one step"))
        words = {name: live_tables.phase_word(name) for name in ("forward", "backward", *said.phases)}
        figures.legend(phase_colors(theme), {**words, "idle": t("waiting and messages")})
        st.caption(" ".join(filter(None, (_measured_words(step, len(actions), len(sampled[step])), said.text))))


def _measured_words(step: int, shown: int, told: int) -> str:
    """Which step is drawn, and of how many of the ranks that told of it."""
    if shown == told:
        return t("Measured: step {step}.", step=step)
    return t("Measured: step {step}, {shown} of {told} ranks.", step=step, shown=format_count(shown),
             told=format_count(told))  # fmt: skip


def _no_timeline(look: Look) -> str:
    """Why there is nothing to draw: not yet, or never."""
    if look.view.is_over:
        return t("No step of this run was recorded in detail: its ranks told of no microbatch.")
    return t(
        "Every tenth step is recorded in detail, from step 2 on, where the ranks tell of their microbatches; none has "
        "come yet."
    )


def _timeline_table(
    look: Look, actions: Mapping[int, Sequence[live_tables.Action]], theme: Theme
) -> tuple[pd.DataFrame, predicted_step.Said]:
    until_s, whole_s = live_tables.drawn_span(actions)
    measured = live_tables.timeline_table(actions, until_s, look.telemetry.ranks, theme)
    if until_s < whole_s:
        shown, whole = format_time(until_s), format_time(whole_s)
        return measured, predicted_step.Said(
            text=t(
                "Drawn: its first {shown} of {whole}, without the prediction; Trace holds all.",
                shown=shown,
                whole=whole,
            )
        )
    return predicted_step.above(measured, look.plan, look.prediction, theme)


def _loss(look: Look) -> None:
    with parts.card(t("Loss"), t("smoothed {a}; thin: raw", a=live_tables.SMOOTHING)):
        table = look.shared.once("loss table", lambda: live_tables.loss_table(look.telemetry.steps, look.loss))
        if not len(table):
            st.caption(t("No loss yet: the ranks of the last stage report it."))
            return
        figures.live_chart(table, specs.loss_spec(parts.theme()), "chart-loss", t("Loss by step"))
