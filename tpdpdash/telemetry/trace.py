"""A run as Chrome trace events, which Perfetto opens: a lane a rank, the predicted schedule above each stage's lanes,
and below them the deep profiles of single steps.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format). Times are
microseconds from the first thing that is kept. Bounded: what the reader keeps, and of that the last steps.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpdpdash.telemetry.clocks import clock_ahead_s
from tpdpdash.telemetry.profile_file import DeepProfile
from tpdpdash.telemetry.profile_lanes import profile_lanes
from tpdpdash.telemetry.record import PHASES
from tpdpdash.telemetry.snapshot import Floats, Telemetry
from tpdpdash.telemetry.trace_event import Event, lane_name, span
from tpdpdash.units import MICROSECOND

MAX_STEP_SPANS = 200_000
"""Steps of all ranks that are written: the last ones."""
US_PER_S = 1 / MICROSECOND
_PREDICTED_LANE = 0
_NODES = 1_000_000
"""Processes of the trace: stages from 1 on, machines from here on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSpan:
    """One thing that the estimate says a pipeline stage does in a step."""

    stage: int
    """Pipeline stage: the lane."""
    name: str
    """ "F 3" for a microbatch; a part of the estimate otherwise."""
    kind: str
    """F, B, I, W, or the part."""
    start_s: float
    """Since the start of the step."""
    duration_s: float
    """How long it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSample:
    """A device figure of one machine at one moment."""

    node: int
    """Machine."""
    t: float
    """Wall time there."""
    name: str
    """What is counted."""
    value: float
    """The figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Wall time of a rank → microseconds of the trace."""

    zero: float
    """Wall time of the first rank's machine at 0."""
    ahead_s: Floats
    """(R,) what each rank's clock is ahead."""

    def us(self, t: float, rank: int) -> float:
        """Microseconds since the trace's start."""
        return round((t - float(self.ahead_s[rank]) - self.zero) * US_PER_S, 3)


