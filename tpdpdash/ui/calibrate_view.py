"""Measuring this machine from the Cluster screen, and trusting a finished run from Watch."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import streamlit as st

from tpdpdash.faults import InvalidInputError
from tpdpdash.report.calibration import calibration_rows, check_rows, correction_line, share_lines
from tpdpdash.report.history import progress_line
from tpdpdash.text import t
from tpdpdash.ui import access, parts, run_services, services

if TYPE_CHECKING:
    from tpdpdash.cluster.measured import MeasuredFile
    from tpdpdash.run.history import RunView

RUN, REQUEST = "calibration-run", "calibration-request"
REFRESH_S = 2.0


def card() -> None:
    """What is measured of this machine, and the button that measures it."""
    with parts.card(t("Measured"), t("products, attention, memory and messages of this machine, in about a minute")):
        file, faults = services.measured()
        parts.faults(faults, "info")
        run_id = st.session_state.get(RUN)
        if run_id is not None:
            _running(run_id)
        else:
            _start_button(file)
        if file is not None:
            _result(file)


def _start_button(file: MeasuredFile | None) -> None:
    """Starts one run, however often it is pressed."""
    label = t("Measure this machine") if file is None else t("Measure again")
    request_id = st.session_state.setdefault(REQUEST, uuid.uuid4().hex)
    if st.button(label, icon=":material/speed:", key="calibrate", disabled=not access.may_start()):
        try:
            st.session_state[RUN] = services.start_calibration(request_id)
        except InvalidInputError as refused:
            parts.faults(refused.faults)
            return
        del st.session_state[REQUEST]
        st.rerun()
    if not access.may_start():
        st.caption(parts.literal(access.not_allowed()))


def _running(run_id: str) -> None:
    """The run that measures: its phase until it ends, then its figures are taken over."""

    @st.fragment(run_every=REFRESH_S)
    def progress() -> None:
        view = run_services.run_view(run_id)
        if not view.is_over:
            st.status(t("Measuring: {progress}", progress=parts.literal(progress_line(view))), state="running")
            return
        del st.session_state[RUN]
        if view.state == "finished":
            _take_over(run_id)
        else:
            parts.verdict("bad", t("**Measuring {state}.** Run {run} tells why.", state=t(view.state), run=run_id))
            return
        st.rerun()

    progress()


def _take_over(run_id: str) -> bool:
    """Whether the run's figures are used now."""
    try:
        services.take_over(run_id)
    except InvalidInputError as refused:
        parts.faults(refused.faults)
        return False
    return True


def _result(file: MeasuredFile) -> None:
    """The figures beside the catalogue's, the corrections, and the ways back."""
    import pandas as pd

    said = t("Measured on {date} by run {run}.", date=parts.literal(file.date), run=parts.literal(file.run))
    parts.verdict("info", said, " ".join(share_lines(file)))
    columns = [t("Figure"), t("Measured"), t("Catalogue")]
    parts.table(pd.DataFrame(calibration_rows(file), columns=columns))
    if file.checks:
        st.caption(t("Short runs beside what these figures say of them; the error bar comes from the misses."))
        head, *rows = check_rows(file)
        parts.table(pd.DataFrame(rows, columns=head))
    may = access.may_start()
    for each in file.corrections:
        left, right = st.columns([5, 1])
        left.caption(parts.literal(correction_line(each)))
        if right.button(t("Undo"), key=f"undo-{each.run}", disabled=not may):
            services.undo_correction(each.run)
            st.rerun()
    if st.button(t("Forget what was measured"), key="forget-measured", disabled=not may):
        services.forget_measured()
        st.rerun()


def trust_button(view: RunView) -> None:
    """Under the head of a finished run of a Job: let its gap correct the figures of this machine."""
    file, _ = services.measured()
    if view.state != "finished" or file is None or not run_services.is_of_local_job(view.run_id):
        return
    if view.run_id in {each.run for each in file.corrections}:
        st.caption(t("This run corrects the figures of this machine; Cluster undoes it."))
        return
    with st.popover(t("Trust this run"), icon=":material/verified:"):
        st.markdown(t("Its measured times correct the figures that estimates of this machine use. Cluster undoes it."))
        if st.button(t("Correct the figures"), key="trust-run", disabled=not access.may_start()) and _take_over(
            view.run_id
        ):
            st.rerun()
