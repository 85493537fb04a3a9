"""The probe: exclusive times, the record's fields, and a script that is never broken by its telemetry."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from rank_records import records

from tpdpdash.telemetry import probe as probe_module
from tpdpdash.telemetry.probe import Probe
from tpdpdash.telemetry.record import MAX_ACTIONS, rank_file


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def _keep_excepthook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


def test_time_in_a_nested_region_is_not_counted_in_the_outer_one(tmp_path: Path) -> None:
    clock = HandClock()
    probe = Probe(tmp_path, rank=0, world_size=1, clock=clock)
    with probe.step(1) as step:
        clock.pass_s(0.5)
        with probe.phase("forward"):
            clock.pass_s(1)
            with probe.phase("tp", "all_reduce"):
                clock.pass_s(2)
            clock.pass_s(4)
        with probe.phase("backward"), probe.phase("tp"):
            clock.pass_s(8)
        step.tokens, step.loss = 4096, 5.5
    probe.close()
    (record,) = records(tmp_path, "step")
    assert record["phase_s"] == {"forward": 5.0, "tp": 10.0}
    assert record["step_s"] == 15.5  # 0.5 s are unattributed
    assert (record["step"], record["tokens"], record["loss"], record["regions"]) == (1, 4096, 5.5, 4)
    assert record["memory_bytes"] > 1_000_000
    assert record["peak_memory_bytes"] >= 1_000_000


def test_a_region_of_another_name_counts_as_other(tmp_path: Path) -> None:
    clock = HandClock()
    probe = Probe(tmp_path, rank=0, world_size=1, clock=clock)
    with probe.step(1), probe.phase("evaluation"):
        clock.pass_s(3)
    probe.close()
    assert records(tmp_path, "step")[0]["phase_s"] == {"other": 3.0}


def test_hello_names_the_process_so_that_it_can_be_told_from_a_later_one(tmp_path: Path) -> None:
    probe = Probe(tmp_path, rank=1, world_size=2, local_rank=1, backend="gloo")
    probe.hello(coords={"tp": 1, "pp": 0, "dp": 0})
    probe.close()
    first, second = records(tmp_path, "hello", rank=1)
    assert second["pid"] == os.getpid()
    assert second["start_time"] > 0
    assert (first["coords"], second["coords"]) == ({}, {"tp": 1, "pp": 0, "dp": 0})
    assert (second["world_size"], second["local_rank"], second["backend"], second["device"]) == (2, 1, "gloo", "cpu")


def test_the_first_step_is_an_event_and_heartbeats_come_from_a_thread_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_module, "HEARTBEAT_S", 0.01)
    probe = Probe(tmp_path, rank=0, world_size=1)
    probe.event("building")
    with probe.step(1), probe.phase("dp", "all_reduce"):
        while not records(tmp_path, "heartbeat"):
            continue
    probe.close()
    assert [event["name"] for event in records(tmp_path, "event")] == ["building", "first_step", "finished"]
    beats = [beat for beat in records(tmp_path, "heartbeat") if beat["step"] == 1]
    assert (beats[0]["phase"], beats[0]["last_collective"], beats[0]["collectives"]) == ("dp", "dp all_reduce", 1)


def test_actions_are_kept_on_sampled_steps_only_from_step_2_on(tmp_path: Path) -> None:
    clock = HandClock()
    probe = Probe(tmp_path, rank=0, world_size=1, clock=clock, timeline_every=2)
    for number in range(1, 5):
        with probe.step(number):
            clock.pass_s(1)
            with probe.action("F", 0, 3):
                clock.pass_s(2)
    probe.close()
    timelines = records(tmp_path, "timeline")
    assert [timeline["step"] for timeline in timelines] == [2, 4]
    assert timelines[0]["actions"] == [["F", 0, 3, 1.0, 2.0]]


def test_a_timeline_never_becomes_longer_than_a_reader_accepts(tmp_path: Path) -> None:
    probe = Probe(tmp_path, rank=0, world_size=1)
    with probe.step(2):
        for microbatch in range(MAX_ACTIONS + 5):
            with probe.action("F", 10_000, microbatch):
                pass
    probe.close()
    assert len(records(tmp_path, "timeline")[0]["actions"]) == MAX_ACTIONS
    assert probe.lost_records == 0


def test_a_loss_that_is_not_finite_is_told_without_breaking_json(tmp_path: Path) -> None:
    probe = Probe(tmp_path, rank=0, world_size=1)
    with probe.step(1) as step:
        step.loss = float("nan")
    probe.close()
    (record,) = records(tmp_path, "step")
    assert (record["loss"], record["loss_is_finite"]) == (None, False)


@pytest.mark.parametrize(
    ("given", "told", "is_finite"),
    [
        (np.float32(0.5), 0.5, True),
        (torch.tensor(0.5), 0.5, True),
        (torch.tensor([0.5, 1.0]), None, False),
        (np.float32("inf"), None, False),
        ("much", None, False),
        (None, None, True),
    ],
)
def test_what_a_script_hands_over_as_a_number_is_told_as_one_and_costs_no_record(
    tmp_path: Path, given: object, told: float | None, is_finite: bool
) -> None:
    probe = Probe(tmp_path, rank=0, world_size=1)
    with probe.step(1) as step:
        step.loss = given  # type: ignore[assignment]
        step.tokens, step.memory_bytes = np.int64(64), np.int64(1024)  # type: ignore[assignment]
    probe.close()
    (record,) = records(tmp_path, "step")
    assert (record["loss"], record["loss_is_finite"]) == (told, is_finite)
    assert (record["tokens"], record["memory_bytes"], probe.lost_records) == (64, 1024, 0)


def test_a_step_that_raised_is_not_written_and_the_exception_goes_on(tmp_path: Path) -> None:
    probe = Probe(tmp_path, rank=0, world_size=1)
    with pytest.raises(ValueError, match="boom"), probe.step(1):
        raise ValueError("boom")
    probe.close()
    assert records(tmp_path, "step") == []


def test_records_that_cannot_be_written_are_counted_and_told_later(tmp_path: Path) -> None:
    probe = Probe(tmp_path, rank=0, world_size=1)
    probe.hello(coords={"tp": float("inf")})  # not JSON
    assert probe.lost_records == 1
    with probe.step(1):
        pass
    probe.close()
    assert [record["lost_records"] for record in records(tmp_path, "step")] == [1]


def test_a_full_disk_neither_raises_nor_tears_the_next_line(tmp_path: Path) -> None:
    """Every write to /dev/full fails with ENOSPC."""
    (tmp_path / "telemetry").mkdir()
    rank_file(tmp_path, 0).symlink_to("/dev/full")
    probe = Probe(tmp_path, rank=0, world_size=1)
    with probe.step(1):
        pass
    probe.close()
    assert probe.lost_records >= 3


def test_a_folder_that_cannot_be_made_does_not_break_the_script(tmp_path: Path) -> None:
    (tmp_path / "telemetry").write_text("a file in its place")
    probe = Probe(tmp_path, rank=0, world_size=1)
    with probe.step(1), probe.phase("forward"):
        pass
    probe.close()
    assert probe.lost_records == 1


def test_without_a_run_the_probe_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    probe = Probe.from_env(environ={})
    with probe.step(1), probe.phase("forward"):
        pass
    probe.close()
    assert list(tmp_path.iterdir()) == []
    assert (probe.rank, probe.lost_records) == (0, 0)


def test_an_uncaught_exception_is_told_at_the_moment_it_ends_the_script(tmp_path: Path) -> None:
    script = (
        "from tpdpdash.telemetry.probe import Probe\n"
        "probe = Probe.from_env()\n"
        "with probe.step(7):\n"
        "    raise ValueError('boom')\n"
    )
    environment = {**os.environ, "TPDPDASH_RUN_DIR": str(tmp_path), "RANK": "3", "WORLD_SIZE": "4"}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "ValueError: boom" in ended.stderr  # as without the probe
    (told,) = [event for event in records(tmp_path, "event", rank=3) if event["name"] == "error"]
    assert (told["error"], told["step"]) == ("ValueError: boom", 7)
    assert "raise ValueError" in told["traceback"] or "<string>" in told["traceback"]


def test_the_probe_brings_in_only_the_standard_library() -> None:
    script = (
        "import sys; before = set(sys.modules); import tpdpdash.telemetry.probe;"
        "print({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names) - {'tpdpdash'})"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


def test_the_cost_of_a_region_is_known_from_the_telemetry_alone(tmp_path: Path) -> None:
    probe = Probe(tmp_path, rank=0, world_size=1)
    probe.close()
    assert 0 < records(tmp_path, "hello")[0]["region_cost_s"] < 1e-3


def test_time_between_regions_counts_as_what_the_script_says_it_is(tmp_path: Path) -> None:
    clock = HandClock()
    probe = Probe(tmp_path, rank=0, world_size=1, clock=clock)
    with probe.step(1):
        with probe.phase("forward"):
            probe.between("data")  # inside a region it says nothing
            clock.pass_s(1)
        probe.between("loss")
        clock.pass_s(2)
        with probe.phase("tp", "all_reduce"):
            clock.pass_s(4)
        clock.pass_s(8)
        probe.between(None)
        clock.pass_s(16)
    probe.close()
    (record,) = records(tmp_path, "step")
    assert (record["phase_s"], record["step_s"]) == ({"forward": 1.0, "loss": 10.0, "tp": 4.0}, 31.0)


def test_a_probe_that_nobody_asked_for_gives_way_to_the_scripts_own(tmp_path: Path) -> None:
    unasked = Probe(tmp_path, rank=0, world_size=1)
    unasked.is_unasked = True
    own = Probe(tmp_path, rank=0, world_size=1)
    for number, probe in enumerate((unasked, own), start=1):
        with probe.step(number):
            pass
    own.close()
    assert [record["step"] for record in records(tmp_path, "step")] == [2]
    assert [record["name"] for record in records(tmp_path, "event")].count("finished") == 1


def test_a_region_costs_what_the_call_that_enters_it_costs(tmp_path: Path) -> None:
    probe = Probe(tmp_path, rank=0, world_size=1)
    calls = []
    probe.price(lambda: (calls.append(1), time.sleep(1e-4)))
    probe.hello()
    probe.close()
    plain, priced = records(tmp_path, "hello")
    assert len(calls) >= 100
    assert priced["region_cost_s"] > 1e-4 > plain["region_cost_s"]
