"""profiles/rank-00003.step-20.json.gz: the deep profile of one step of one rank, as Chrome trace events. Standard
library only.

Perfetto opens it as it is. A file is whole or not there; a reader believes nothing in it and reads a bounded amount.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpdpdash.telemetry.regular import open_regular

MAX_READ_BYTES = 128 << 20
"""Of an unpacked file."""
_NAME = re.compile(r"rank-(\d{5,7})\.step-(\d{1,15})\.json\.gz")
PHASE_LANE, MAIN_LANE, STREAM_LANES = 0, 1, 1000
"""Lanes of a file: the phases, the script's own thread, its other threads, from here on device streams."""
_LEVEL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileEvent:
    """Something that took time in the profiled step."""

    name: str
    """Operator, kernel, annotation or phase."""
    category: str
    """cpu_op, user_annotation, kernel, gpu_memcpy, … as torch.profiler names them; phase: the probe's own."""
    lane: int
    """Thread or stream."""
    start_us: float
    """Microseconds since the step began."""
    duration_us: float
    """Microseconds that it took."""
    id: int = 0
    """By which a device's event names its operator; 0: none."""
    launched_by: int = 0
    """Of a device's event: the id of the operator that launched it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepProfile:
    """One step of one rank, profiled."""

    rank: int
    """Rank."""
    step: int
    """Step."""
    t: float
    """Wall time of the rank's machine at which the step began."""
    step_s: float
    """Seconds of the step, the profiler's own cost included."""
    recorded_events: int
    """Events that the profiler recorded."""
    kept_events: int
    """Of these, the longest, which are in the file."""
    lanes: Mapping[int, str]
    """Name of each lane."""
    events: tuple[ProfileEvent, ...]
    """In no order that matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptProfile:
    """A profile that lies in a run folder."""

    rank: int
    """Rank."""
    step: int
    """Step."""
    path: Path
    """The file."""
    num_bytes: int
    """Its size."""


def profiles_dir(run_dir: Path) -> Path:
    """The folder of a run that holds its profiles; made with the first one."""
    return run_dir / "profiles"


def profile_path(run_dir: Path, rank: int, step: int) -> Path:
    """The file of one rank and step."""
    return profiles_dir(run_dir) / f"rank-{rank:05d}.step-{step}.json.gz"


def kept_profiles(run_dir: Path) -> tuple[KeptProfile, ...]:
    """The profiles of a run: the newest step first, then by rank."""
    found = []
    try:
        entries = list(os.scandir(profiles_dir(run_dir)))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    for entry in entries:
        named = _NAME.fullmatch(entry.name)
        if named and entry.is_file(follow_symlinks=False):
            size = entry.stat(follow_symlinks=False).st_size
            found.append(KeptProfile(rank=int(named[1]), step=int(named[2]), path=Path(entry.path), num_bytes=size))
    return tuple(sorted(found, key=lambda kept: (-kept.step, kept.rank)))


def write_profile(
    path: Path, about: Mapping[str, object], lanes: Mapping[int, str], events: Iterable[ProfileEvent]
) -> int:
    """Write a profile; the bytes of its file. Raises OSError: nothing is left then."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as raw:
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=_LEVEL) as file:
                head = {"displayTimeUnit": "ms", "otherData": dict(about)}
                file.write(json.dumps(head, allow_nan=False)[:-1].encode() + b',"traceEvents":[')
                for lane, shown in lanes.items():
                    names = {"ph": "M", "name": "thread_name", "pid": 0, "tid": lane, "args": {"name": shown}}
                    file.write(b"\n" + json.dumps(names).encode() + b",")
                file.write(b"\n" + ",\n".join(map(_line, events)).encode() + b"\n]}\n")
            raw.flush()
        num_bytes = temporary.stat().st_size
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return num_bytes


def _line(event: ProfileEvent) -> str:
    """One event. Names are a script's own: they are the only thing here that needs JSON's quoting."""
    link = f'"id":{event.id}' if event.id else f'"launched_by":{event.launched_by}' if event.launched_by else ""
    return (
        f'{{"ph":"X","name":{json.dumps(event.name)},"cat":{json.dumps(event.category)},"pid":0,"tid":{event.lane},'
        f'"ts":{event.start_us:.3f},"dur":{event.duration_us:.3f},"args":{{{link}}}}}'
    )


def read_profile(path: Path) -> DeepProfile:
    """Read a profile back. Raises OSError, or ValueError when it is damaged or too large."""
    try:
        with open_regular(path) as packed, gzip.open(packed, "rb") as file:
            data = file.read(MAX_READ_BYTES + 1)
        if len(data) > MAX_READ_BYTES:
            raise ValueError(f"{path.name} is larger than {MAX_READ_BYTES} bytes")
        document = json.loads(data)
        return _profile(document["otherData"], document["traceEvents"])
    except (EOFError, zlib.error, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as damage:
        raise ValueError(f"{path.name} is damaged: {damage!r}") from damage


def _profile(about: Mapping[str, Any], events: list[dict[str, Any]]) -> DeepProfile:
    named = (event for event in events if event["ph"] == "M" and event["name"] == "thread_name")
    return DeepProfile(
        rank=int(about["rank"]),
        step=int(about["step"]),
        t=_finite(about["t"]),
        step_s=_finite(about["step_s"]),
        recorded_events=int(about["recorded_events"]),
        kept_events=int(about["kept_events"]),
        lanes={int(event["tid"]): str(event["args"]["name"])[:100] for event in named},
        events=tuple(_event(event) for event in events if event["ph"] == "X"),
    )


def _event(event: dict[str, Any]) -> ProfileEvent:
    return ProfileEvent(
        name=str(event["name"])[:300],
        category=str(event["cat"])[:40],
        lane=int(event["tid"]),
        start_us=_finite(event["ts"]),
        duration_us=max(0.0, _finite(event["dur"])),
        id=int(event["args"].get("id", 0)),
        launched_by=int(event["args"].get("launched_by", 0)),
    )


def _finite(value: Any) -> float:
    """A number that a trace can hold: json.loads takes NaN and 1e999 for numbers too."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no time")
    return number
