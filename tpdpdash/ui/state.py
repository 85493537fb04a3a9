"""What a person looks at, in the address: `JobState` ⇄ query parameters, and the Job it describes.

The address is the truth: one that names any field of the job is a whole view (absent fields have their defaults).
Without any, as after a click on another screen, this tab's last view is put back into the address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from tpdpdash.faults import Fault
from tpdpdash.job import Job, job_from_tables
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER
from tpdpdash.ui import uploads
from tpdpdash.ui.layout_code import layout_code as layout_code
from tpdpdash.ui.layout_code import pins_of_code as pins_of_code
from tpdpdash.ui.training_code import keys_of_code

_VIEW = "_view"
_FAULTS = "_view-faults"
_RUN = "run"
Pinned = Literal["tp", "cp", "pp", "dp", "ep", "zero_stage", "micro_batch_size", "num_model_chunks"]
PIN_NAMES = ("tp", "cp", "pp", "dp", "ep", "zero_stage", "micro_batch_size", "num_model_chunks")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The view's fields; every name is also its query parameter."""

    model: str = "llama-3-8b"
    """A preset's name, or "config:<content hash>" for an uploaded config.json."""
    device: str = "H100-SXM5-80GB"
    """A catalogue name, or "local"."""
    nodes: int | None = 1
    """Machines; None with "local" = as detected."""
    gpus: int | None = 8
    """Devices in each machine; None = as the catalogue or the detection says."""
    network: float | None = None
    """Network bandwidth per device in GB/s, where it is not the catalogue's."""
    price: float | None = None
    """Dollars per device and hour."""
    failures: float = 0.0
    """Failures that stop the job, for each device and day."""
    restart: float = 0.0
    """Seconds from a failure to the next step."""
    checkpoint: float = 0.0
    """Seconds for which a checkpoint stops training."""
    every: int | None = None
    """Steps between two checkpoints; None = what loses least."""
    seq: int = 8192
    """Tokens in a sequence."""
    batch: int = 128
    """Sequences in a step."""
    tokens: float | None = 3e11
    """Tokens to train on."""
    steps: int | None = None
    """Optimizer steps of a run."""
    precision: str = "bf16"
    """training.precision."""
    framework: str = "megatron-core"
    """training.framework."""
    training: str = ""
    """Further keys of [training], as `training_code` writes them."""
    tp: int | None = None
    """Pinned degree; None = free. So too the next ones."""
    cp: int | None = None
    """Pinned."""
    pp: int | None = None
    """Pinned."""
    dp: int | None = None
    """Pinned."""
    ep: int | None = None
    """Pinned."""
    zero_stage: int | None = None
    """Pinned."""
    micro_batch_size: int | None = None
    """Pinned."""
    num_model_chunks: int | None = None
    """Pinned."""
    recompute: str | None = None
    """Pinned."""
    layout: str = ""
    """The chosen layout as `layout_code` writes it: tp4-pp2-dp8-v2-full; empty = none chosen."""
    order: str = DEFAULT_RANK_ORDER
    """The chosen layout's rank order."""
    rank: int = 0
    """The chosen rank."""

    def pins(self) -> dict[str, object]:
        """The pinned layout keys, as in a Job file."""
        names = (*PIN_NAMES, "recompute")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def _read(kind: str, text: str) -> Any:
    """One query parameter as its field's type. ValueError when it is not of that type."""
    if kind.startswith("int"):
        return int(text)
    if kind.startswith("float"):
        return float(text)
    return text


def _from_params(params: Mapping[str, str]) -> tuple[JobState, tuple[Fault, ...]]:
    """A view from query parameters, and the parameters that cannot be read: those have their default."""
    values: dict[str, Any] = {}
    faults = []
    for field in fields(JobState):
        text = params.get(field.name)
        if text is None:
            continue
        try:
            values[field.name] = None if text == "auto" and "None" in str(field.type) else _read(str(field.type), text)
        except ValueError:
            used = {"used": "auto" if field.default is None else field.default}
            faults.append(Fault(code="address_not_read", field=field.name, value=text, values=used))
    return JobState(**values), tuple(faults)


def _to_params(view: JobState) -> dict[str, str]:
    """The parameters that stand in the address: the model always, the others where they differ from the default."""
    default = JobState()
    shown = {f.name: getattr(view, f.name) for f in fields(view)}
    return {
        name: "auto" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in shown.items()
        if name == "model" or value != getattr(default, name)
    }


# ------------------------------------------------------------------------------------------ address


def restore() -> None:
    """Called by app.py on every full run: bring the address and this tab's last view into line."""
    params = st.query_params
    if any(field.name in params for field in fields(JobState)):
        view, faults = _from_params(params)
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
    wanted = _to_params(view)
    for field in fields(JobState):
        name = field.name
        if name in wanted and st.query_params.get(name) != wanted[name]:
            st.query_params[name] = wanted[name]
        elif name not in wanted and name in st.query_params:
            del st.query_params[name]


def params() -> dict[str, str]:
    """The view as query parameters, for links to another screen."""
    return _to_params(read_job_state())


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


def tables(view: JobState, layout: Mapping[str, object]) -> dict[str, object]:
    """The view as the tables of a Job file."""
    training = keys_of_code(view.training) | {
        "seq_len": view.seq,
        "global_batch_size": view.batch,
        "tokens": view.tokens,
        "steps": view.steps,
        "checkpoint_s": view.checkpoint or None,
        "checkpoint_interval_steps": view.every,
        "precision": view.precision,
        "framework": view.framework,
    }
    return {
        "model": uploads.model_table(view.model),
        "cluster": cluster_table(view),
        "training": _given(training),
        "layout": dict(layout),
    }


def cluster_table(view: JobState) -> dict[str, object]:
    """The [cluster] table of the view."""
    table = {
        "device": view.device,
        "nodes": view.nodes,
        "devices_per_node": view.gpus,
        "price_per_device_hour": view.price,
        "failures_per_device_day": view.failures or None,
        "restart_s": view.restart or None,
        "links": None if view.network is None else {"network_gb_per_s": view.network},
    }
    return _given(table)


def _given(table: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in table.items() if value is not None}


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
