"""A deep profile in a rank: the request, the one step, its file and tables; and a script that is never broken by it."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_telemetry import made, places
from rank_records import hear, records

from tpdpdash.telemetry import profile_torch
from tpdpdash.telemetry.probe import Probe
from tpdpdash.telemetry.profile_file import (
    kept_profiles,
    profiles_dir,
    read_profile,
)
from tpdpdash.telemetry.profile_request import ProfileRequest, parse_request, read_request, request_file
from tpdpdash.telemetry.profile_table import profile_table
from tpdpdash.telemetry.reader import RunReader
from tpdpdash.telemetry.snapshot import ProfileNote

REQUEST = {"v": 1, "ranks": [0, 3], "step": 4, "by": "cli", "t": 12.5}


def ask(run: Path, *, step: int, ranks: tuple[int, ...] = (0,)) -> None:
    """The file as whoever asks writes it."""
    request_file(run).parent.mkdir(parents=True, exist_ok=True)
    request = ProfileRequest(ranks=ranks, step=step, by="test", t=time.time())
    request_file(run).write_text(json.dumps(request.to_json()))


def work(probe: Probe) -> None:
    """What a step of these tests does."""
    weight = torch.ones(64, 64, requires_grad=True)
    with probe.phase("forward"):
        loss = torch.nn.functional.gelu(torch.mm(weight, weight)).sum()
    with probe.phase("backward"):
        loss.backward()


def train(run: Path, steps: int, *, do: Callable[[Probe], None] = work, **who: int) -> Probe:
    """A rank that hears of what stands in its folder at once, without waiting for its heartbeat."""
    probe = Probe(run, **{"rank": 0, "world_size": 4, **who})
    hear(probe)
    for number in range(1, steps + 1):
        with probe.step(number):
            do(probe)
    probe.close()
    return probe


def events(run: Path, rank: int = 0) -> list[tuple[str, int]]:
    """What was told of profiles."""
    return [(e["name"], e["step"]) for e in records(run, "event", rank) if e["name"].startswith("profil")]


def reason(run: Path) -> str:
    """Why there is no profile."""
    return str(next(e["error"] for e in records(run, "event") if e["name"] == "profile_failed"))


# ------------------------------------------------------------------------------------------- request


def test_a_request_is_read_as_it_was_written(tmp_path: Path) -> None:
    ask(tmp_path, step=4, ranks=(0, 3))
    request = read_request(tmp_path)
    assert request is not None
    assert (request.ranks, request.step, request.by) == ((0, 3), 4, "test")
    assert parse_request(REQUEST).t == 12.5
    assert read_request(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"v": 2}, "version"),
        ({"ranks": []}, "ranks"),
        ({"ranks": [0, "1"]}, "ranks"),
        ({"ranks": [True]}, "ranks"),
        ({"ranks": [-1]}, "ranks"),
        ({"ranks": list(range(33))}, "ranks"),
        ({"step": None}, "step"),
        ({"step": 2.5}, "step"),
        ({"t": "now"}, "t is"),
        ({"t": 10**400}, "t is"),
        ({"t": -1}, "t is"),
    ],
)
def test_a_request_that_is_none_says_what_is_wrong_with_it(changes: Mapping[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_request({**REQUEST, **changes})
    with pytest.raises(ValueError):
        parse_request([])


# ---------------------------------------------------------------------------------------- in the rank


def test_exactly_the_asked_step_is_profiled_with_its_phases(tmp_path: Path) -> None:
    ask(tmp_path, step=3)
    train(tmp_path, 5)
    assert events(tmp_path) == [("profiling", 3), ("profiled", 3)]
    (kept,) = kept_profiles(tmp_path)
    profile = read_profile(kept.path)
    assert (kept.rank, kept.step, profile.rank, profile.step) == (0, 3, 0, 3)
    shown = profile_table(profile, top=100)
    (product,) = [row for row in shown.operators if row.name == "aten::mm"]
    assert (product.kind, product.calls) == ("gemm", 3)  # one forward, two backward
    phases = {row.phase: row for row in shown.phases}
    assert phases["forward"].kind_s["gemm"] > 0
    assert phases["backward"].kind_s["gemm"] > 0
    assert phases["forward"].kind_s["elementwise"] > 0
    told = next(e for e in records(tmp_path, "event") if e["name"] == "profiled")
    assert (told["file"], told["bytes"]) == (kept.path.name, kept.num_bytes)


def test_phases_and_operators_stand_on_one_clock(tmp_path: Path) -> None:
    ask(tmp_path, step=2)
    train(tmp_path, 2)
    profile = read_profile(kept_profiles(tmp_path)[0].path)
    (forward,) = [event for event in profile.events if event.category == "phase" and event.name == "forward"]
    product = min((event for event in profile.events if event.name == "aten::mm"), key=lambda event: event.start_us)
    assert forward.start_us <= product.start_us + 200
    assert product.start_us + product.duration_us <= forward.start_us + forward.duration_us + 200
    began = records(tmp_path, "step")[1]["t"]
    assert profile.t == pytest.approx(began, abs=0.1)


def test_other_ranks_take_no_profile(tmp_path: Path) -> None:
    ask(tmp_path, step=2, ranks=(1, 2))
    train(tmp_path, 4)
    assert events(tmp_path) == []
    assert not profiles_dir(tmp_path).exists()


def test_a_rank_that_hears_late_takes_its_next_step_and_only_that(tmp_path: Path) -> None:
    probe = Probe(tmp_path, rank=0, world_size=1)
    for number in range(1, 7):
        if number == 4:
            ask(tmp_path, step=2)
            hear(probe)
        with probe.step(number):
            work(probe)
    probe.close()
    assert events(tmp_path) == [("profiling", 4), ("profiled", 4)]


def test_a_heartbeat_hears_of_a_request_by_itself(tmp_path: Path) -> None:
    probe = Probe(tmp_path, rank=0, world_size=1)
    ask(tmp_path, step=1)
    limit = time.monotonic() + 20
    while probe._profiling.wanted is None and time.monotonic() < limit:
        time.sleep(0.05)
    assert probe._profiling.wanted is not None
    probe.close()


def test_a_second_request_is_taken_too(tmp_path: Path) -> None:
    probe = Probe(tmp_path, rank=0, world_size=1)
    for number in (1, 2, 3, 4):
        if number in (2, 4):
            ask(tmp_path, step=number)
            hear(probe)
        with probe.step(number):
            work(probe)
    probe.close()
    assert [kept.step for kept in kept_profiles(tmp_path)] == [4, 2]


def test_the_profiled_step_has_a_timeline(tmp_path: Path) -> None:
    def one_action(probe: Probe) -> None:
        with probe.action("F", 0, 0):
            work(probe)

    ask(tmp_path, step=4)
    train(tmp_path, 5, do=one_action)
    assert [record["step"] for record in records(tmp_path, "timeline")] == [2, 4]


def test_a_damaged_request_is_told_and_nothing_is_profiled(tmp_path: Path) -> None:
    request_file(tmp_path).parent.mkdir()
    request_file(tmp_path).write_text('{"v": 1, "ranks"')
    train(tmp_path, 3)
    assert events(tmp_path) == []
    assert "probe_failed" in [event["name"] for event in records(tmp_path, "event")]
    assert len(records(tmp_path, "step")) == 3


def test_a_profiler_that_does_not_start_is_told_and_the_script_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("no CUPTI here")

    monkeypatch.setattr(profile_torch, "begin", broken)
    ask(tmp_path, step=2)
    train(tmp_path, 3)
    assert events(tmp_path) == [("profiling", 2), ("profile_failed", 2)]
    assert "no CUPTI here" in reason(tmp_path)
    assert len(records(tmp_path, "step")) == 3


def test_a_script_that_profiles_itself_is_left_alone(tmp_path: Path) -> None:
    ask(tmp_path, step=2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        train(tmp_path, 3)
    assert events(tmp_path)[-1] == ("profile_failed", 2)
    assert any(event.key == "aten::mm" for event in own.key_averages())


def test_a_full_disk_leaves_no_part_of_a_file_and_the_script_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gzip.GzipFile, "write", full)
    ask(tmp_path, step=2)
    train(tmp_path, 3)
    assert events(tmp_path)[-1] == ("profile_failed", 2)
    assert "No space left" in reason(tmp_path)
    assert list(profiles_dir(tmp_path).iterdir()) == []
    assert [record["step"] for record in records(tmp_path, "step")] == [1, 2, 3]


def test_a_step_that_raises_ends_the_profiler_and_raises_what_it_raised(tmp_path: Path) -> None:
    def failing(probe: Probe) -> None:
        with probe.phase("forward"):
            raise KeyError("the script's own")

    ask(tmp_path, step=1)
    with pytest.raises(KeyError, match="the script's own"):
        train(tmp_path, 1, do=failing)
    assert events(tmp_path) == [("profiling", 1), ("profile_failed", 1)]
    assert not torch.autograd._profiler_enabled()


def test_of_too_many_events_the_longest_are_kept_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_torch, "MAX_EVENTS", 5)
    ask(tmp_path, step=2)
    train(tmp_path, 2)
    profile = read_profile(kept_profiles(tmp_path)[0].path)
    operators = [event for event in profile.events if event.category != "phase"]
    assert profile.kept_events == len(operators) == 5
    assert profile.recorded_events > 5


def test_between_steps_the_heartbeat_says_that_a_profile_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    write = profile_torch.TorchStepProfile.write

    def watching(profile: profile_torch.TorchStepProfile, *where: object) -> Mapping[str, object]:
        said.append(profile._state.phase_name())
        return write(profile, *where)  # type: ignore[arg-type]

    monkeypatch.setattr(profile_torch.TorchStepProfile, "write", watching)
    ask(tmp_path, step=2)
    probe = Probe(tmp_path, rank=0, world_size=1)
    hear(probe)
    for number in (1, 2):
        with probe.step(number):
            work(probe)
    assert said == ["profiling"]
    assert probe._state.phase_name() == "first_step"
    probe.close()


# ------------------------------------------------------------------------------- what the reader knows


def test_the_profiled_step_and_the_next_are_left_out_of_what_is_judged(tmp_path: Path) -> None:
    ask(tmp_path, step=3)
    train(tmp_path, 6, world_size=1)
    reader = RunReader(tmp_path, 1)
    reader.refresh()
    told = reader.snapshot()
    assert told.disturbed_steps == {3, 4}
    assert told.steps.tolist() == [1, 2, 3, 4, 5, 6]
    kept = told.undisturbed()
    assert kept.steps.tolist() == [1, 2, 5, 6]
    assert kept.step_s.shape == kept.phase_s.shape[:2] == (1, 4)
    assert kept.dropped_steps == 0
    assert told.last_event[0] == "finished"


def test_a_run_without_a_profile_is_not_copied() -> None:
    telemetry = made(places(dp=2), steps=6)
    assert telemetry.undisturbed() is telemetry
    note = ProfileNote(rank=0, step=2, t=1.0, event="profiled", reason="")
    np.testing.assert_array_equal(replace(telemetry, profiles=(note,)).undisturbed().steps, [1, 4, 5, 6])


class Recorded:
    """An event as kineto hands it over."""

    def __init__(self, name: str, kind: str, where: int, *, number: int = 0, of: int = 0, on_device: bool = False):
        self._told = {
            "name": name, "activity_type": kind, "device_resource_id": where, "correlation_id": number,
            "linked_correlation_id": of, "start_ns": 5000, "duration_ns": 2000,
            "device_type": torch.profiler.DeviceType.CUDA if on_device else torch.profiler.DeviceType.CPU,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Callable[[], object]:
        return lambda: self._told[name]


def test_a_kernel_names_its_operator_and_no_call_of_cuda_that_has_the_same_number() -> None:
    lanes = profile_torch.Lanes(main_thread=77)
    found = profile_torch._events(
        [
            Recorded("aten::mm", "cpu_op", 77, number=12),
            Recorded("cudaLaunchKernel", "cuda_runtime", 77, number=12, of=12),
            Recorded("autograd", "cpu_op", 78, number=13),
            Recorded("gemm", "kernel", 7, number=12, of=12, on_device=True),
            Recorded("gloo:send", "user_annotation", 77),  # it outlasts the call on the main thread
        ],
        3000,
        lanes,
    )
    assert [(event.lane, event.id, event.launched_by) for event in found] == [
        (1, 12, 0), (1, 0, 0), (2, 13, 0), (1007, 0, 12), (3, 0, 0),
    ]  # fmt: skip
    assert lanes.names == {0: "phases", 1: "main thread", 2: "thread 2", 3: "gloo:send", 1007: "stream 7"}
    assert (found[0].start_us, found[0].duration_us) == (2.0, 2.0)
