"""Deep profiles as lanes of a run's trace: a process for each profiled rank and step, the predicted step on top.

What runs on one lane must nest for Perfetto, which torch's own events do; times are the rank's wall time, so they lie
under the rank's own lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpdpdash.telemetry.profile_file import DeepProfile
from tpdpdash.telemetry.trace_event import Event, lane_name, span

PROFILES = 2_000_000
"""Processes of the trace: profiles from here on."""
_PREDICTED_LANE = -1


def profile_lanes(
    profile: DeepProfile, place: int, begun_us: float, predicted: Sequence[tuple[str, float, float]]
) -> Iterator[Event]:
    """The events of one profile. `place`: which of the trace's profiles it is; `begun_us`: where its step begins on the
    trace's axis; `predicted`: name, microsecond on that axis and duration of what its stage was to do."""
    pid = PROFILES + place
    cut = profile.kept_events < profile.recorded_events
    held = f", the longest {profile.kept_events:,} of {profile.recorded_events:,} events" if cut else ""
    yield lane_name("process_name", pid, 0, name=f"rank {profile.rank}, step {profile.step}: deep profile{held}")
    yield lane_name("process_sort_index", pid, 0, sort_index=pid)
    lanes = {**({_PREDICTED_LANE: "predicted"} if predicted else {}), **dict(sorted(profile.lanes.items()))}
    tids = {lane: tid for tid, lane in enumerate(lanes, 1)}
    for lane, tid in tids.items():
        yield lane_name("thread_name", pid, tid, name=lanes[lane])
        yield lane_name("thread_sort_index", pid, tid, sort_index=tid)
    for name, start_us, duration_us in predicted:
        yield span(name, "predicted", start_us, duration_us, {"pid": pid, "tid": tids[_PREDICTED_LANE]})
    for event in profile.events:
        at: Event = {"pid": pid, "tid": tids.get(event.lane, len(tids) + 1)}
        yield span(event.name, event.category, begun_us + event.start_us, event.duration_us, at)
