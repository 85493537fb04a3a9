"""Event simulation of a schedule: when each rank starts each action, given the time of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.schedules import Placement, part_of
from tpdpdash.schedule.action import Action

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = range(4)
"""Kinds of actions, whole backwards as BACKWARD."""
KINDS = "FBIW"
"""Their letters in an Action."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Every action of every rank, ordered by rank and then by start."""

    rank: NDArray[np.int64]
    """Pipeline rank of each action."""
    kind: NDArray[np.uint8]
    """FORWARD, BACKWARD, INPUT_GRADIENT or WEIGHT_GRADIENT."""
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
    actions: Sequence[Sequence[Action]],
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    transfer_s: float = 0.0,
    *,
    weight_gradient_s: ArrayLike = 0.0,
    placement: Placement = "loop",
) -> Timeline:
    """Run the action lists: each rank in its own order, each action once what it needs has arrived.

    actions: one list a rank. forward_s, backward_s [s]: per microbatch and stage, shape (pp,), divided evenly over the
    chunks, or (pp, chunks); weight_gradient_s [s]: the part of backward_s that a weight gradient takes where it is an
    action of its own. transfer_s [s]: from the end of an action to its arrival on the next rank; it does not occupy the
    ranks. A pair begins when both of its passes can and hands on at its end. Raises ValueError when the lists wait for
    each other for ever.
    """
    ranks = len(actions)
    chunks = 1 + max((action.chunk for rank in actions for action in rank), default=0)
    parts = ranks * (1 if placement == "mirror" else chunks)
    seconds = _durations(forward_s, backward_s, weight_gradient_s, ranks, chunks)
    ends: dict[tuple[str, int, int], tuple[float, int]] = {}
    place, free = [0] * ranks, [0.0] * ranks
    starts: list[list[float]] = [[] for _ in actions]
    left = sum(len(rank) for rank in actions)
    while left:
        before = left
        for rank, own in enumerate(actions):
            while place[rank] < len(own):
                first = own[place[rank]]
                together = own[place[rank] : place[rank] + 1 + first.paired]
                at = [part_of(placement, ranks, rank, action.chunk) for action in together]
                arrivals = [
                    _arrival(ends, action, part, parts, rank, transfer_s)
                    for action, part in zip(together, at, strict=True)
                ]
                if None in arrivals:
                    break
                free[rank] = max(free[rank], *(arrival for arrival in arrivals if arrival is not None))
                for action in together:
                    starts[rank].append(free[rank])
                    free[rank] += seconds[action.kind][rank][action.chunk]
                for action, part in zip(together, at, strict=True):
                    if action.kind != "W":
                        ends["F" if action.kind == "F" else "B", part, action.microbatch] = free[rank], rank
                place[rank] += len(together)
                left -= len(together)
        if left == before:
            raise ValueError("the action lists wait for each other: no rank can go on")
    return _timeline(actions, starts, seconds)


def _arrival(
    ends: dict[tuple[str, int, int], tuple[float, int]],
    action: Action,
    part: int,
    parts: int,
    rank: int,
    transfer_s: float,
) -> float | None:
    """When what an action takes is there: the model part before it in forward, after it in backward; None = not yet. A
    weight gradient follows its input gradient on the same rank."""
    kind, _, microbatch, _ = action
    if kind == "W" or (kind == "F" and part == 0):
        return 0.0
    last = part + 1 == parts
    needed = (
        ("F", part - 1, microbatch) if kind == "F" else ("F", part, microbatch) if last else ("B", part + 1, microbatch)
    )
    found = ends.get(needed)
    if found is None:
        return None
    end_s, there = found
    return end_s if there == rank else end_s + transfer_s


def _durations(
    forward_s: ArrayLike, backward_s: ArrayLike, weight_gradient_s: ArrayLike, ranks: int, chunks: int
) -> dict[str, list[list[float]]]:
    """Seconds of each kind of action, by rank and chunk."""
    f, b, w = (_per_chunk(each, ranks, chunks) for each in (forward_s, backward_s, weight_gradient_s))
    return {"F": f.tolist(), "B": b.tolist(), "I": (b - w).tolist(), "W": w.tolist()}


def _per_chunk(stage_s: ArrayLike, ranks: int, chunks: int) -> Floats:
    seconds = np.asarray(stage_s, np.float64)
    if seconds.ndim < 2:
        seconds = np.broadcast_to(seconds, (ranks,))[:, None] / chunks
    return np.broadcast_to(seconds, (ranks, chunks))


def _timeline(
    actions: Sequence[Sequence[Action]], starts: list[list[float]], seconds: dict[str, list[list[float]]]
) -> Timeline:
    flat = [(rank, action) for rank, own in enumerate(actions) for action in own]
    return Timeline(
        rank=np.array([rank for rank, _ in flat], np.int64),
        kind=np.array([KINDS.index(action.kind) for _, action in flat], np.uint8),
        chunk=np.array([action.chunk for _, action in flat], np.int64),
        microbatch=np.array([action.microbatch for _, action in flat], np.int64),
        start_s=np.array([start for own in starts for start in own], np.float64),
        duration_s=np.array([seconds[action.kind][rank][action.chunk] for rank, action in flat], np.float64),
    )
