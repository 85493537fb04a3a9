"""Plan's inputs: model, cluster, batch and pins, each tied to the view in the address."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from tpdpdash.cluster.describe import MAX_DEVICES_PER_NODE, MAX_NODES
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.job import Job, write_job
from tpdpdash.layout.batch_rules import MAX_GLOBAL_BATCH_SIZE, MAX_SEQ_LEN
from tpdpdash.layout.layout import RECOMPUTES
from tpdpdash.model.presets import preset_names
from tpdpdash.text import t
from tpdpdash.training import FRAMEWORKS
from tpdpdash.ui import job_upload, parts, services, state, training_inputs, uploads
from tpdpdash.ui.job_state import JobState
from tpdpdash.ui.key_words import layout_word
from tpdpdash.units import BILLION

POWERS = tuple(2**i for i in range(11))
PINS = ("tp", "pp", "dp", "zero_stage", "micro_batch_size")
WIDE_PINS = {"micro_batch_size": 142, "recompute": 150}
PIN_PX, CLEAR_PX = 103, 22
_UPLOAD, _UPLOAD_FAULTS, _UPLOAD_NAMES = "config-upload", "config-upload-faults", "config-upload-names"
_TOKENS = "plan-tokens"


def inputs(job: Job | None) -> None:
    """Everything that a plan depends on, already filled. job: the view's; None where it cannot be read."""
    view = state.read_job_state()
    with st.container(border=True, key="plan-inputs"):
        _fields(view)
        _pins(view)
        _more(view, job)
    faults = st.session_state.get(_UPLOAD_FAULTS)
    if faults:
        parts.faults(faults)
        st.caption(t("Nothing was changed: the model is still {model}.", model=parts.literal(_model_name(view.model))))


def _fields(view: JobState) -> None:
    grid = st.grid(columns=4, min_column_width=118)
    models = (*preset_names(), *((view.model,) if uploads.is_upload(view.model) else ()))
    unknown = () if view.model in models else (view.model,)
    grid.selectbox(t("Model"), (*models, *unknown), format_func=_model_name,
                   **{**state.bound("model"), "on_change": _take_model, "args": ()})  # fmt: skip
    devices = services.device_names()
    grid.selectbox("GPU", devices if view.device in devices else (*devices, view.device), **state.bound("device"))
    grid.number_input(t("Nodes"), 1, MAX_NODES, placeholder=t("as detected"), **state.bound("nodes"))
    grid.number_input(t("GPUs per node"), 1, MAX_DEVICES_PER_NODE, placeholder=t("as listed"), **state.bound("gpus"))
    grid.number_input(t("Sequence length"), 1, MAX_SEQ_LEN, **state.bound("seq"))
    grid.number_input(t("Global batch"), 1, MAX_GLOBAL_BATCH_SIZE, **state.bound("batch"))
    st.session_state[_TOKENS] = None if view.tokens is None else view.tokens / BILLION
    grid.number_input(
        t("Train for, B tokens"), min_value=0.001, step=100.0, format="%g", key=_TOKENS, on_change=_take_tokens,
        placeholder=t("unknown"),
    )  # fmt: skip
    known = FRAMEWORKS if view.framework in FRAMEWORKS else (*FRAMEWORKS, view.framework)
    grid.selectbox(t("Framework"), known, **state.bound("framework"))


def _model_name(model: str) -> str:
    """A preset by its name; an upload by the name of its file as long as this tab knows it."""
    if not uploads.is_upload(model):
        return parts.plain(model)
    usual = "config.json" if model.startswith(uploads.PREFIX) else "job.toml"
    name = st.session_state.get(_UPLOAD_NAMES, {}).get(model, usual)
    return t("{name} (uploaded)", name=parts.plain(name))


def _pins(view: JobState) -> None:
    """Pins: an empty one is searched. At the right the upload of a config.json."""
    row = st.container(horizontal=True, vertical_alignment="center", gap="small")
    row.markdown(f":gray[:small[{t('Pin a degree')}]]", width="content")
    for field in PINS:
        _pin(row, view, field)
    row.selectbox(
        layout_word("recompute"),
        RECOMPUTES,
        index=None,
        placeholder=t("Recompute any"),
        label_visibility="collapsed",
        width=WIDE_PINS["recompute"] + (0 if view.recompute is None else CLEAR_PX),
        format_func=lambda kind: t("Recompute {kind}", kind=kind),
        **state.bound("recompute"),
    )


