"""One telemetry line → one record, or the kind of its fault. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tpdpdash.telemetry.record import KINDS, VERSION

MAX_SECONDS = 1e7
"""Longer steps are not believed."""
MAX_RANK = 1 << 20
MAX_NAME = 300
"""Characters of a host (255 in DNS), an event, a phase: a reader keeps them for each rank."""
MAX_COORDS = 32
BAD_KINDS = (
    "not_json",
    "two_objects",
    "not_object",
    "not_finite",
    "unknown_version",
    "unknown_kind",
    "rank_out_of_range",
    "impossible_value",
    "too_long",
)


class BadLineError(ValueError):
    """A line that is not a record; `kind` is one of BAD_KINDS."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def _not_finite(_: str) -> float:
    raise BadLineError("not_finite")


_DECODER = json.JSONDecoder(parse_constant=_not_finite)


def parse_line(line: bytes, world_size: int | None) -> dict[str, Any]:
    """The record of a line. Raises BadLineError: nothing of a bad line is used."""
    try:
        text = str(line, "utf-8").strip()
        record, end = _DECODER.raw_decode(text)
    except BadLineError:
        raise
    except (ValueError, RecursionError) as wrong:
        raise BadLineError("not_json") from wrong
    if end != len(text):
        raise BadLineError("two_objects" if text[end:].lstrip().startswith("{") else "not_json")
    if not isinstance(record, dict):
        raise BadLineError("not_object")
    if record.get("v") != VERSION:
        raise BadLineError("unknown_version")
    if record.get("kind") not in KINDS:
        raise BadLineError("unknown_kind")
    limit = world_size if world_size is not None else MAX_RANK
    if not _is_whole(record.get("rank"), limit):
        raise BadLineError("rank_out_of_range")
    if not is_seconds(record.get("t"), limit=1e11) or not _IS_POSSIBLE[record["kind"]](record):
        raise BadLineError("impossible_value")
    return record


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME


def _is_whole(value: object, limit: float) -> bool:
    return type(value) is int and 0 <= value < limit


def is_seconds(value: object, limit: float = MAX_SECONDS) -> bool:
    """Whether a value is a possible duration: a number (true is none), not negative, below the limit (NaN is not)."""
    return (type(value) is float or type(value) is int) and 0 <= value < limit


def _is_amount(value: object) -> bool:
    return value is None or is_seconds(value, limit=1e18)


_AMOUNTS = ("tokens", "memory_bytes", "peak_memory_bytes", "cpu_s", "regions")


def _is_step(record: Mapping[str, Any]) -> bool:
    phases = record.get("phase_s")
    if not _is_whole(record.get("step"), 1e12) or not is_seconds(record.get("step_s")) or not isinstance(phases, dict):
        return False
    if not all(map(is_seconds, phases.values())):
        return False
    loss = record.get("loss")
    if loss is not None and not is_seconds(abs(loss) if isinstance(loss, int | float) else loss, limit=1e300):
        return False
    return all(map(_is_amount, map(record.get, _AMOUNTS)))


def _is_hello(record: Mapping[str, Any]) -> bool:
    coords = record.get("coords")
    return (
        _is_whole(record.get("pid"), 1 << 31)
        and _is_name(record.get("host"))
        and _is_whole(record.get("world_size"), MAX_RANK + 1)
        and record["rank"] < record["world_size"]
        and isinstance(coords, dict)
        and len(coords) <= MAX_COORDS
        and all(_is_whole(place, MAX_RANK) for place in coords.values())
    )


def _is_event(record: Mapping[str, Any]) -> bool:
    return _is_name(record.get("name"))


def _is_heartbeat(record: Mapping[str, Any]) -> bool:
    step = record.get("step")
    names = (record.get("phase"), record.get("last_collective"))
    return (step is None or _is_whole(step, 1e12)) and all(name is None or _is_name(name) for name in names)


def _is_timeline(record: Mapping[str, Any]) -> bool:
    actions = record.get("actions")
    return _is_whole(record.get("step"), 1e12) and isinstance(actions, list) and all(map(_is_action, actions))


def _is_action(action: object) -> bool:
    if not isinstance(action, list) or len(action) != 5:
        return False
    name, stage, microbatch, start_s, duration_s = action
    places = _is_whole(stage, MAX_RANK) and _is_whole(microbatch, MAX_RANK)
    return _is_name(name) and places and is_seconds(start_s) and is_seconds(duration_s)


_IS_POSSIBLE = {
    "hello": _is_hello,
    "event": _is_event,
    "heartbeat": _is_heartbeat,
    "step": _is_step,
    "timeline": _is_timeline,
}
