"""Event simulation of a schedule: when each rank starts each action, given the time of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.schedule.actions import Action

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Every action of every rank, ordered by rank and then by start."""

    rank: NDArray[np.int64]
    """Pipeline rank of each action."""
    kind: NDArray[np.uint8]
    """FORWARD or BACKWARD."""
    chunk: NDArray[np.int64]
    """Model chunk on the rank."""
    microbatch: NDArray[np.int64]
    """Microbatch."""
    start_s: Floats
    """Start of the action."""
    duration_s: Floats
    """How long it takes."""

    @property
    def total_s(self) -> float:
        """End of the last action."""
        return float((self.start_s + self.duration_s).max(initial=0.0))


def simulate(
    actions: Sequence[Sequence[Action]], forward_s: ArrayLike, backward_s: ArrayLike, transfer_s: float = 0.0
) -> Timeline:
    """Run the action lists: each rank in its own order, each action once what it needs has arrived.

    actions: one list a rank. forward_s, backward_s [s]: per microbatch and stage, shape (pp,), divided evenly over the
    chunks, or (pp, chunks). transfer_s [s]: from the end of an action to its arrival on the next rank; it does not
    occupy the ranks. Raises ValueError when the lists wait for each other for ever.
    """
    ranks = len(actions)
    chunks = 1 + max((action.chunk for rank in actions for action in rank), default=0)
    forward, backward = _per_chunk(forward_s, ranks, chunks), _per_chunk(backward_s, ranks, chunks)
    ends: dict[tuple[str, int, int], float] = {}
    place, free = [0] * ranks, [0.0] * ranks
    starts: list[list[float]] = [[] for _ in actions]
    left = sum(len(rank) for rank in actions)
    while left:
        before = left
        for rank, own in enumerate(actions):
            while place[rank] < len(own):
                kind, chunk, microbatch = own[place[rank]]
                part = chunk * ranks + rank
                needed = _needs(kind, part, microbatch, ranks * chunks)
                arrived = 0.0
                if needed is not None:
                    end = ends.get(needed)
                    if end is None:
                        break
                    arrived = end + (transfer_s if (needed[1] - part) % ranks else 0.0)
                start = max(free[rank], arrived)
                free[rank] = start + (forward if kind == "F" else backward)[rank][chunk]
                ends[kind, part, microbatch] = free[rank]
                starts[rank].append(start)
                place[rank] += 1
                left -= 1
        if left == before:
            raise ValueError("the action lists wait for each other: no rank can go on")
    return _timeline(actions, starts, forward, backward)


def _needs(kind: str, part: int, microbatch: int, parts: int) -> tuple[str, int, int] | None:
    """The action whose result this one takes: the model part before it in forward, after it in backward."""
    if kind == "F":
        return ("F", part - 1, microbatch) if part else None
    return ("B", part + 1, microbatch) if part + 1 < parts else ("F", part, microbatch)


def _per_chunk(stage_s: ArrayLike, ranks: int, chunks: int) -> list[list[float]]:
    seconds = np.asarray(stage_s, np.float64)
    if seconds.ndim < 2:
        seconds = np.broadcast_to(seconds, (ranks,))[:, None] / chunks
    rows: list[list[float]] = np.broadcast_to(seconds, (ranks, chunks)).tolist()
    return rows


def _timeline(
    actions: Sequence[Sequence[Action]],
    starts: list[list[float]],
    forward: list[list[float]],
    backward: list[list[float]],
) -> Timeline:
    flat = [(rank, *action) for rank, own in enumerate(actions) for action in own]
    took = [(forward if kind == "F" else backward)[rank][chunk] for rank, kind, chunk, _ in flat]
    return Timeline(
        rank=np.array([row[0] for row in flat], np.int64),
        kind=np.array([FORWARD if row[1] == "F" else BACKWARD for row in flat], np.uint8),
        chunk=np.array([row[2] for row in flat], np.int64),
        microbatch=np.array([row[3] for row in flat], np.int64),
        start_s=np.array([start for own in starts for start in own], np.float64),
        duration_s=np.array(took, np.float64),
    )
