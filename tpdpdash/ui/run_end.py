"""Archive and delete a run that is over, and restore one: asked once more, refused on the server without the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from tpdpdash.faults import InvalidInputError
from tpdpdash.text import t
from tpdpdash.ui import access, parts, run_services, state
from tpdpdash.units import format_memory

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

    from tpdpdash.run.history import RunView

_DONE = "run-end-done"


def controls(view: RunView, place: DeltaGenerator) -> None:
    """The popover with both buttons: opening it says what would happen, the button in it does it."""
    with place, st.popover(t("Archive or delete"), icon=":material/inventory_2:"):
        may = access.may_start()
        st.markdown(t("Archive: one compressed file in your state directory takes the place of the folder."))
        if st.button(t("Archive the run"), disabled=not may, key="archive-run"):
            _archive(view.run_id)
        st.markdown(t("Delete: all records of this run are removed, and cannot be had back."))
        if st.button(t("Delete the run"), type="primary", disabled=not may, key="delete-run"):
            _delete(view.run_id)
        if not may:
            st.caption(parts.literal(access.not_allowed()))


def _archive(run_id: str) -> None:
    try:
        made = run_services.archive(run_id)
    except InvalidInputError as refused:
        parts.faults(refused.faults)
        return
    sizes = {"before": format_memory(made.folder_bytes), "after": format_memory(made.archive_bytes)}
    _leave(t("Archived, {before} in {after}: {path}", path=parts.literal(str(made.path)), **sizes))


def _delete(run_id: str) -> None:
    try:
        run_services.delete(run_id)
    except InvalidInputError as refused:
        parts.faults(refused.faults)
        return
    _leave(t("Deleted: {run}", run=parts.literal(run_id)))


def restore_control(place: DeltaGenerator) -> None:
    """The archived runs, one to be chosen and put back; nothing where none is."""
    archived = run_services.archived_runs()
    if not archived:
        return
    with place, st.popover(t("Restore"), icon=":material/unarchive:"):
        may = access.may_start()
        run_id = st.selectbox(t("Archived runs"), archived, key="archived-run")
        if st.button(t("Restore the run"), disabled=not may, key="restore-run"):
            _restore(run_id)
        if not may:
            st.caption(parts.literal(access.not_allowed()))


def _restore(run_id: str) -> None:
    try:
        run_services.restore(run_id)
    except InvalidInputError as refused:
        parts.faults(refused.faults)
        return
    st.session_state[_DONE] = t("Restored: {run}", run=parts.literal(run_id))
    state.choose_run(run_id)
    st.rerun()


def _leave(what: str) -> None:
    """The run is gone: the page shows the newest one, and says what was done."""
    st.session_state[_DONE] = what
    state.forget_run()
    st.rerun()


def say_what_was_done() -> None:
    """Once, on the run of the page after it."""
    if what := st.session_state.pop(_DONE, None):
        parts.verdict("info", what)
