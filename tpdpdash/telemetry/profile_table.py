"""What a deep profile says: the operators that took most of the step, and each phase by kinds of work. Pure functions.

On a CPU an operator's own time is the host's: its span less those inside it, thread by thread; a phase is what its main
thread does, so that its kinds and its rest add up to its wall time. On a GPU an operator's time is what its kernels
took, under the operator that launched them, and a kernel counts for the phase in which it was launched.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tpdpdash.telemetry.intervals import difference, innermost, overlap, union
from tpdpdash.telemetry.profile_file import MAIN_LANE, DeepProfile, ProfileEvent
from tpdpdash.telemetry.profile_kinds import KINDS, is_operator, kind_of
from tpdpdash.units import MICROSECOND

UNATTRIBUTED = "unattributed"
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "concurrent_kernel"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """One operator, over all its calls in the step."""

    name: str
    """The operator; the kernel where none launched it."""
    kind: str
    """One of profile_kinds.KINDS."""
    calls: int
    """How often."""
    self_s: float
    """Seconds of its own: without those of operators that it called."""
    share: float
    """Of the step's time."""
    phase: str
    """The phase in which most of that lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """One phase of the step, by kinds of work."""

    phase: str
    """One of record.PHASES, or "unattributed"."""
    wall_s: float
    """Its wall time on the host."""
    kind_s: Mapping[str, float]
    """Seconds of each kind. communication, on a CPU: a message is under way and the main thread in no operator."""

    @property
    def rest_s(self) -> float:
        """Of the wall time of a CPU rank, what is in no operator and no message: Python, and waiting for a turn."""
        return max(0.0, self.wall_s - sum(self.kind_s.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTable:
    """A deep profile in two tables."""

    on_device: bool
    """Whether times are those of a GPU's kernels; else of the host's operators."""
    step_s: float
    """Seconds of the step, the profiler's own cost included."""
    operators: tuple[OperatorRow, ...]
    """The most costly first."""
    num_operators: int
    """Operators in all."""
    phases: tuple[PhaseRow, ...]
    """The longest first."""
    idle_s: float | None
    """Of the step, without a kernel on the GPU; None on a CPU."""


@dataclass(frozen=True, slots=True)
class _Work:
    """One piece of work: an operator's own time in one call, or a kernel."""

    name: str
    kind: str
    phase: str
    seconds: float


def profile_table(profile: DeepProfile, *, top: int = 12) -> ProfileTable:
    """The two tables of a profile."""
    phases = _Phases(event for event in profile.events if event.category == "phase")
    kernels = [event for event in profile.events if event.category in _ON_DEVICE]
    host = [event for event in profile.events if event.category not in _ON_DEVICE and event.category != "phase"]
    work = _device_work(kernels, host, phases) if kernels else _host_work(host, phases)
    spent = _by_phase(work) if kernels else _main_thread(host, phases)
    operators = _operators(work, profile.step_s)
    idle_s = max(0.0, profile.step_s - _covered_us(kernels) * MICROSECOND) if kernels else None
    return ProfileTable(
        on_device=bool(kernels),
        step_s=profile.step_s,
        operators=tuple(operators[:top]),
        num_operators=len(operators),
        phases=tuple(_phase_rows(spent, phases)),
        idle_s=idle_s,
    )


class _Phases:
    """The phases of the step, in time's order: which one was running at a moment."""

    def __init__(self, spans: Iterable[ProfileEvent]) -> None:
        ordered = sorted(spans, key=lambda span: span.start_us)
        self._starts = [span.start_us for span in ordered]
        self._spans = ordered

    def at(self, us: float) -> str:
        """The phase at this moment; unattributed outside all of them."""
        place = bisect_right(self._starts, us) - 1
        if place < 0 or us > _ends(self._spans[place])[1]:
            return UNATTRIBUTED
        return self._spans[place].name

    def stretches(self) -> list[tuple[float, float, str]]:
        """Start, end and name of each."""
        return [(*_ends(span), span.name) for span in self._spans]

    def wall_s(self) -> Mapping[str, float]:
        """Seconds of each phase."""
        wall: dict[str, float] = defaultdict(float)
        for span in self._spans:
            wall[span.name] += span.duration_us * MICROSECOND
        return wall


