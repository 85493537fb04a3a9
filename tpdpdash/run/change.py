"""Change: one thing that a rehearsal does otherwise than it was asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key of the Job that a rehearsal changed."""

    key: str
    """The key as in the Job file: model.num_layers."""
    asked: object
    """Its value in the Job as asked."""
    rehearsed: object
    """Its value in the Job as rehearsed."""
    reason: str
    """Code of the reason: one of REASONS."""
