"""Ask a run for the deep profile of one step, and see what became of it. The ranks do it (telemetry.profiling)."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from tpdpdash.faults import Fault, InvalidInputError, out_of_range
from tpdpdash.run.folder import RunFolder, write_json
from tpdpdash.run.history import RunView
from tpdpdash.telemetry.profile_file import DeepProfile, kept_profiles, read_profile
from tpdpdash.telemetry.profile_request import MAX_RANKS, ProfileRequest, read_request
from tpdpdash.telemetry.profiling import BEGUN, DONE, FAILED
from tpdpdash.telemetry.record import PROFILE_REQUEST
from tpdpdash.telemetry.snapshot import Telemetry

NOTICE_S = 3.0
"""Until every rank has heard: it looks once a second, and what is known of the step is a second old."""
FIRST_STEP = 2
"""The first that can be profiled: a rank's first step opens connections and allocates."""
MAX_STEP = 1_000_000_000
_USUAL_STEPS = 20

StepAndRanks = tuple[int, tuple[int, ...]]
"""What a run is asked to profile when it starts."""
Progress = Literal["asked", "running", "ready", "failed", "missed", "replaced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """What became of a request on one rank."""

    rank: int
    """Rank."""
    step: int
    """The step: the one that was asked for, until the rank has begun another."""
    progress: Progress
    """asked: not begun; running: begun, or being written; ready; failed; missed: the run ended before;
    replaced: a later request came before this rank had begun."""
    path: Path | None = None
    """The file, where there is one."""
    reason: str = ""
    """Why it failed."""


def ask_for_profile(
    view: RunView, telemetry: Telemetry, *, ranks: Sequence[int], step: int | None, by: str
) -> ProfileRequest:
    """Ask for one step, the next that all these ranks can hear of where none is named. A former request that no rank
    has begun is replaced. Raises InvalidInputError with every fault."""
    status = view.status
    if view.is_over or view.state == "stopping" or status is None:
        over = Fault(code="profile_run_over", field="run", value=view.run_id, values={"state": view.state})
        raise InvalidInputError([over])
    newest = newest_step(telemetry)
    faults = request_faults(ranks, step, world_size=status.world_size, steps=status.steps)
    if step is not None and FIRST_STEP <= step <= newest:
        faults.append(Fault(code="profile_step_past", field="--step", value=step, values={"newest": newest}))
    if step is None and status.steps is not None and newest >= status.steps:
        faults.append(Fault(code="profile_no_step_left", field="run", value=view.run_id))
    if faults:
        raise InvalidInputError(faults)
    asked = next_step(telemetry, status.steps) if step is None else step
    request = ProfileRequest(ranks=tuple(sorted(set(ranks))), step=asked, by=by, t=time.time())
    try:
        write_json(view.folder.profile_request, request.to_json(), durable=False)
    except OSError as wrong:
        values = {"reason": wrong.strerror or str(wrong)}
        raise InvalidInputError(
            [Fault(code="profile_not_asked", field="run", value=view.run_id, values=values)]
        ) from wrong
    return request


def file_at_start(profile: StepAndRanks | None, *, world_size: int, steps: int | None) -> dict[str, str]:
    """The request that a run finds in its folder when it starts, as a file to be; none where none is wanted. Raises
    InvalidInputError with every fault."""
    if profile is None:
        return {}
    step, ranks = profile
    faults = request_faults(ranks, step, world_size=world_size, steps=steps, option="--profile-")
    if faults:
        raise InvalidInputError(faults)
    request = ProfileRequest(ranks=tuple(sorted(set(ranks))), step=step, by="start", t=time.time())
    return {PROFILE_REQUEST: json.dumps(request.to_json())}


def request_faults(
    ranks: Sequence[int], step: int | None, *, world_size: int, steps: int | None, option: str = "--"
) -> list[Fault]:
    """What no run of this size can do. `option`: how the names of the options begin."""
    of_ranks, of_step = f"{option}ranks", f"{option}step"
    faults = [
        Fault(code="profile_rank_unknown", field=of_ranks, value=rank, values={"last": world_size - 1})
        for rank in sorted(set(ranks))
        if not 0 <= rank < world_size
    ][:8]
    if not ranks:
        faults.append(Fault(code="profile_no_rank", field=of_ranks))
    if len(set(ranks)) > MAX_RANKS:
        values = {"limit": MAX_RANKS}
        faults.append(Fault(code="profile_too_many_ranks", field=of_ranks, value=len(set(ranks)), values=values))
    last = MAX_STEP if steps is None else steps
    if step is not None and not FIRST_STEP <= step <= last:
        faults.append(out_of_range(of_step, step, FIRST_STEP, max(FIRST_STEP, last)))
    return faults


def newest_step(telemetry: Telemetry) -> int:
    """The newest step that any rank has begun, as far as it has said so; 0 before the first."""
    begun = [beat.step for beat in telemetry.heartbeats.values() if beat.step is not None]
    return max([0, *begun, *map(int, telemetry.steps[-1:])])


def next_step(telemetry: Telemetry, steps: int | None) -> int:
    """The first step that begins when all ranks have heard of the request, at the pace of the last ones."""
    newest = newest_step(telemetry)
    recent = telemetry.step_s[:, -_USUAL_STEPS:]
    ahead = 1
    if np.isfinite(recent).any():
        ahead += math.ceil(NOTICE_S / max(1e-4, float(np.nanmedian(recent))))
    wanted = max(FIRST_STEP, newest + ahead)
    return wanted if steps is None else max(newest + 1, min(wanted, steps))


def asked_profile(folder: RunFolder) -> ProfileRequest | None:
    """The last request; None where there is none, or it is damaged: then a rank says so."""
    try:
        return read_request(folder.path)
    except (OSError, ValueError):
        return None


def profile_progress(
    view: RunView, telemetry: Telemetry, asked: ProfileRequest | None = None
) -> tuple[RankProfile, ...]:
    """What became of a request, rank by rank; without one of the last, and empty where nothing was asked."""
    last = asked_profile(view.folder)
    request = last if asked is None else asked
    if request is None:
        return ()
    paths = {(kept.rank, kept.step): kept.path for kept in kept_profiles(view.folder.path)}
    notes = {note.rank: note for note in telemetry.profiles if note.step >= request.step}
    found = []
    for rank in request.ranks:
        note = notes.get(rank)
        step = request.step if note is None else note.step
        path, progress = paths.get((rank, step)), _progress(view, None if note is None else note.event)
        if progress == "ready" and path is None:
            progress = "missed"
        elif progress == "asked" and last is not None and last != request:
            progress = "replaced"
        reason = note.reason if note is not None and progress == "failed" else ""
        found.append(RankProfile(rank=rank, step=step, progress=progress, path=path, reason=reason))
    return tuple(found)


def _progress(view: RunView, event: str | None) -> Progress:
    if event == DONE:
        return "ready"
    if event == FAILED:
        return "failed"
    if view.is_over:
        return "missed"
    return "running" if event == BEGUN else "asked"


def open_profile(path: Path) -> DeepProfile:
    """A profile of a run. Raises InvalidInputError when it is damaged, too large or gone."""
    try:
        return read_profile(path)
    except (OSError, ValueError) as wrong:
        values = {"reason": str(wrong)[:200]}
        raise InvalidInputError(
            [Fault(code="profile_unreadable", field="profile", value=path.name, values=values)]
        ) from wrong
