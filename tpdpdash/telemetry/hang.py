"""Hung: no rank has finished a step for far longer than a step takes. Who holds the others up, and where."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

import numpy as np

from tpdpdash.telemetry.record import COLLECTIVE_PHASES, PHASES
from tpdpdash.telemetry.snapshot import Floats, Heartbeat, Telemetry

PAUSE_FLOOR_S = 10.0
"""Before this no pause is called one."""
PAUSE_STEPS = 5
"""And it is longer than so many usual steps, and than the longest of the last ones."""
EVENT_FLOOR_S = 120.0
"""Between steps a script says what it does by its last event: writing a checkpoint may take a while."""
RECENT_STEPS = 20
SILENT_S = 5.0
"""A rank writes a heartbeat a second; when its peers do and it has not for so long, it does not run at all."""
START_EVENTS = frozenset({"starting", "importing", "connecting", "building", "first_step"})
"""Last events of a script that has none of its own."""

_Awaiting = tuple[str, tuple[int, ...], str | None]
"""Kind and ranks of a group, and the collective in which some of them wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUp:
    """The rank that does not go on."""

    rank: int
    """Rank."""
    phase: str
    """The region it is in; an event's name between steps."""
    last_collective: str | None
    """The collective it entered last."""
    is_silent: bool
    """Whether even its heartbeat has stopped: the process is stopped, or its machine is."""
    kind: str | None
    """The kind of the group that waits for it."""
    group: tuple[int, ...]
    """The ranks of that group; empty where nobody of its groups waits."""
    awaited: str | None
    """The collective in which they wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A run that does not go on."""

    pause_s: float
    """Since the last step ended."""
    usual_s: float
    """What a step usually takes."""
    last_step: int
    """The last finished step of any rank."""
    culprits: tuple[HeldUp, ...]
    """Ranks that hold the others up, the surest first; empty where all ranks wait in collectives."""


def find_hang(telemetry: Telemetry, now_t: float) -> Hang | None:
    """Whether the run hangs at this wall time; None while it goes on, and before its first step has ended."""
    ends = telemetry.t + telemetry.step_s
    if not len(telemetry.steps) or not np.isfinite(ends).any():
        return None
    pause = now_t - _last_end_t(ends)
    if pause < PAUSE_FLOOR_S:
        return None
    recent = telemetry.step_s[:, -RECENT_STEPS:]
    usual = float(np.nanmedian(recent)) if np.isfinite(recent).any() else float(np.nanmedian(telemetry.step_s))
    longest = float(np.nanmax(recent)) if np.isfinite(recent).any() else usual
    if pause < max(PAUSE_STEPS * usual, longest) or _is_over(telemetry):
        return None
    culprits = _culprits(_with_every_rank(telemetry, ends))
    if pause < EVENT_FLOOR_S and any(_is_event(held.phase) for held in culprits):
        return None
    return Hang(pause_s=pause, usual_s=usual, last_step=int(telemetry.steps[-1]), culprits=culprits)


def _last_end_t(ends: Floats) -> float:
    """When the latest rank finished its newest step. Not the greatest time of all: a clock may have been set back."""
    newest = ends.shape[1] - 1 - np.argmax(np.isfinite(ends[:, ::-1]), axis=1)
    return float(np.nanmax(ends[np.arange(len(ends)), newest]))


def _with_every_rank(telemetry: Telemetry, ends: Floats) -> Telemetry:
    """With a last sign of life of ranks that finished steps and stopped before their first heartbeat too."""
    steps = {rank: np.flatnonzero(np.isfinite(ends[rank])) for rank in telemetry.ranks}
    stopped = {
        rank: Heartbeat(
            t=float(ends[rank, known[-1]]),
            step=int(telemetry.steps[known[-1]]),
            phase="unattributed",
            last_collective=None,
            collectives=0,
        )
        for rank, known in steps.items()
        if len(known) and rank not in telemetry.heartbeats
    }
    return replace(telemetry, heartbeats={**telemetry.heartbeats, **stopped}) if stopped else telemetry


def _is_over(telemetry: Telemetry) -> bool:
    """Whether every rank that is known has said that it has finished."""
    return bool(telemetry.ranks) and all(telemetry.last_event.get(rank) == "finished" for rank in telemetry.ranks)


def _is_event(phase: str) -> bool:
    """Whether a rank is between steps, in something that its script named."""
    return phase not in PHASES and phase != "unattributed" and phase not in START_EVENTS


def _culprits(telemetry: Telemetry) -> tuple[HeldUp, ...]:
    """Silent ranks; else those in no collective while others wait in one; else those that are behind in their stage."""
    beats = telemetry.heartbeats
    newest = max((beat.t for beat in beats.values()), default=0.0)
    silent = [rank for rank, beat in beats.items() if newest - beat.t > SILENT_S]
    busy = [rank for rank, beat in beats.items() if beat.phase not in COLLECTIVE_PHASES]
    ranks = silent or (busy if len(busy) < len(beats) else []) or _behind(telemetry)
    awaiting = _awaiting(telemetry, set(ranks))
    return tuple(_held_up(rank, beats[rank], awaiting.get(rank), is_silent=bool(silent)) for rank in ranks)


def _behind(telemetry: Telemetry) -> list[int]:
    """Ranks that have entered fewer collectives than the others of their stage, which enter the same ones."""
    found = []
    for ranks in telemetry.ranks.stages.values():
        counts = {rank: telemetry.heartbeats[rank].collectives for rank in ranks if rank in telemetry.heartbeats}
        most = max(counts.values(), default=0)
        behind = [rank for rank, count in counts.items() if count < most]
        found += behind if len(behind) <= len(counts) // 2 else []
    return sorted(found, key=lambda rank: telemetry.heartbeats[rank].collectives)


def _held_up(rank: int, beat: Heartbeat, awaiting: _Awaiting | None, *, is_silent: bool) -> HeldUp:
    kind, group, awaited = awaiting or (None, (), None)
    return HeldUp(
        rank=rank,
        phase=beat.phase,
        last_collective=beat.last_collective,
        is_silent=is_silent,
        kind=kind,
        group=group,
        awaited=awaited,
    )


def _awaiting(telemetry: Telemetry, held: Set[int]) -> Mapping[int, _Awaiting]:
    """By rank, the first of its groups in which one that is not held up waits in that kind's collective."""
    found: dict[int, _Awaiting] = {}
    for kind in sorted(COLLECTIVE_PHASES):
        for group in telemetry.ranks.groups(kind):
            if len(group) < 2:
                continue
            beats = (telemetry.heartbeats.get(peer) for peer in group if peer not in held)
            waiting = next((beat for beat in beats if beat is not None and beat.phase == kind), None)
            if waiting is not None:
                for rank in group:
                    found.setdefault(rank, (kind, tuple(group), waiting.last_collective))
    return found
