"""Typing a layout: its degrees as widgets, written to the address as a layout code."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from tpdpdash.job import Job
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER, RECOMPUTES, Layout
from tpdpdash.layout.resolve import draft_layout
from tpdpdash.layout.world import MAX_DEGREE
from tpdpdash.text import t
from tpdpdash.ui import services, state
from tpdpdash.ui.job_state import JobState
from tpdpdash.ui.key_words import layout_word
from tpdpdash.ui.layout_code import KEY_OF_CODE, OFFLOADS

ORDERS = (DEFAULT_RANK_ORDER, "tp-cp-ep-pp-dp", "tp-cp-pp-ep-dp", "dp-tp-cp-ep-pp", "pp-dp-cp-ep-tp")
"""Rank orders that are offered; the address takes any."""
SCHEDULES = ("1f1b", "gpipe", "zb-1p", "zb-2p", "zb-v", "dualpipe-v", "dualpipe")
"""Schedules that are offered; several chunks interleave."""
EDITED = ("tp", "cp", "ep", "pp", "mb", "v", "z")
"""Codes of the keys that can be typed, in this order."""


def asked_job(view: JobState) -> Job:
    """The Job of the layout in the address, else of the plan's best one, else of the pins, in the address's order.

    Raises InvalidInputError.
    """
    job = state.chosen_job(view)
    if job is not None:
        return job
    job = state.job(view)
    best = services.best_layout(job)
    if best is None:
        return replace(job, pins=replace(job.pins, rank_order=view.order))
    return state.chosen_job(replace(view, layout=state.layout_code(best))) or job


def draft(job: Job) -> Layout:
    """The layout as far as it can be understood, for the widgets of one that is not legal."""
    world_size = None if job.world_follows_layout else job.cluster.world_size
    return draft_layout(job.pins, job.model, job.training, world_size).layout


def rank_choice(place: DeltaGenerator, world_size: int) -> None:
    """The chosen rank."""
    bound = state.bound("rank")
    st.session_state[bound["key"]] = min(max(state.read_job_state().rank, 0), world_size - 1)
    place.number_input(t("Rank"), 0, world_size - 1, label_visibility="collapsed", width=130, **bound)


def order_choice(place: DeltaGenerator) -> None:
    """The rank order."""
    asked = state.read_job_state().order
    options = ORDERS if asked in ORDERS else (*ORDERS, asked)
    place.selectbox(t("Order"), options, label_visibility="collapsed", width=190, **state.bound("order"))


def degree_widgets(layout: Layout) -> None:
    """Number inputs for every degree; a change writes the whole layout to the address. DP follows from the world."""
    grid = st.grid(columns=4, min_column_width=110)
    for code in EDITED:
        field = KEY_OF_CODE[code]
        st.session_state[f"edit-{code}"] = getattr(layout, field)
        low, high = (0, 3) if code == "z" else (1, MAX_DEGREE)
        grid.number_input(layout_word(field), low, high, key=f"edit-{code}", on_change=_take)
    st.session_state["edit-recompute"] = layout.recompute
    grid.selectbox(t("Recompute"), RECOMPUTES, key="edit-recompute", on_change=_take)
    schedules = SCHEDULES if layout.schedule in SCHEDULES else (layout.schedule,)
    st.session_state["edit-schedule"] = layout.schedule
    grid.selectbox(layout_word("schedule"), schedules, key="edit-schedule", on_change=_take, disabled=layout.pp == 1)
    st.caption(t("DP = devices / (TP × CP × PP); the rest keeps its default."))


def _take() -> None:
    schedule = st.session_state["edit-schedule"]
    named = schedule in SCHEDULES[1:] and int(st.session_state["edit-pp"]) > 1  # it says how many chunks there are
    codes = [code for code in EDITED if not (named and code == "v")]
    parts = [f"{code}{int(st.session_state[f'edit-{code}'])}" for code in codes]
    recompute = st.session_state["edit-recompute"]
    if recompute != "none":
        parts.append(recompute)
    parts += [code for code in OFFLOADS if code in state.read_job_state().layout.split("-")]
    if named:
        parts.append(f"s:{schedule}")
    state.update(layout="-".join(parts))