def _more(view: JobState, job: Job | None) -> None:
    """What is rarely set, and files: each behind its button; what was set stands beside them."""
    row = st.container(horizontal=True, vertical_alignment="center", gap="small")
    with row:
        training_inputs.inputs(job)
    with row.popover(t("Failures"), icon=":material/heart_broken:"):
        _rates()
    with row.popover("config.json, job.toml", icon=":material/upload:"):
        _files(job)
    told = training_inputs.set_words(view)
    if told:
        row.caption(told, width="stretch")


def _files(job: Job | None) -> None:
    """A model or a whole job from a file, and the job of this page as one."""
    st.file_uploader(
        t("Drop a Hugging Face config.json, or a Job file (TOML)"), type=["json", "toml"], key=_UPLOAD,
        on_change=_take_upload,
    )  # fmt: skip
    if job is not None:
        st.download_button(
            t("job.toml of this page"), write_job(job), "job.toml", "text/plain", icon=":material/download:",
            on_click="ignore",
        )  # fmt: skip


def _pin(row: DeltaGenerator, view: JobState, field: str) -> None:
    label = layout_word(field)
    options = (0, 1, 2, 3) if field == "zero_stage" else POWERS
    value = getattr(view, field)
    shown = options if value is None or value in options else tuple(sorted({*options, value}))

    def written(degree: int) -> str:
        return f"{label} {degree}"

    row.selectbox(
        label,
        shown,
        index=None,
        placeholder=t("{name} any", name=label),
        label_visibility="collapsed",
        # A set pin also shows the sign that clears it.
        width=WIDE_PINS.get(field, PIN_PX) + (0 if value is None else CLEAR_PX),
        format_func=written,
        **state.bound(field),
    )


def _rates() -> None:
    """What lengthens a long run beside its steps: nothing, unless it is stated."""
    st.caption(t("Days and cost count what checkpoints and failures take. Without rates there are none."))
    st.number_input(t("Failures per device and day"), 0.0, 1_000.0, step=0.0001, format="%g", **state.bound("failures"))
    st.number_input(t("Seconds to restart"), 0.0, 864_000.0, step=60.0, format="%g", **state.bound("restart"))
    st.number_input(t("Seconds a checkpoint stops"), 0.0, 86_400.0, step=5.0, format="%g", **state.bound("checkpoint"))
    st.number_input(t("Steps between checkpoints"), 1, placeholder=t("what loses least"), **state.bound("every"))
    st.caption(t("Llama 3's 405B run: 419 failures in 54 days of 16,384 GPUs, 0.00047 a device and day."))


def _take_model() -> None:
    """Another model. Where it has a table of positions, the sequence becomes no longer than that, and this is said."""
    state.take("model")
    view = state.read_job_state()
    try:
        rows = state.job(replace(view, seq=1)).model.position_embedding_size
    except InvalidInputError:
        return  # what is wrong with the model is told by the plan itself
    if 0 < rows < view.seq:
        state.update(seq=rows)
        values = {"model": view.model, "asked": view.seq}
        state.tell((Fault(code="sequence_shortened", field="training.seq_len", value=rows, values=values),))


def _take_tokens() -> None:
    billions = st.session_state[_TOKENS]
    state.update(tokens=None if billions is None else billions * BILLION)


def _take_upload() -> None:
    """A dropped config becomes the model, a Job file the whole view; or its faults are shown and nothing changes."""
    st.session_state.pop(_UPLOAD_FAULTS, None)
    dropped = st.session_state.get(_UPLOAD)
    if dropped is None:
        return
    notes: tuple[Fault, ...] = ()
    try:
        if dropped.name.lower().endswith(".toml"):
            view, notes = job_upload.view_of_job(dropped.getvalue(), dropped.name)
        else:
            view = replace(state.read_job_state(), model=uploads.keep_config(dropped.getvalue(), dropped.name))
    except InvalidInputError as wrong:
        found: tuple[Fault, ...] = wrong.faults
        st.session_state[_UPLOAD_FAULTS] = found
        return
    st.session_state[_UPLOAD_NAMES] = {**st.session_state.get(_UPLOAD_NAMES, {}), view.model: dropped.name}
    state.replace_view(view, notes)
