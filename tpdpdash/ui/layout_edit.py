"""Typing a layout: its degrees as widgets, written to the address as a layout code."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from tpdpdash.job import Job
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER, RECOMPUTES, Layout
from tpdpdash.layout.resolve import draft_layout
from tpdpdash.text import t
from tpdpdash.ui import services, state

ORDERS = (DEFAULT_RANK_ORDER, "tp-cp-ep-pp-dp", "tp-cp-pp-ep-dp", "dp-tp-cp-ep-pp", "pp-dp-cp-ep-tp")
"""Rank orders that are offered; the address takes any."""
CODES = {
    "tp": "tp",
    "cp": "cp",
    "ep": "ep",
    "pp": "pp",
    "mb": "micro_batch_size",
    "v": "num_model_chunks",
    "z": "zero_stage",
}
MAX_DEGREE = 100_000


def asked_job(view: state.JobState) -> Job:
    """The Job of the layout in the address, else of the plan's best one, else of the pins; with the order=… of the
    address. Raises InvalidInputError."""
    order = st.query_params.get("order", DEFAULT_RANK_ORDER)
    job = state.chosen_job(view) or _best_job(view)
    if order == DEFAULT_RANK_ORDER:
        return job
    return replace(job, pins=replace(job.pins, rank_order=order))


def _best_job(view: state.JobState) -> Job:
    job = state.job(view)
    best = services.plan_for(job).best
    if best is None:
        return job
    return state.chosen_job(replace(view, layout=state.layout_code(best.layout))) or job


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
    """The rank order: in the address as order=…"""
    asked = st.query_params.get("order", DEFAULT_RANK_ORDER)
    options = ORDERS if asked in ORDERS else (*ORDERS, asked)
    choice = state.choice("order", options, DEFAULT_RANK_ORDER)
    place.selectbox(t("Order"), label_visibility="collapsed", width=190, **choice)


def degree_widgets(layout: Layout) -> None:
    """Number inputs for every degree; a change writes the whole layout to the address. DP follows from the world."""
    grid = st.grid(columns=4, min_column_width=110)
    labels = {
        "tp": "TP", "cp": "CP", "ep": "EP", "pp": "PP", "mb": t("Micro-batch"), "v": t("Chunks"), "z": "ZeRO",
    }  # fmt: skip
    for code, field in CODES.items():
        st.session_state[f"edit-{code}"] = getattr(layout, field)
        low, high = (0, 3) if code == "z" else (1, MAX_DEGREE)
        grid.number_input(labels[code], low, high, key=f"edit-{code}", on_change=_take)
    st.session_state["edit-recompute"] = layout.recompute
    grid.selectbox(t("Recompute"), RECOMPUTES, key="edit-recompute", on_change=_take)
    st.caption(t("DP = devices / (TP × CP × PP); the rest keeps its default."))


def _take() -> None:
    parts = [f"{code}{int(st.session_state[f'edit-{code}'])}" for code in CODES]
    recompute = st.session_state["edit-recompute"]
    if recompute != "none":
        parts.append(recompute)
    state.update(layout="-".join(parts))
