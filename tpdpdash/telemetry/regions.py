"""What the probe's hot path is made of: the running state, regions and actions. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tpdpdash.telemetry.record import PHASES

OUTSIDE = len(PHASES)
"""The slot of time in no region: unattributed, never written."""


class Timed(Protocol):
    """What `with` takes: a region or an action. Not an abstract base class: those cost a dictionary an object."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Region:
    """One reusable region: entering and leaving it moves the running time to the right slot."""

    __slots__ = ("_clock", "_collective", "_phase", "_state")

    def __init__(self, state: State, phase: int, collective: str | None) -> None:
        self._state = state
        self._clock = state.clock
        self._phase = phase
        self._collective = collective

    def __enter__(self) -> None:
        state = self._state
        now = self._clock()
        current = state.current
        state.seconds[current] += now - state.since
        state.stack.append(current)
        state.current = self._phase
        state.since = now
        state.num_regions += 1
        if self._collective is not None:
            state.last_collective = self._collective
            state.num_collectives += 1

    def __exit__(self, *_: object) -> None:
        state = self._state
        now = self._clock()
        state.seconds[state.current] += now - state.since
        state.current = state.stack.pop()
        state.since = now


class State:
    """What the regions of one probe share; read by the heartbeat thread without a lock (each field is one object)."""

    __slots__ = (
        "clock",
        "current",
        "in_step",
        "last_collective",
        "last_event",
        "num_collectives",
        "num_regions",
        "seconds",
        "since",
        "stack",
        "step",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds = [0.0] * (len(PHASES) + 1)
        self.stack: list[int] = []
        self.current = OUTSIDE
        self.since = clock()
        self.num_regions = 0
        self.num_collectives = 0
        self.last_collective: str | None = None
        self.last_event = "starting"
        self.step: int | None = None  # the step that was started last
        self.in_step = False

    def phase_name(self) -> str:
        """The region that runs now; outside any region "unattributed" in a step, else the last event."""
        current = self.current
        if current != OUTSIDE:
            return PHASES[current]
        return "unattributed" if self.in_step else self.last_event


class Action:
    """One pipeline action of a sampled step."""

    __slots__ = ("_actions", "_clock", "_label", "_origin", "_start")

    def __init__(self, actions: list[list[object]], clock: Callable[[], float], origin: float, label: list[object]):
        self._actions = actions
        self._clock = clock
        self._origin = origin
        self._label = label
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *_: object) -> None:
        now = self._clock()
        self._actions.append([*self._label, round(self._start - self._origin, 7), round(now - self._start, 7)])


class NoAction:
    """An action of a step that is not sampled: costs nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


NO_ACTION = NoAction()
