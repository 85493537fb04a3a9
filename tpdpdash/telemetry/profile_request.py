"""control/profile.json: a request for a deep profile of one step, which the ranks read. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tpdpdash.telemetry.record import PROFILE_REQUEST
from tpdpdash.telemetry.regular import read_json

VERSION = 1
MAX_BYTES = 64 << 10
_END_OF_TIME = 1e11  # seconds: what lies beyond is no wall time
MAX_RANKS = 32
"""Ranks of one request: each of them stops for the writing, and all others wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """One step that is to be profiled."""

    ranks: tuple[int, ...]
    """On which ranks."""
    step: int
    """This step; a rank that hears of it later takes its next one."""
    by: str
    """Who asked: cli, dashboard."""
    t: float
    """Wall time at which it was asked."""

    def to_json(self) -> dict[str, Any]:
        """What stands in the file."""
        return {"v": VERSION, **asdict(self)}


def request_file(run_dir: Path) -> Path:
    """Where a run's request stands; the last one counts."""
    return run_dir / PROFILE_REQUEST


def read_request(run_dir: Path) -> ProfileRequest | None:
    """The request of a run; None where there is none. Raises OSError, or ValueError when it is damaged."""
    try:
        document = read_json(request_file(run_dir), MAX_BYTES)
    except FileNotFoundError:
        return None
    return parse_request(document)


def parse_request(document: object) -> ProfileRequest:
    """The request that a document says. Raises ValueError that names what is wrong."""
    if not isinstance(document, Mapping) or document.get("v") != VERSION:
        raise ValueError(f"{PROFILE_REQUEST} is not of version {VERSION}")
    ranks, step, t = document.get("ranks"), document.get("step"), document.get("t")
    if not isinstance(ranks, list) or not 0 < len(ranks) <= MAX_RANKS or not all(map(_is_count, ranks)):
        raise ValueError(f"{PROFILE_REQUEST}: ranks is {str(ranks)[:80]}, not 1 to {MAX_RANKS} ranks")
    if not _is_count(step):
        raise ValueError(f"{PROFILE_REQUEST}: step is {str(step)[:80]}, not a step")
    if not isinstance(t, int | float) or isinstance(t, bool) or not 0 <= t < _END_OF_TIME:
        raise ValueError(f"{PROFILE_REQUEST}: t is {str(t)[:80]}, not a time")
    return ProfileRequest(ranks=tuple(ranks), step=int(str(step)), by=str(document.get("by"))[:40], t=float(t))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 53
