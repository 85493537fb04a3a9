"""The probe on a GPU: times from pooled CUDA events, read one step later. Never synchronises in the hot path.

On a GPU the script only queues work, so its own clock says nothing. Each boundary of a region puts an event into the
current stream; the time between two events is what the stream did in between. A collective waits on that stream too,
so its region holds transfer and waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

from tpdpdash.telemetry.probe import Probe, Step, time_fields
from tpdpdash.telemetry.record import MAX_ACTIONS, PHASES
from tpdpdash.telemetry.regions import NO_ACTION, OUTSIDE, Timed

MAX_PENDING_STEPS = 8
"""Steps whose events have not been reached yet; of an older one the record is written without times."""
_MS = 1e-3


class Event(Protocol):
    """What is used of torch.cuda.Event(enable_timing=True)."""

    def record(self) -> None:
        """Put it into the current stream."""

    def query(self) -> bool:
        """Whether the stream has reached it."""
        ...

    def synchronize(self) -> None:
        """Wait until the stream has reached it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to the other."""
        ...


def cuda_event() -> Event:
    """A CUDA event that keeps time."""
    import torch

    event: Event = torch.cuda.Event(enable_timing=True)
    return event


class _EventRegion:
    """One reusable region: entering and leaving it marks the stream."""

    __slots__ = ("_collective", "_phase", "_probe")

    def __init__(self, probe: TorchProbe, phase: int, collective: str | None) -> None:
        self._probe = probe
        self._phase = phase
        self._collective = collective

    def __enter__(self) -> None:
        state = self._probe._state
        state.stack.append(state.current)
        state.current = self._phase
        state.num_regions += 1
        if self._collective is not None:
            state.last_collective = self._collective
            state.num_collectives += 1
        self._probe._mark(self._phase)

    def __exit__(self, *_: object) -> None:
        state = self._probe._state
        state.current = state.stack.pop()
        self._probe._mark(state.current)


class _EventAction:
    """One pipeline action of a sampled step, between two events."""

    __slots__ = ("_label", "_probe", "_start")

    def __init__(self, probe: TorchProbe, label: list[object]) -> None:
        self._probe = probe
        self._label = label

    def __enter__(self) -> None:
        self._start = self._probe._take_event()

    def __exit__(self, *_: object) -> None:
        self._probe._event_actions.append((self._label, self._start, self._probe._take_event()))


class _Pending:
    """A step that was issued and whose events are not all reached."""

    __slots__ = ("actions", "fields", "marks", "step")

    def __init__(
        self, step: Step, fields: dict[str, object], marks: list[tuple[Event, int]], actions: list[Any]
    ) -> None:
        self.step = step
        self.fields = fields
        self.marks = marks
        self.actions = actions


class TorchProbe(Probe):
    """A probe whose regions are timed on the current CUDA stream. Its interface is Probe's.

    A step's record appears when the next one ends: `close` writes the last ones.
    """

    def __init__(self, folder: Any, *, make_event: Callable[[], Event] = cuda_event, **options: Any) -> None:
        self._make_event = make_event
        self._free: list[Event] = []
        self._marks: list[tuple[Event, int]] = []
        self._event_actions: list[tuple[list[object], Event, Event]] = []
        self._pending: deque[_Pending] = deque()
        super().__init__(folder, **options)

    def action(self, kind: str, stage: int, microbatch: int) -> Timed:
        """One pipeline action: "F", "B", or "I" and "W" of a split backward; kept on sampled steps only."""
        if self._actions is None or len(self._event_actions) >= MAX_ACTIONS:
            return NO_ACTION
        return _EventAction(self, [kind, stage, microbatch])

    def _new_region(self, phase: int, collective: str | None) -> Timed:
        return _EventRegion(self, phase, collective)

    def _measure_region_cost_s(self, repeats: int = 20, call: Callable[[], object] | None = None) -> float:
        """With its events, which are what costs."""
        cost = super()._measure_region_cost_s(repeats, call)
        self._free += [event for event, _ in self._marks]
        self._marks = []
        return cost

    def _go_over(self, phase: int) -> None:
        self._state.current = phase
        self._mark(phase)

    def _take_event(self) -> Event:
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        return event

    def _mark(self, phase: int) -> None:
        """From here on the stream is in `phase`."""
        if self._state.in_step:
            self._marks.append((self._take_event(), phase))

    def _begin_step(self, step: Step, origin: float) -> None:
        super()._begin_step(step, origin)
        self._free += [event for event, _ in self._marks]  # of a step that ended in an exception
        self._marks = [(self._take_event(), self._state.current)]
        self._event_actions = []

    def _write_step(self, step: Step, step_s: float, seconds: list[float]) -> None:
        self._marks.append((self._take_event(), OUTSIDE))
        fields = step.fields(step_s, seconds)
        self._pending.append(_Pending(step, fields, self._marks, self._event_actions))
        self._marks, self._event_actions, self._actions = [], [], None
        while len(self._pending) > 1 and self._pending[0].marks[-1][0].query():
            self._resolve(self._pending.popleft())
        if len(self._pending) > MAX_PENDING_STEPS:
            self._drop(self._pending.popleft())

    def _resolve(self, pending: _Pending) -> None:
        """Write a step whose events are all reached."""
        marks = pending.marks
        seconds = [0.0] * (len(PHASES) + 1)
        for (event, phase), (after, _) in pairwise(marks):
            seconds[phase] += event.elapsed_time(after) * _MS
        first, last = marks[0][0], marks[-1][0]
        times = time_fields(first.elapsed_time(last) * _MS, seconds)
        actions = [
            [*label, round(first.elapsed_time(start) * _MS, 7), round(start.elapsed_time(end) * _MS, 7)]
            for label, start, end in pending.actions
        ]
        self._write_records(pending.step, {**pending.fields, **times}, actions)
        self._release(pending)

    def _drop(self, pending: _Pending) -> None:
        """The stream is far behind: the step is told with the script's own time, and without phases."""
        self._write_records(pending.step, {**pending.fields, "phase_s": {}}, None)
        self._release(pending)

    def _release(self, pending: _Pending) -> None:
        self._free += [event for event, _ in pending.marks]
        for _, start, end in pending.actions:
            self._free += [start, end]

    def _flush(self) -> None:
        """The script has ended: waiting disturbs nobody now."""
        while self._pending:
            pending = self._pending.popleft()
            pending.marks[-1][0].synchronize()
            self._resolve(pending)
