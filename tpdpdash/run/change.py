"""Change: one thing that a rehearsal does otherwise than it was asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["here", "shrunken", "follows", "worker", "cpu", "default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key of the Job that a rehearsal changes."""

    key: str
    """The key as in the Job file: model.num_layers."""
    asked: object
    """Its value in the Job as asked."""
    rehearsed: object
    """Its value in the Job as rehearsed."""
    reason: Reason
    """here: this machine has so many ranks; shrunken: small enough to run in about a minute; follows: from another
    change; worker: the built-in worker cannot run what was asked; cpu: ranks are on the CPU; default: was not given."""
