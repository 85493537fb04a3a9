"""What a person looks at, kept in the address and in this tab, and the Job it describes.

The address is the truth: one that names any field of the job is a whole view (absent fields have their defaults).
Without any, as after a click on another screen, this tab's last view is put back into the address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import streamlit as st

from tpdpdash.faults import Fault
from tpdpdash.job import Job, job_from_tables
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER
from tpdpdash.ui.job_state import JobState, from_params, tables, to_params
from tpdpdash.ui.layout_code import layout_code as layout_code
from tpdpdash.ui.layout_code import pins_of_code as pins_of_code

_VIEW = "_view"
_FAULTS = "_view-faults"
_RUN = "run"
# ------------------------------------------------------------------------------------------ address


def restore() -> None:
    """Called by app.py on every full run: bring the address and this tab's last view into line."""
    params = st.query_params
    if any(field.name in params for field in fields(JobState)):
        view, faults = from_params(params)
        # The address is mended at once: what was wrong with it is told until the next change of the view.
        if faults or view != st.session_state.get(_VIEW):
            st.session_state[_FAULTS] = faults
        st.session_state[_VIEW] = view
    _write_address(read_job_state())
    if _RUN in params:
        st.session_state[_RUN] = params[_RUN]


def read_job_state() -> JobState:
    """The view of this run of the script."""
    view = st.session_state.get(_VIEW)
    return view if isinstance(view, JobState) else JobState()


def is_untouched() -> bool:
    """Whether nobody has chosen anything yet."""
    return read_job_state() == JobState()


def update(**changes: Any) -> JobState:
    """Change fields of the view, in this session and in the address."""
    view = replace(read_job_state(), **changes)
    st.session_state[_VIEW] = view
    _write_address(view)
    return view


def replace_view(view: JobState, told: tuple[Fault, ...]) -> None:
    """Another view altogether; `told`: what to say of it until its next change."""
    st.session_state[_FAULTS] = told
    update(**{field.name: getattr(view, field.name) for field in fields(JobState)})


def address_faults() -> tuple[Fault, ...]:
    """What could not be read of the address that this view came from."""
    found: tuple[Fault, ...] = st.session_state.get(_FAULTS, ())
    return found


def tell(faults: tuple[Fault, ...]) -> None:
    """Something else of the address cannot be used: told as well until the next change of the view."""
    st.session_state[_FAULTS] = (*address_faults(), *faults)


def forget_faults() -> None:
    """The view is changed: what was wrong with the former address is no longer told."""
    st.session_state.pop(_FAULTS, None)


def choose_layout(code: str) -> None:
    """The layout that every screen is about, in the default rank order."""
    update(layout=code, order=DEFAULT_RANK_ORDER)


def choose_rank(rank: int) -> None:
    """The rank that Layout is about."""
    update(rank=rank)


def _write_address(view: JobState) -> None:
    wanted = to_params(view)
    for field in fields(JobState):
        name = field.name
        if name in wanted and st.query_params.get(name) != wanted[name]:
            st.query_params[name] = wanted[name]
        elif name not in wanted and name in st.query_params:
            del st.query_params[name]


def params() -> dict[str, str]:
    """The view as query parameters, for links to another screen."""
    return to_params(read_job_state())


def bound(name: str) -> dict[str, Any]:
    """Keyword arguments that tie a widget to one field of the view: `st.number_input(…, **state.bound("nodes"))`.

    The widget shows the view's value and writes a change back to the view and the address.
    """
    key = f"view-{name}"
    st.session_state[key] = getattr(read_job_state(), name)
    return {"key": key, "on_change": take, "args": (name,)}


def take(name: str) -> None:
    """The widget of a field was changed: into the view and the address with it."""
    forget_faults()
    update(**{name: st.session_state[f"view-{name}"]})


def choice(name: str, options: Sequence[str], default: str) -> dict[str, Any]:
    """The same for a choice of one page that stands in the address only: `show=described`. Give `options` too."""
    key = f"choice-{name}"
    asked = st.query_params.get(name, default)
    st.session_state[key] = asked if asked in options else default

    def take() -> None:
        chosen = st.session_state[key]
        if chosen == default:
            st.query_params.pop(name, None)
        elif chosen is not None:
            st.query_params[name] = chosen

    return {"options": options, "key": key, "on_change": take}


def chosen_run() -> str | None:
    """The run in the address, or the one this tab looked at last."""
    run = st.query_params.get(_RUN) or st.session_state.get(_RUN)
    return str(run) if run else None


def remember_run(run_id: str) -> None:
    """This tab looks at this run next."""
    st.session_state[_RUN] = run_id


def choose_run(run_id: str) -> None:
    """Look at a run: in this session and in the address."""
    remember_run(run_id)
    st.query_params[_RUN] = run_id


def forget_run() -> None:
    """The run that was looked at is no longer there."""
    st.session_state.pop(_RUN, None)
    st.query_params.pop(_RUN, None)


# ---------------------------------------------------------------------------------------------- job


def job(view: JobState | None = None) -> Job:
    """The Job of the view, with its pins. Raises InvalidInputError with every fault."""
    view = view or read_job_state()
    return _job(view, view.pins())


def chosen_job(view: JobState | None = None) -> Job | None:
    """The Job of the chosen layout; None when none is chosen. Raises InvalidInputError."""
    view = view or read_job_state()
    if not view.layout:
        return None
    order = {} if view.order == DEFAULT_RANK_ORDER else {"rank_order": view.order}
    return _job(view, {**pins_of_code(view.layout), **order})


def _job(view: JobState, layout: Mapping[str, object]) -> Job:
    from tpdpdash.ui import services

    return job_from_tables(tables(view, layout), Path(), services.detection)
