"""How a step trains, beside its batch: precision, optimizer, attention, experts. An input for each key of [training]
that has a meaning here; what is left as it is does not stand in the address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import streamlit as st

from tpdpdash.job import Job
from tpdpdash.job_tables import TRAINING_LIMITS
from tpdpdash.layout.unused import needs
from tpdpdash.text import t
from tpdpdash.training import Precision, Training
from tpdpdash.ui import parts, state
from tpdpdash.ui.job_state import JobState
from tpdpdash.ui.key_words import key_word, layout_word
from tpdpdash.ui.training_code import keys_of_code, training_code

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Numbers": ("fp8_recipe", "tf32", "fp8_attention", "gradient_dtype"),
    "Optimizer": ("optimizer", "optimizer_states", "optimizer_offload_fraction"),
    "Model": ("mtp_num_layers", "trainable", "lora_rank", "dropout", "packed_seq_len"),
    "Experts": ("expert_dispatcher", "fp8_dispatch", "expert_load_cv"),
    "How it runs": (
        *("attention", "cp_comm_type", "compiled", "cuda_graphs", "deterministic", "launch_blocking"),
        *("fused_accumulation", "fp8_activation_inputs"),
    ),
}
HELP: Mapping[str, str] = {
    "tf32": "fp32 products in TF32",
    "fp8_attention": "Fused attention's products in 8 bits",
    "gradient_dtype": "In which gradients are added up and reduced",
    "optimizer_states": "Precision of the moments",
    "optimizer_offload_fraction": "Of the states, where a layout keeps them in host memory",
    "mtp_num_layers": "Prediction modules that are trained",
    "packed_seq_len": "Tokens of the sequences packed into one: attention stays inside them",
    "expert_dispatcher": "How tokens reach their experts: every copy by itself (alltoall), once to each domain (flex)",
    "fp8_dispatch": "Tokens go to their experts in 8 bits",
    "expert_load_cv": "Standard deviation over mean of tokens an expert; 0 is forced to be even",
    "attention": "Fused (flash), or scores written to memory (naive)",
    "cp_comm_type": "Keys round a ring (p2p), all at once (all_gather), heads instead of tokens (a2a)",
    "compiled": "Element-wise operators are fused",
    "deterministic": "Only algorithms whose results repeat bit for bit",
    "launch_blocking": "CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel",
    "fused_accumulation": "GEMMs add weight gradients up themselves",
    "fp8_activation_inputs": "What an activation function reads is kept in 8 bits",
}


def inputs(job: Job | None) -> None:
    """The button that opens them. job: None while something else of it is wrong, which the plan itself says."""
    with st.popover(t("Training"), icon=":material/tune:"):  # one name, whatever is set: another would close it
        st.selectbox(key_word("training.precision"), get_args(Precision), **state.bound("precision"))
        for title, keys in GROUPS.items():
            shown = [key for key in keys if has_meaning(job, key)]
            if shown:
                st.markdown(f":gray[:small[{t(title)}]]")
                grid = st.grid(columns=2, min_column_width=190)
                for key in shown:
                    with grid:
                        _input(key)
                if title == "Optimizer":
                    grid.selectbox(
                        layout_word("offload_optimizer"), (True, False), index=None, format_func=_word,
                        placeholder=t("where little else fits"),
                        help=t("Frees memory and costs speed; left empty, it is tried where few layouts fit without"),
                        **state.bound("offload_optimizer"),
                    )  # fmt: skip


def set_words(view: JobState) -> str:
    """What is set, by name and value: what a plan depends on stands on its page. Empty: nothing."""
    named = {f"training.{key}": value for key, value in keys_of_code(view.training).items()}
    if view.precision != JobState().precision:
        named = {"training.precision": view.precision, **named}
    if view.offload_optimizer is not None:
        named["layout.offload_optimizer"] = view.offload_optimizer
    return " · ".join(f"{parts.literal(key_word(key))} {parts.literal(_word(value))}" for key, value in named.items())


def set_keys(training: Training) -> dict[str, object]:
    """The keys with an input that differ from their defaults."""
    keys = (key for group in GROUPS.values() for key in group)
    return {key: value for key in keys if (value := getattr(training, key)) != _defaults()[key]}


def has_meaning(job: Job | None, key: str) -> bool:
    """Whether a key can change anything for this model and training."""
    if job is None:
        return True
    if key == "mtp_num_layers":
        kinds = job.model.is_moe or job.model.mtp_num_layers > 0
        return kinds or job.training.mtp_num_layers is not None
    _, is_met = needs(job.model, job.training, None).get(key, ("", True))
    return is_met or getattr(job.training, key) != _defaults()[key]  # what was set can be taken back


@cache
def _kinds() -> dict[str, Any]:
    return get_type_hints(Training)


@cache
def _defaults() -> dict[str, Any]:
    return {field.name: field.default for field in fields(Training)}


def options_of(key: str) -> tuple[Any, ...]:
    """The values to choose from; empty for a number. None, what the framework does by itself, is no choice made."""
    kind = _kinds()[key]
    kinds = [part for part in get_args(kind) if part is not NoneType] if NoneType in get_args(kind) else [kind]
    return tuple(
        option
        for each in kinds
        for option in (get_args(each) if get_origin(each) is Literal else (True, False) if each is bool else ())
    )


def _input(key: str) -> None:
    """One key, tied to the view in the address."""
    place, value = f"training-{key}", keys_of_code(state.read_job_state().training).get(key, _defaults()[key])
    said = t(HELP[key]) if key in HELP else None
    tied: dict[str, Any] = {"key": place, "on_change": _take, "args": (key,), "help": said}
    label, options, free = key_word(f"training.{key}"), options_of(key), _defaults()[key] is None
    st.session_state[place] = value
    if options and not free and value in (True, False):
        st.toggle(label, **tied)
    elif options:
        shown = options if value is None or value in options else (*options, value)
        hint, index = (t("as the framework has it"), None) if free else (None, 0)
        st.selectbox(label, shown, index, _word, placeholder=hint, **tied)
    else:
        _number(key, label, value, tied)


def _word(value: object) -> str:
    return t("on") if value is True else t("off") if value is False else str(value)


def _number(key: str, label: str, value: object, tied: dict[str, Any]) -> None:
    low, high = TRAINING_LIMITS[key]
    is_whole = "int" in str(_kinds()[key])
    kind = int if is_whole else float
    # What the address has instead of a number is refused by the plan; the input stands empty.
    st.session_state[tied["key"]] = kind(value) if isinstance(value, int | float) and low <= value <= high else None
    form, step = ("%d", kind(1)) if is_whole else ("%g", kind(0.05))
    st.number_input(label, kind(low), kind(high), None, step, form, placeholder=t("as usual"), **tied)


def _take(key: str) -> None:
    """An input was changed: its key stands in the address where it is not the default."""
    keys, value = keys_of_code(state.read_job_state().training), st.session_state[f"training-{key}"]
    keys.pop(key, None)
    if value != _defaults()[key] and value is not None:
        keys[key] = value
    state.forget_faults()
    state.update(training=training_code(keys))
