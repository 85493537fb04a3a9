"""One step of a pipeline rank, and how a rank's list of them is written down."""

from __future__ import annotations

from collections import Counter, deque
from typing import Literal, NamedTuple

ActionKind = Literal["F", "B", "I", "W"]


class Action(NamedTuple):
    """One pass of one microbatch through one model chunk."""

    kind: ActionKind
    """Forward; whole backward; its input gradient alone; its weight gradient alone."""
    chunk: int
    """Model chunk on this rank, from 0, under dualpipe the copy; layout.schedules.part_of says which part it is."""
    microbatch: int
    """Microbatch, from 0."""
    paired: bool = False
    """A forward that runs as one with the backward that follows it."""


class RankOrder:
    """A rank's list in the making: each pass of a chunk takes that chunk's next microbatch."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self._next: Counter[tuple[str, int]] = Counter()
        self._waiting: deque[tuple[int, int]] = deque()

    def forward(self, chunk: int, *, paired: bool = False) -> None:
        """The next forward of a chunk."""
        self._add("F", chunk, paired)

    def backward(self, chunk: int) -> None:
        """The next whole backward of a chunk."""
        self._add("B", chunk)

    def input_gradient(self, chunk: int) -> None:
        """The next input gradient of a chunk; its weight gradient waits."""
        self._waiting.append((chunk, self._add("I", chunk)))

    def weight_gradient(self, chunk: int | None = None) -> None:
        """The weight gradient (of a chunk, where one is named) that has waited longest, if one does."""
        found = next((waits for waits in self._waiting if chunk in (None, waits[0])), None)
        if found is not None:
            self._waiting.remove(found)
            self.actions.append(Action("W", *found))

    def pair(self, forward: int, backward: int) -> None:
        """A forward of one chunk and a whole backward of another as one."""
        self.forward(forward, paired=True)
        self.backward(backward)

    def _add(self, kind: ActionKind, chunk: int, paired: bool = False) -> int:
        counted = "F" if kind == "F" else "B"
        microbatch = self._next[counted, chunk]
        self._next[counted, chunk] += 1
        self.actions.append(Action(kind, chunk, microbatch, paired))
        return microbatch
