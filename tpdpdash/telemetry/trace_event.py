"""Single events of the Trace Event Format: the names of lanes, and what takes time on them. `pid` is a process of the
trace, `tid` a lane of it."""

from __future__ import annotations

Event = dict[str, object]


def lane_name(kind: str, pid: int, tid: int, **args: object) -> Event:
    """What a process or a lane is called, or where it stands: `kind` is process_name, thread_sort_index, …"""
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def span(name: str, category: str, start_us: float, duration_us: float, lane: Event, **args: object) -> Event:
    """Something that lasted; `lane` has its pid and tid."""
    times = {"ts": round(start_us, 3), "dur": round(max(0.0, duration_us), 3)}
    return {"ph": "X", "name": name, "cat": category, **times, **lane, "args": args}
