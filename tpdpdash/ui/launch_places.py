"""Launch's places: rehearse or run here, as a batch job of Slurm, or on several machines by hand."""

from __future__ import annotations

import streamlit as st

from tpdpdash.run.place import HERE, Place
from tpdpdash.text import t
from tpdpdash.ui import parts, services, state
from tpdpdash.ui.live import Look

REHEARSE = "rehearse"
WAYS = {REHEARSE: "Rehearse small", "here": "Run here", "slurm": "On Slurm", "hosts": "Several machines"}


def chosen_way() -> str:
    """How the job is to run, as the address says."""
    way: str = st.segmented_control(
        t("How"),
        format_func=lambda option: t(WAYS[option]),
        required=True,
        label_visibility="collapsed",
        **state.choice("how", tuple(WAYS), REHEARSE),
    )
    return way


def chosen_place(way: str) -> Place:
    """Where it is to run; of Slurm one of its partitions, where it answers."""
    if way == "hosts":
        return Place(engine="hosts")
    if way != "slurm":
        return HERE
    found = services.slurm_partitions()
    names = tuple(partition.name for partition in found)
    default = next((partition.name for partition in found if partition.is_default), names[0] if names else None)
    if default is None:
        return Place(engine="slurm")
    partition = st.selectbox(t("Partition"), width=220, **state.choice("partition", names, default))
    return Place(engine="slurm", partition=partition)


def command_flags(way: str, place: Place) -> str:
    """The same place for the command line."""
    if way == REHEARSE:
        return " --rehearse"
    engine = "" if place.engine == "local" else f" --engine {place.engine}"
    return engine + (f" --partition {place.partition}" if place.partition else "")


def elsewhere(look: Look) -> None:
    """What is left to start by hand on the other machines; nothing where no person starts anything."""
    command = look.view.folder.elsewhere_command()
    if command is None:
        return
    with parts.card(t("On each of the other machines"), t("the same line; they must see the run folder at this path")):
        st.code(command, language="bash", wrap_lines=True)
