"""torch.profiler around one step: its operators and kernels, and the probe's phases on the same clock, as one file.

The profiler's times and the phases' are wall time in nanoseconds (kineto converts its own clock), so nothing has to be
aligned. Nothing is asked of the script's hot path: for this one step the probe's stack of regions is one that notes
each change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch.profiler import ProfilerActivity, profile

from tpdpdash.telemetry.profile_file import (
    MAIN_LANE,
    PHASE_LANE,
    STREAM_LANES,
    ProfileEvent,
    profile_path,
    write_profile,
)
from tpdpdash.telemetry.record import PHASES
from tpdpdash.telemetry.regions import OUTSIDE, State

MAX_EVENTS = 200_000
"""Events of one file: 2 to 5 MB compressed. Of more, the longest are kept."""
MAX_PHASE_SPANS = 50_000
_NS_PER_US = 1000


class NotingStack(list[int]):
    """The stack of open regions, which is asked at each change of phase: what has ended then is noted."""

    def __init__(self, state: State) -> None:
        super().__init__(state.stack)
        self._state = state
        self._since_ns = time.time_ns()
        self.spans: list[tuple[int, int, int]] = []
        """Start and end in nanoseconds of wall time, and the phase's index."""

    def note(self) -> None:
        """Whatever runs ends here."""
        now_ns = time.time_ns()
        if len(self.spans) < MAX_PHASE_SPANS:
            self.spans.append((self._since_ns, now_ns, self._state.current))
        self._since_ns = now_ns

    def append(self, phase: int) -> None:
        """A region begins."""
        self.note()
        super().append(phase)

    def pop(self, at: SupportsIndex = -1) -> int:
        """A region ends."""
        self.note()
        return super().pop(at)


class TorchStepProfile:
    """A profile that has begun."""

    def __init__(self, state: State) -> None:
        if torch.autograd._profiler_enabled():
            raise RuntimeError("the script is using torch's profiler itself")
        self._state = state
        self._uses_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._uses_cuda else [])]
        self._profile = profile(activities=activities)
        self._profile.start()
        self._stack = state.stack = NotingStack(state)
        self._begun_ns = time.time_ns()

    def note(self) -> None:
        """Another phase begins, with no region opened or closed."""
        self._stack.note()

    def drop(self) -> None:
        """End it without a file."""
        self._end()

    def write(self, run_dir: Path, rank: int, step: int) -> Mapping[str, object]:
        """End it and write its file. Raises OSError when that cannot be written."""
        self._stack.note()
        ended_ns = time.time_ns()
        self._end()
        results = self._profile.profiler.kineto_results
        raw = results.events()
        kept = _longest(raw)
        lanes = Lanes(threading.get_native_id())
        events = [*self._phases(), *_events(kept, self._begun_ns, lanes)]
        about = {"rank": rank, "step": step, "torch": torch.__version__, "uses_cuda": self._uses_cuda,
                 "t": self._begun_ns / 1e9, "step_s": (ended_ns - self._begun_ns) / 1e9,
                 "recorded_events": len(raw), "kept_events": len(kept)}  # fmt: skip
        path = profile_path(run_dir, rank, step)
        num_bytes = write_profile(path, about, lanes.names, events)
        return {"file": path.name, "bytes": num_bytes, "events": len(raw), "kept": len(kept)}

    def _end(self) -> None:
        self._state.stack = list(self._stack)
        self._profile.stop()

    def _phases(self) -> list[ProfileEvent]:
        names = {**dict(enumerate(PHASES)), OUTSIDE: "unattributed"}
        return [
            ProfileEvent(
                name=names[phase],
                category="phase",
                lane=PHASE_LANE,
                start_us=(start - self._begun_ns) / _NS_PER_US,
                duration_us=(end - start) / _NS_PER_US,
            )
            for start, end, phase in self._stack.spans
            if end > start
        ]


def begin(state: State) -> TorchStepProfile:
    """Begin to profile this process. Raises RuntimeError when the profiler is in use or does not start."""
    return TorchStepProfile(state)


def _longest(raw: list[Any]) -> list[Any]:
    """What is kept of the recorded events: all of them, or the longest."""
    raw = [event for event in raw if event.duration_ns() > 0 and event.activity_type() != "gpu_user_annotation"]
    if len(raw) <= MAX_EVENTS:
        return raw
    return sorted(raw, key=lambda event: -event.duration_ns())[:MAX_EVENTS]


def _on_device(event: Any) -> bool:
    return event.device_type() != torch.profiler.DeviceType.CPU


class Lanes:
    """Where each event is drawn: the phases, then the script's own thread, other threads and gloo's messages in the
    order in which they came, the device's streams. A thread is known by the kernel's id of it, which CUDA's calls have
    as well."""

    def __init__(self, main_thread: int) -> None:
        self.names = {PHASE_LANE: "phases", MAIN_LANE: "main thread"}
        self._lanes: dict[int | str, int] = {main_thread: MAIN_LANE}

    def of(self, event: Any) -> int:
        """The lane of an event."""
        place, name = event.device_resource_id(), event.name()
        if _on_device(event):
            lane: int = STREAM_LANES + place
            self.names.setdefault(lane, f"stream {place}")
            return lane
        if name.startswith("gloo:"):  # a send begins on the main thread and ends whenever it is received
            return self._lane(f"{name} {place}", name)
        return self._lane(place, f"thread {len(self._lanes) + MAIN_LANE}")

    def _lane(self, key: int | str, name: str) -> int:
        if key not in self._lanes:
            self._lanes[key] = len(self._lanes) + MAIN_LANE
            self.names[self._lanes[key]] = name
        return self._lanes[key]


def _events(kept: list[Any], zero_ns: int, lanes: Lanes) -> list[ProfileEvent]:
    """As the file has them. A device's event names the host's operator that launched it; CUDA's own calls on the host
    are numbered apart, and no operator's number is theirs."""
    return [
        ProfileEvent(
            name=event.name()[:300],
            category=event.activity_type(),
            lane=lanes.of(event),
            start_us=(event.start_ns() - zero_ns) / _NS_PER_US,
            duration_us=event.duration_ns() / _NS_PER_US,
            id=event.correlation_id() if event.activity_type() == "cpu_op" else 0,
            launched_by=event.linked_correlation_id() if _on_device(event) else 0,
        )
        for event in kept
    ]
