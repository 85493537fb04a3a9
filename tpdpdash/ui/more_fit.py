"""What would make more layouts fit: one change of the job at a time, each searched as a plan of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd
import streamlit as st

from tpdpdash.job import Job
from tpdpdash.text import t
from tpdpdash.ui import services
from tpdpdash.ui.estimate_view import device_word
from tpdpdash.ui.key_words import layout_word
from tpdpdash.units import MINUS, format_count, format_difference, format_large, with_error

if TYPE_CHECKING:
    from tpdpdash.search.plan import Plan

MOST_NODES_FACTOR = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of the job."""

    text: str
    """What is changed, in words."""
    job: Job
    """The job with the change."""


def changes(job: Job, *, is_legal: bool) -> Iterator[Change]:
    """Every pin let go; and, when layouts are legal but too large, smaller states and more nodes."""
    given = job.pins.given()
    for name, value in given.items():
        text = t("{name} free instead of {value}", name=layout_word(name), value=value)
        yield Change(text=text, job=replace(job, pins=replace(job.pins, **{name: None})))
    if not is_legal:
        return
    training = job.training
    if training.gradient_dtype == "fp32" and training.precision != "fp32":
        halved = replace(training, gradient_dtype="bf16")
        yield Change(text=t("gradients in bf16 instead of fp32"), job=replace(job, training=halved))
    if training.optimizer_states == "fp32" and training.precision != "fp32":
        halved = replace(training, optimizer_states="bf16")
        yield Change(text=t("optimizer states in bf16"), job=replace(job, training=halved))
    if "dp" not in given:
        yield _more_nodes(job)


def _more_nodes(job: Job) -> Change:
    """Twice the nodes; when nothing fits either, twice again, up to MOST_NODES_FACTOR times as many."""
    factor, grown = 1, job
    while factor < MOST_NODES_FACTOR:
        factor *= 2
        grown = replace(job, cluster=replace(job.cluster, nodes=factor * job.cluster.nodes))
        if services.plan_for(grown).feasible:
            break
    return Change(text=t("{factor} times the nodes: {nodes}", factor=factor, nodes=grown.cluster.nodes), job=grown)


def table(plan: Plan, job: Job) -> None:
    """The changes with what they gain. Searched at once when nothing fits, else when it is asked for."""
    asked = plan.ranked is None or st.toggle(t("Search each change"), key="more-fit")
    if not asked:
        st.caption(t("Each change is a search of its own, with everything else as it is."))
        return
    is_legal = plan.closest is not None or plan.feasible > 0
    with st.spinner(t("Searching …")):
        rows = [_row(plan, change) for change in changes(job, is_legal=is_legal)]
    if not rows:
        st.caption(t("Nothing is pinned that could be let go: the refusals below say what to change."))
        return
    st.table(pd.DataFrame(rows), border="horizontal", hide_index=True)
    if plan.picked is not None:
        st.caption(
            t("The best layout now: {speed} tokens/s per {device}.", speed=_speed(plan), device=device_word(job))
        )


def _row(plan: Plan, change: Change) -> dict[str, str]:
    other = services.plan_for(change.job)
    gained = other.feasible - plan.feasible
    # The backslash keeps a leading plus from being read as a list.
    sign = "\\+ " if gained > 0 else f"{MINUS} " if gained < 0 else ""
    return {
        t("Change"): change.text,
        t("Layouts gained"): f"{sign}{format_count(abs(gained))}",
        t("Best tokens/s per {device}", device=device_word(change.job)): _speed(other) + _against(plan, other),
    }


def _speed(plan: Plan) -> str:
    best = plan.picked
    if best is None:
        return t("nothing fits")
    return with_error(format_large(best.throughput.tokens_per_s_per_device), best.error_frac)


def _against(plan: Plan, other: Plan) -> str:
    if plan.picked is None or other.picked is None:
        return ""
    now = plan.picked.throughput.tokens_per_s_per_device
    return f" ({format_difference(other.picked.throughput.tokens_per_s_per_device / now - 1)})"