def _device_work(kernels: Sequence[ProfileEvent], host: Sequence[ProfileEvent], phases: _Phases) -> list[_Work]:
    by_id = {event.id: event for event in host if event.id}
    work = []
    for kernel in kernels:
        launcher = by_id.get(kernel.launched_by)
        kind = kind_of(kernel.name, is_kernel=True)
        if kind == "elementwise" and launcher is not None and kind_of(launcher.name) in ("gemm", "attention"):
            kind = kind_of(launcher.name)
        name = kernel.name if launcher is None or kind == "communication" else launcher.name
        phase = phases.at((launcher or kernel).start_us)
        work.append(_Work(_short(name), kind, phase, kernel.duration_us * MICROSECOND))
    return work


def _host_work(host: Sequence[ProfileEvent], phases: _Phases) -> list[_Work]:
    """Own times: in each thread, an event's children are those that begin and end inside it."""
    own = [event.duration_us for event in host]
    lanes: dict[int, list[int]] = defaultdict(list)
    for index, event in enumerate(host):
        lanes[event.lane].append(index)
    for indices in lanes.values():
        indices.sort(key=lambda index: (host[index].start_us, -host[index].duration_us))
        open_: list[int] = []
        for index in indices:
            start, _ = _ends(host[index])
            while open_ and _ends(host[open_[-1]])[1] <= start:
                open_.pop()
            if open_:
                own[open_[-1]] -= host[index].duration_us
            open_.append(index)
    return [
        _Work(_short(event.name), kind_of(event.name), phases.at(event.start_us), max(0.0, spent) * MICROSECOND)
        for event, spent in zip(host, own, strict=True)
        if is_operator(event.name)
    ]


def _main_thread(host: Sequence[ProfileEvent], phases: _Phases) -> dict[tuple[str, str], float]:
    """Seconds of the main thread by kind and phase. Messages of other threads are what it waits for where it is in no
    operator: beside one they cost nothing."""
    main = innermost(
        (*_ends(event), kind_of(event.name) if is_operator(event.name) else "")
        for event in host
        if event.lane == MAIN_LANE
    )
    busy = [stretch for stretch in main if stretch[2] not in ("", "communication")]
    sent = [_ends(event) for event in host if event.lane != MAIN_LANE and kind_of(event.name) == "communication"]
    sent += [(start, end) for start, end, kind in main if kind == "communication"]
    alone = difference(union(sent), union((start, end) for start, end, _ in busy))
    stretches = sorted([*busy, *((start, end, "communication") for start, end in alone)])
    return {pair: us * MICROSECOND for pair, us in overlap(stretches, phases.stretches()).items()}


def _by_phase(work: Sequence[_Work]) -> dict[tuple[str, str], float]:
    """Seconds by kind and phase."""
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for piece in work:
        spent[piece.kind, piece.phase] += piece.seconds
    return spent


def _ends(event: ProfileEvent) -> tuple[float, float]:
    return event.start_us, event.start_us + event.duration_us


@lru_cache(maxsize=8192)
def _short(name: str) -> str:
    """A kernel's name without the types that it was made for, which fill a line each."""
    return re.sub(r"[<(].*", "", name.removeprefix("void "))[:80] or name[:80]


def _operators(work: Sequence[_Work], step_s: float) -> list[OperatorRow]:
    calls: dict[tuple[str, str], int] = defaultdict(int)
    spent: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for piece in work:
        calls[piece.name, piece.kind] += 1
        spent[piece.name, piece.kind][piece.phase] += piece.seconds
    rows = [
        OperatorRow(
            name=name,
            kind=kind,
            calls=calls[name, kind],
            self_s=sum(by_phase.values()),
            share=sum(by_phase.values()) / step_s if step_s > 0 else 0.0,
            phase=max(by_phase, key=lambda phase: by_phase[phase]),
        )
        for (name, kind), by_phase in spent.items()
    ]
    return sorted(rows, key=lambda row: (-row.self_s, row.name))


def _phase_rows(seconds: Mapping[tuple[str, str], float], phases: _Phases) -> list[PhaseRow]:
    wall = phases.wall_s()
    spent: dict[str, dict[str, float]] = {phase: dict.fromkeys(KINDS, 0.0) for phase in wall}
    for (kind, phase), lasted in seconds.items():
        spent.setdefault(phase, dict.fromkeys(KINDS, 0.0))[kind] += lasted
    rows = [PhaseRow(phase=phase, wall_s=wall.get(phase, 0.0), kind_s=kinds) for phase, kinds in spent.items()]
    return sorted(rows, key=lambda row: -max(row.wall_s, sum(row.kind_s.values())))


def _covered_us(events: Iterable[ProfileEvent]) -> float:
    """Microseconds in which at least one of the events runs."""
    return sum(end - start for start, end in union(map(_ends, events)))