def trace_events(
    telemetry: Telemetry,
    predicted: Sequence[PredictedSpan] = (),
    samples: Sequence[CounterSample] = (),
    profiles: Sequence[DeepProfile] = (),
) -> Iterator[Event]:
    """Every event of the trace, in no order that matters."""
    ahead_s = clock_ahead_s(telemetry)
    kept = max(1, MAX_STEP_SPANS // max(1, telemetry.world_size))
    last = slice(max(0, len(telemetry.steps) - kept), None)
    starts = telemetry.t[:, last] - ahead_s[:, None]
    profiles = [profile for profile in profiles if profile.rank in telemetry.ranks]
    times = [t - float(ahead_s[rank]) for t, rank, _ in telemetry.events]
    times += [profile.t - float(ahead_s[profile.rank]) for profile in profiles]
    zero = min([*times, *([float(np.nanmin(starts))] if np.isfinite(starts).any() else [])], default=0.0)
    axis = _Axis(zero=zero, ahead_s=ahead_s)
    yield from _lanes(telemetry, bool(predicted))
    yield from _steps(telemetry, axis, last)
    yield from _actions(telemetry, axis)
    yield from _predictions(telemetry, axis, predicted, {*telemetry.timelines, *(each.step for each in profiles)})
    for t, rank, name in telemetry.events:
        yield {"ph": "i", "s": "t", "name": name, "cat": "event", "ts": axis.us(t, rank), **_lane(telemetry, rank)}
    yield from _samples(telemetry, axis, samples)
    for place, profile in enumerate(profiles):
        yield from _deep(telemetry, axis, place, profile, predicted)


def write_trace(path: Path, events: Iterable[Event], about: Mapping[str, object]) -> int:
    """Write the file, compressed when its name ends in .gz; how many events it holds. Raises OSError."""
    count = 0
    with ExitStack() as closing:
        raw = closing.enter_context(path.open("wb"))
        is_packed = path.suffix == ".gz"
        file = closing.enter_context(gzip.open(raw, "wb", compresslevel=5)) if is_packed else raw
        head = {"displayTimeUnit": "ms", "otherData": dict(about)}
        file.write(json.dumps(head, allow_nan=False)[:-1].encode() + b',"traceEvents":[')
        for count, event in enumerate(events, 1):
            line = json.dumps(event, separators=(",", ":"), allow_nan=False).encode()
            file.write((b"\n" if count == 1 else b",\n") + line)
        file.write(b"\n]}\n")
    return count


# --------------------------------------------------------------------------------------------- lanes


def _stage(telemetry: Telemetry, rank: int) -> int:
    info = telemetry.ranks.get(rank)
    return info.coords.get("pp", 0) if info else 0


def _lane(telemetry: Telemetry, rank: int) -> Event:
    return {"pid": _stage(telemetry, rank) + 1, "tid": rank + 1}


def _lanes(telemetry: Telemetry, has_prediction: bool) -> Iterator[Event]:
    """Names: a process a stage, in it the prediction and its ranks."""
    ranks = sorted(telemetry.ranks)
    for stage in sorted({_stage(telemetry, rank) for rank in ranks}):
        yield lane_name("process_name", stage + 1, 0, name=f"stage {stage}")
        yield lane_name("process_sort_index", stage + 1, 0, sort_index=stage)
        if has_prediction:
            yield lane_name("thread_name", stage + 1, _PREDICTED_LANE, name="predicted")
            yield lane_name("thread_sort_index", stage + 1, _PREDICTED_LANE, sort_index=-1)
    for rank in ranks:
        info, lane = telemetry.ranks[rank], _lane(telemetry, rank)
        place = " ".join(f"{kind}{at}" for kind, at in info.coords.items())
        pid, tid = int(str(lane["pid"])), int(str(lane["tid"]))
        yield lane_name("thread_name", pid, tid, name=f"rank {rank}  {place}".rstrip(), host=info.host)
        yield lane_name("thread_sort_index", pid, tid, sort_index=rank)


# ---------------------------------------------------------------------------------------------- spans


def _steps(telemetry: Telemetry, axis: _Axis, last: slice) -> Iterator[Event]:
    """Each step of each rank, ended where the next one begins if a clock was set back between them."""
    steps = telemetry.steps[last].tolist()
    for rank in sorted(telemetry.ranks):
        t, step_s = telemetry.t[rank, last], telemetry.step_s[rank, last]
        known = np.flatnonzero(np.isfinite(t) & np.isfinite(step_s)).tolist()
        lane = _lane(telemetry, rank)
        for place, i in enumerate(known):
            start, end = axis.us(t[i], rank), axis.us(t[i] + step_s[i], rank)
            if place + 1 < len(known):
                end = min(end, max(start, axis.us(t[known[place + 1]], rank)))
            yield span(f"step {steps[i]}", "step", start, end - start, lane, **_told(telemetry, rank, last, i))


def _told(telemetry: Telemetry, rank: int, last: slice, i: int) -> Event:
    """What a step's record says besides its time."""
    phases = dict(zip(PHASES, telemetry.phase_s[rank, last][i].tolist(), strict=True))
    told = {f"{name}_s": seconds for name, seconds in phases.items() if seconds > 0}
    for name in ("loss", "tokens", "memory_bytes", "peak_memory_bytes"):
        value = float(getattr(telemetry, name)[rank, last][i])
        if np.isfinite(value):
            told[name] = value
    return told


def _actions(telemetry: Telemetry, axis: _Axis) -> Iterator[Event]:
    """Actions of the sampled steps, inside their step."""
    column = {int(step): i for i, step in enumerate(telemetry.steps)}
    for step, by_rank in telemetry.timelines.items():
        for rank, actions in by_rank.items():
            if step not in column or rank not in telemetry.ranks:
                continue
            begun, step_s = telemetry.t[rank, column[step]], telemetry.step_s[rank, column[step]]
            if not np.isfinite(begun + step_s):
                continue
            lane, end = _lane(telemetry, rank), axis.us(begun + step_s, rank)
            for kind, stage, microbatch, start_s, duration_s in actions:
                start = min(end, axis.us(begun + start_s, rank))
                until = min(end, axis.us(begun + start_s + duration_s, rank))
                yield span(f"{kind} {microbatch}", kind, start, until - start, lane, stage=stage, microbatch=microbatch)


def _predictions(
    telemetry: Telemetry, axis: _Axis, predicted: Sequence[PredictedSpan], beside: Set[int]
) -> Iterator[Event]:
    """The predicted step beside each of these, from the moment at which its first rank began it."""
    stages = {_stage(telemetry, rank) for rank in telemetry.ranks}
    for step in sorted(beside):
        zero_us = _begun_us(telemetry, axis, step)
        if zero_us is None:
            continue
        for each in predicted:
            if each.stage in stages:
                start_us, duration_us = zero_us + each.start_s * US_PER_S, each.duration_s * US_PER_S
                lane: Event = {"pid": each.stage + 1, "tid": _PREDICTED_LANE}
                yield span(each.name, each.kind, start_us, duration_us, lane, step=step)


def _begun_us(telemetry: Telemetry, axis: _Axis, step: int) -> float | None:
    """When the first rank began a step; None where no kept record says it."""
    starts = telemetry.t[:, telemetry.steps == step] - axis.ahead_s[:, None]
    return (float(np.nanmin(starts)) - axis.zero) * US_PER_S if np.isfinite(starts).any() else None


def _deep(
    telemetry: Telemetry, axis: _Axis, place: int, profile: DeepProfile, predicted: Sequence[PredictedSpan]
) -> Iterator[Event]:
    """A profiled step below its rank's lane, and beside it what its stage was to do."""
    own_us, stage = axis.us(profile.t, profile.rank), _stage(telemetry, profile.rank)
    begun_us = _begun_us(telemetry, axis, profile.step)
    zero_us = own_us if begun_us is None else begun_us
    beside = [
        (each.name, zero_us + each.start_s * US_PER_S, each.duration_s * US_PER_S)
        for each in predicted
        if each.stage == stage
    ]
    yield from profile_lanes(profile, place, own_us, beside)


def _samples(telemetry: Telemetry, axis: _Axis, samples: Sequence[CounterSample]) -> Iterator[Event]:
    """Device figures, as tracks of their machine; its clock is that of its ranks."""
    first_of_host: dict[str, int] = {}
    for rank, info in sorted(telemetry.ranks.items()):
        first_of_host.setdefault(info.host, rank)
    ranks = list(first_of_host.values()) or [0]
    for node in sorted({sample.node for sample in samples}):
        yield lane_name("process_name", _NODES + node, 0, name=f"node {node}")
    for sample in samples:
        at = axis.us(sample.t, ranks[sample.node] if sample.node < len(ranks) else ranks[0])
        counted = {"ph": "C", "name": sample.name, "pid": _NODES + sample.node, "tid": 0}
        yield {**counted, "ts": at, "args": {"value": sample.value}}
