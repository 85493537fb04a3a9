"""Reading a rollup back: all of it as it was written, or nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpdpdash.telemetry.parse import parse_line
from tpdpdash.telemetry.regular import read_bounded
from tpdpdash.telemetry.rings import Rows, rows_of
from tpdpdash.telemetry.rollup import FORGET_LINE, STATE, VERSION, rollup_dir
from tpdpdash.telemetry.rows import COLUMNS, FORGET, MAX_TIMELINE_STEPS
from tpdpdash.telemetry.segments import Segment, read_segment
from tpdpdash.telemetry.tail import ResumePoint

MAX_STATE_BYTES = 128 << 20
"""A state of a thousand ranks takes some megabytes."""
_MOST = 1 << 53
"""Of bytes and counts: beyond it no file reaches, and no seek."""
_TRIES = 3
"""The writer may have replaced the state, and dropped a file, while this read it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollup:
    """What the supervisor had parsed up to some byte of each file."""

    rows: Rows
    """Rows of steps, in the order in which they came: at least those that a reader keeps."""
    lines: tuple[bytes, ...]
    """hello, event and heartbeat records to be taken in this order."""
    timelines: tuple[Mapping[str, Any], ...]
    """Timeline records of the last sampled steps, in the order in which they came."""
    points: Mapping[str, ResumePoint]
    """Where each rank's file goes on."""
    ranks_of: Mapping[str, tuple[int, ...]]
    """Ranks that told something in each file."""
    bad_lines: Mapping[str, int]
    """Lines that were not used, by kind."""
    lost_records: Mapping[int, int]
    """Records that each rank itself could not write."""
    num_steps: int
    """Steps that were seen in all."""
    non_finite: int
    """Steps whose loss was NaN or infinite."""


def read_rollup(telemetry: Path, world_size: int) -> Rollup | None:
    """The rollup of a run; None where there is none, or it is not whole, or of another version or world."""
    for _ in range(_TRIES):
        try:
            return _read(rollup_dir(telemetry), world_size)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
    return None


def _read(folder: Path, world_size: int) -> Rollup:
    head, *lines = read_bounded(folder / STATE, MAX_STATE_BYTES).split(b"\n")
    header = json.loads(head)
    if (header["v"], header["world_size"], header["columns"]) != (VERSION, world_size, list(COLUMNS)):
        raise ValueError("a rollup of another kind of run")
    if len(lines) != header["num_lines"]:
        raise ValueError("the state is torn")
    rows = rows_of(b"".join(read_segment(folder, _segment(each)) for each in header["steps"]))
    if len(rows) and not (_is_within(rows["rank"], 0, world_size) and _is_within(rows["step"], FORGET, 1 << 60)):
        raise ValueError("a row of no rank, or no step")
    told = b"".join(read_segment(folder, _segment(each)) for each in header["timelines"])
    files = header["files"]
    return Rollup(
        rows=rows,
        lines=tuple(lines),
        timelines=tuple(_last_timelines(told.splitlines(), world_size)),
        points={name: _point(point) for name, point in files.items()},
        ranks_of={name: tuple(_whole(rank) for rank in point["ranks"]) for name, point in files.items()},
        bad_lines={str(kind): _whole(count) for kind, count in header["bad_lines"].items()},
        lost_records={int(rank): _whole(count) for rank, count in header["lost_records"].items()},
        num_steps=_whole(header["num_steps"]),
        non_finite=_whole(header["non_finite"]),
    )


def _last_timelines(lines: list[bytes], world_size: int) -> list[Mapping[str, Any]]:
    """The records of the last sampled steps: found from the end, so that no others are parsed."""
    kept: list[Mapping[str, Any]] = []
    steps: set[int] = set()
    forgotten: set[int] = set()
    for line in reversed(lines):
        if line.startswith(FORGET_LINE):
            forgotten |= set(json.loads(line)["forget"])
            continue
        record = parse_line(line, world_size)
        if record["rank"] not in forgotten:
            steps.add(record["step"])
            if len(steps) > MAX_TIMELINE_STEPS:
                break
            kept.append(record)
    return kept[::-1]


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"{value!r} is no count")
    return int(value)


def _is_within(values: np.ndarray[Any, Any], low: int, high: int) -> bool:
    return bool(values.min() >= low and values.max() < high)


def _segment(table: dict[str, Any]) -> Segment:
    name = str(table["name"])
    if "/" in name:
        raise ValueError(f"{name} is no file of a rollup")
    return Segment(name=name, size=_whole(table["size"]), crc=_whole(table["crc"]))


def _point(table: dict[str, Any]) -> ResumePoint:
    return ResumePoint(
        offset=_whole(table["offset"]),
        mark=bytes.fromhex(table["mark"]),
        is_skipping=table["is_skipping"] is True,
        too_long=_whole(table["too_long"]),
        skipped=_whole(table["skipped"]),
        restarts=_whole(table["restarts"]),
    )
