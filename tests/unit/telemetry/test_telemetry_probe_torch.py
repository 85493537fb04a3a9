"""The CUDA-event probe, on events that a test moves: no GPU is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from rank_records import hear, records

from tpdpdash.telemetry.probe_torch import MAX_PENDING_STEPS, TorchProbe
from tpdpdash.telemetry.profile_file import kept_profiles, read_profile
from tpdpdash.telemetry.profile_request import request_file
from tpdpdash.telemetry.record import MAX_ACTIONS


class Stream:
    """A stream: work takes time on it when it is issued, and it may lag behind the script."""

    def __init__(self) -> None:
        self.issued_ms = 0.0
        self.reached_ms = float("inf")
        self.num_events = 0
        self.synchronized = 0

    def work(self, seconds: float) -> None:
        self.issued_ms += seconds * 1e3

    def make_event(self) -> FakeEvent:
        self.num_events += 1
        return FakeEvent(self)


class FakeEvent:
    """torch.cuda.Event, as far as the probe uses it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.at_ms = 0.0

    def record(self) -> None:
        self.at_ms = self.stream.issued_ms

    def query(self) -> bool:
        return self.at_ms <= self.stream.reached_ms

    def synchronize(self) -> None:
        self.stream.synchronized += 1

    def elapsed_time(self, end_event: FakeEvent) -> float:
        return end_event.at_ms - self.at_ms


@pytest.fixture(autouse=True)
def _keep_excepthook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


def train(probe: TorchProbe, stream: Stream, number: int) -> None:
    with probe.step(number) as step:
        stream.work(0.5)
        with probe.phase("forward"), probe.action("F", 0, 1):
            stream.work(1)
            with probe.phase("tp", "all_reduce"):
                stream.work(2)
            stream.work(4)
        step.tokens = number


def test_times_are_the_streams_exclusive_and_appear_one_step_later(tmp_path: Path) -> None:
    stream = Stream()
    probe = TorchProbe(tmp_path, rank=0, world_size=1, device="cuda:0", make_event=stream.make_event)
    train(probe, stream, 1)
    assert records(tmp_path, "step") == []
    train(probe, stream, 2)
    (first,) = records(tmp_path, "step")
    assert first["phase_s"] == {"forward": 5.0, "tp": 2.0}
    assert (first["step"], first["step_s"], first["tokens"], first["memory_bytes"]) == (1, 7.5, 1, None)
    assert stream.synchronized == 0
    probe.close()
    assert [record["step"] for record in records(tmp_path, "step")] == [1, 2]
    assert records(tmp_path, "timeline")[0]["actions"] == [["F", 0, 1, 0.5, 7.0]]


def test_a_timeline_never_becomes_longer_than_a_reader_accepts(tmp_path: Path) -> None:
    probe = TorchProbe(tmp_path, rank=0, world_size=1, device="cuda:0", make_event=Stream().make_event)
    with probe.step(2):
        for microbatch in range(MAX_ACTIONS + 5):
            with probe.action("F", 10_000, microbatch):
                pass
    probe.close()
    assert len(records(tmp_path, "timeline")[0]["actions"]) == MAX_ACTIONS
    assert probe.lost_records == 0


def test_events_are_used_again(tmp_path: Path) -> None:
    stream = Stream()
    probe = TorchProbe(
        tmp_path, rank=0, world_size=1, device="cuda:0", timeline_every=10**6, make_event=stream.make_event
    )
    for number in range(3, 6):
        train(probe, stream, number)
    made = stream.num_events
    for number in range(6, 60):
        train(probe, stream, number)
    probe.close()
    assert stream.num_events == made
    assert len(records(tmp_path, "step")) == 57


def test_a_stream_that_lags_behind_is_not_waited_for_and_its_backlog_is_bounded(tmp_path: Path) -> None:
    stream = Stream()
    stream.reached_ms = -1.0
    probe = TorchProbe(tmp_path, rank=0, world_size=1, device="cuda:0", make_event=stream.make_event)
    for number in range(1, MAX_PENDING_STEPS + 3):
        train(probe, stream, number)
    assert [(record["step"], record["phase_s"]) for record in records(tmp_path, "step")] == [(1, {}), (2, {})]
    assert stream.synchronized == 0
    stream.reached_ms = float("inf")
    train(probe, stream, 100)
    assert records(tmp_path, "step")[2]["phase_s"] == {"forward": 5.0, "tp": 2.0}
    probe.close()


def test_a_step_that_raised_leaves_nothing_behind(tmp_path: Path) -> None:
    stream = Stream()
    probe = TorchProbe(tmp_path, rank=0, world_size=1, device="cuda:0", make_event=stream.make_event)
    with pytest.raises(ValueError), probe.step(1), probe.phase("forward"):
        raise ValueError
    train(probe, stream, 2)
    probe.close()
    assert [record["step"] for record in records(tmp_path, "step")] == [2]
    assert records(tmp_path, "step")[0]["step_s"] == 7.5


def test_a_loss_is_asked_for_when_its_record_is_written(tmp_path: Path) -> None:
    stream, asked = Stream(), []
    probe = TorchProbe(tmp_path, rank=0, world_size=1, device="cuda:0", make_event=stream.make_event)
    for number in (1, 2):
        with probe.step(number) as step:
            step.read_loss = lambda number=number: asked.append(number) or number / 2
    assert asked == [1]
    probe.close()
    assert [step["loss"] for step in records(tmp_path, "step")] == [0.5, 1.0]


def test_what_lies_between_regions_is_timed_on_the_stream_too(tmp_path: Path) -> None:
    stream = Stream()
    probe = TorchProbe(tmp_path, rank=0, world_size=1, device="cuda:0", make_event=stream.make_event)
    with probe.step(1):
        with probe.phase("forward"):
            stream.work(1)
        probe.between("loss")
        stream.work(2)
        with probe.phase("backward"):
            stream.work(4)
        probe.between(None)
        stream.work(8)
    probe.close()
    (record,) = records(tmp_path, "step")
    assert record["phase_s"] == {"forward": 1.0, "loss": 2.0, "backward": 4.0}
    assert record["step_s"] == 15.0


def test_a_deep_profile_notes_the_phases_in_which_the_script_issues_its_work(tmp_path: Path) -> None:
    request_file(tmp_path).parent.mkdir()
    request_file(tmp_path).write_text('{"v": 1, "ranks": [0], "step": 2, "by": "test", "t": 1.0}')
    stream = Stream()
    probe = TorchProbe(tmp_path, rank=0, world_size=1, device="cuda:0", make_event=stream.make_event)
    hear(probe)
    for number in (1, 2, 3):
        train(probe, stream, number)
    probe.close()
    assert not torch.autograd._profiler_enabled()
    (kept,) = kept_profiles(tmp_path)
    spans = [event for event in read_profile(kept.path).events if event.category == "phase"]
    assert [span.name for span in spans] == ["unattributed", "forward", "tp", "forward", "unattributed"]
    assert kept.step == 2
    second = records(tmp_path, "step")[1]
    assert second["phase_s"] == {"forward": 5.0, "tp": 2.0}, "the step's own record is as ever"
