"""The five phases of a start, each with the ranks that have reached it and the seconds it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from tpdpdash.text import t
from tpdpdash.ui.live import Look
from tpdpdash.units import format_time

PHASES = ("importing", "connecting", "building", "first step", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """One phase of a start."""

    name: str
    """One of PHASES."""
    ranks: int
    """Ranks that have reached it."""
    done: bool
    """Whether every rank has gone past it."""
    seconds: float | None
    """From the first rank that reached it to the last that left it, or until now; None before anyone has."""


def reached(look: Look) -> list[Reached]:
    """The phases as the ranks' events tell them."""
    telemetry = look.telemetry
    starts: dict[str, dict[int, float]] = {name: {} for name in PHASES}
    for moment, rank, event in telemetry.events:
        name = event.replace("_", " ")
        if name in starts:
            starts[name].setdefault(rank, moment)
    first_done = [] if not telemetry.steps.size else [*_first_steps(look)]
    starts["running"] = dict(first_done)
    return [_phase(name, i, starts, look) for i, name in enumerate(PHASES)]


def _first_steps(look: Look) -> Sequence[tuple[int, float]]:
    """When each rank's first kept step ended."""
    telemetry = look.telemetry
    ends = telemetry.t[:, 0] + telemetry.step_s[:, 0]
    return [(rank, float(end)) for rank, end in enumerate(ends) if end == end]


def _phase(name: str, index: int, starts: Mapping[str, Mapping[int, float]], look: Look) -> Reached:
    mine = starts[name]
    later: set[int] = set()
    for after in PHASES[index + 1 :]:
        later |= set(starts[after])
    ranks = len(set(mine) | later)
    next_ = starts[PHASES[index + 1]] if index + 1 < len(PHASES) else {}
    done = len(later) == look.telemetry.world_size
    until = max(next_.values()) if done and next_ else look.seen_t
    seconds = until - min(mine.values()) if mine and name != "running" else None
    return Reached(name=name, ranks=ranks, done=done, seconds=seconds)


def caption() -> str:
    """What the card says of itself."""
    return t("five phases, each with the ranks that have reached it")


def strip(look: Look) -> None:
    """The phases beside each other."""
    columns = st.columns(len(PHASES))
    world = look.telemetry.world_size
    for column, phase in zip(columns, reached(look), strict=True):
        share = phase.ranks / world
        column.progress(min(1.0, share))
        column.markdown(f"**{t(phase.name)}**" if phase.ranks else f":gray[{t(phase.name)}]")
        column.caption(_note(phase, world))


def _note(phase: Reached, world: int) -> str:
    if phase.name == "running" and not phase.ranks:
        return t("opens Watch by itself")
    if not phase.ranks:
        return t("not yet")
    ranks = t("{n} of {all} ranks", n=phase.ranks, all=world)
    if phase.seconds is None:
        return ranks
    took = format_time(max(0.0, phase.seconds))
    return f"{took} · {ranks}" if phase.done else t("{time} so far · {ranks}", time=took, ranks=ranks)
