"""The trace: valid events, a lane a rank, clocks of machines aligned, the prediction beside what was measured."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from test_telemetry_reader import append, hello, line, read, step

from tpdpdash.telemetry import trace as trace_module
from tpdpdash.telemetry.clocks import clock_ahead_s
from tpdpdash.telemetry.profile_file import DeepProfile, ProfileEvent
from tpdpdash.telemetry.profile_lanes import PROFILES
from tpdpdash.telemetry.trace import CounterSample, PredictedSpan, trace_events, write_trace

BEGUN = 1000.0


def two_machines(run: Path, ahead_s: float = 5.0, steps: int = 6) -> None:
    """Stage 0 on machine a, stage 1 on machine b, whose clock is ahead; each step takes 2 s and samples two actions."""
    for rank, host in enumerate("ab"):
        clock = BEGUN + (ahead_s if host == "b" else 0.0)
        append(run, hello(rank, 2, host=host, coords={"pp": rank, "dp": 0}), rank)
        append(run, line("event", rank, name="first_step", t=clock), rank)
        for number in range(1, steps + 1):
            told = {"t": clock + 2.0 * (number - 1), "loss": 3.5 if rank else None, "memory_bytes": 100}
            append(run, step(rank, number, 2.0, **told), rank)
            actions = [["F", rank, 0, 0.5, 0.25], ["B", rank, 0, 1.0, 0.5]]
            append(run, line("timeline", rank, step=number, actions=actions), rank)


def spans(events: list[dict], **lane: int) -> list[dict]:
    return [e for e in events if e["ph"] == "X" and all(e[key] == value for key, value in lane.items())]


def test_the_clock_of_a_machine_is_found_from_the_ends_of_steps(tmp_path: Path) -> None:
    two_machines(tmp_path)
    np.testing.assert_allclose(clock_ahead_s(read(tmp_path, 2)), [0.0, 5.0], atol=1e-6)


def test_ranks_of_one_machine_share_its_clock_however_late_one_is(tmp_path: Path) -> None:
    append(tmp_path, hello(0, 2) + step(0, 1, 2.0))
    append(tmp_path, hello(1, 2) + step(1, 1, 9.0), rank=1)
    assert clock_ahead_s(read(tmp_path, 2)).tolist() == [0.0, 0.0]


def test_a_machine_that_has_ended_no_step_is_taken_to_be_on_time(tmp_path: Path) -> None:
    append(tmp_path, hello(0, 2, host="a") + step(0, 1, 2.0))
    append(tmp_path, hello(1, 2, host="b"), rank=1)
    assert clock_ahead_s(read(tmp_path, 2)).tolist() == [0.0, 0.0]


def test_each_rank_has_a_lane_among_those_of_its_stage_and_steps_of_two_machines_begin_together(tmp_path: Path) -> None:
    two_machines(tmp_path)
    events = list(trace_events(read(tmp_path, 2)))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(1, 1): "rank 0  pp0 dp0", (2, 2): "rank 1  pp1 dp0"}
    first = [[s["ts"] for s in spans(events, tid=rank + 1) if s["cat"] == "step"] for rank in range(2)]
    assert first[0] == pytest.approx([2e6 * i for i in range(6)])
    assert first[1] == pytest.approx(first[0])
    assert spans(events, tid=2)[0]["args"]["loss"] == 3.5
    assert {e["ts"] for e in events if e["ph"] == "i"} == {0.0}


def test_actions_lie_inside_their_step_and_in_their_lane(tmp_path: Path) -> None:
    two_machines(tmp_path)
    events = list(trace_events(read(tmp_path, 2)))
    for rank in range(2):
        lane = spans(events, tid=rank + 1)
        steps = [(s["ts"], s["ts"] + s["dur"]) for s in lane if s["cat"] == "step"]
        actions = [s for s in lane if s["cat"] in "FB"]
        assert [a["name"] for a in actions] == ["F 0", "B 0"] * 6
        assert all(any(low <= a["ts"] <= a["ts"] + a["dur"] <= high for low, high in steps) for a in actions)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(steps))


def test_the_prediction_stands_above_its_stage_at_the_start_of_each_sampled_step(tmp_path: Path) -> None:
    two_machines(tmp_path, steps=3)
    predicted = [
        PredictedSpan(stage=0, name="F 0", kind="F", start_s=0.25, duration_s=0.5),
        PredictedSpan(stage=1, name="F 0", kind="F", start_s=0.75, duration_s=0.5),
    ]
    events = list(trace_events(read(tmp_path, 2), predicted))
    for stage, start_us in ((0, 0.25e6), (1, 0.75e6)):
        lane = spans(events, pid=stage + 1, tid=0)
        assert [s["ts"] for s in lane] == pytest.approx([start_us + 2e6 * i for i in range(3)])
        assert [s["args"]["step"] for s in lane] == [1, 2, 3]
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"].count("predicted") == 2


def test_a_clock_that_was_set_back_never_makes_steps_of_a_lane_overlap(tmp_path: Path) -> None:
    append(tmp_path, hello(0, 1) + step(0, 1, 2.0, t=100.0) + step(0, 2, 2.0, t=90.0) + step(0, 3, 2.0, t=101.0))
    steps = spans(list(trace_events(read(tmp_path, 1))))
    assert all(s["dur"] >= 0 for s in steps)
    assert len(steps) == 3


def test_device_figures_are_tracks_of_their_machine_on_its_clock(tmp_path: Path) -> None:
    two_machines(tmp_path)
    sample = CounterSample(node=1, t=BEGUN + 5.0 + 3.0, name="cpu busy, share", value=0.5)
    (counted,) = [e for e in trace_events(read(tmp_path, 2), samples=[sample]) if e["ph"] == "C"]
    assert (counted["ts"], counted["args"]) == (pytest.approx(3e6), {"value": 0.5})


def test_a_long_run_writes_its_last_steps_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MAX_STEP_SPANS", 4)
    two_machines(tmp_path)
    kept = [s["name"] for s in spans(list(trace_events(read(tmp_path, 2))), tid=1) if s["cat"] == "step"]
    assert kept == ["step 5", "step 6"]


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_the_file_is_one_json_object_compressed_by_its_name(tmp_path: Path, name: str) -> None:
    two_machines(tmp_path)
    count = write_trace(tmp_path / name, trace_events(read(tmp_path, 2)), {"run": "r"})
    data = (tmp_path / name).read_bytes()
    document = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    assert document["otherData"] == {"run": "r"}
    assert len(document["traceEvents"]) == count > 20
    assert write_trace(tmp_path / name, [], {}) == 0


def profile_of(rank: int, number: int, t: float) -> DeepProfile:
    """A profile of one operator, a quarter of a second after its step began."""
    operator = ProfileEvent(name="aten::mm", category="cpu_op", lane=1, start_us=250_000.0, duration_us=1000.0)
    return DeepProfile(
        rank=rank, step=number, t=t, step_s=2.0, recorded_events=9, kept_events=1,
        lanes={0: "phases", 1: "main thread"}, events=(operator,),
    )  # fmt: skip


def test_a_deep_profile_lies_under_its_step_on_the_aligned_clock_beside_the_prediction(tmp_path: Path) -> None:
    two_machines(tmp_path)  # rank 1's clock is five seconds ahead
    begun = BEGUN + 5.0 + 2.0 * 2
    plan = [PredictedSpan(stage=stage, name=f"F {stage}", kind="F", start_s=0.5, duration_s=0.25) for stage in (0, 1)]
    gone = profile_of(7, 3, begun)  # a rank that is not of this run
    events = list(trace_events(read(tmp_path, 2), plan, profiles=[profile_of(1, 3, begun + 0.001), gone]))
    pids = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name" and e["pid"] >= PROFILES}
    assert pids == {PROFILES: "rank 1, step 3: deep profile, the longest 1 of 9 events"}
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == PROFILES}
    assert lanes == {1: "predicted", 2: "phases", 3: "main thread"}
    (step_3,) = [s for s in spans(events, tid=2) if s["name"] == "step 3"]
    (operator,) = spans(events, pid=PROFILES, tid=3)
    assert operator["ts"] - step_3["ts"] == pytest.approx(251_000, abs=1)
    (predicted,) = spans(events, pid=PROFILES, tid=1)
    assert (predicted["name"], predicted["ts"]) == ("F 1", pytest.approx(step_3["ts"] + 500_000, abs=1))


def test_the_predicted_step_stands_beside_a_profiled_one_that_has_no_timeline(tmp_path: Path) -> None:
    append(tmp_path, hello(0, 1) + step(0, 1, 2.0, t=BEGUN) + step(0, 2, 2.0, t=BEGUN + 2))
    plan = [PredictedSpan(stage=0, name="compute", kind="compute", start_s=0.0, duration_s=1.0)]
    telemetry = read(tmp_path, 1)
    assert not [s for s in spans(list(trace_events(telemetry, plan))) if s["cat"] == "compute"]
    events = list(trace_events(telemetry, plan, profiles=[profile_of(0, 2, BEGUN + 2)]))
    assert [s["ts"] for s in spans(events) if s["cat"] == "compute"] == [pytest.approx(2_000_000, abs=1)]
