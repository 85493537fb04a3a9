"""Devices that somebody uses already: real runs of a script on the fake driver's GPUs, from the command line."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from live_runs import SLACK, wait_for

from tests.unit.cluster import fake_nvml
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.history import read_state
from tpdpdash.run.processes import processes_of_run
from tpdpdash.run.stop import stop_run
from tpdpdash.units import GIB

FOUR_GPUS: list[dict[str, object]] = [{}, {}, {}, {}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine whose driver answers what `scenario` says."""

    scenario: Path
    """Read by the driver at every look."""
    environment: dict[str, str]
    """Of every program on it."""
    script: Path
    """Sleeps for as long as it may."""

    def run(self, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """`tpdpdash run OPTIONS --detach -- SCRIPT`."""
        command = [sys.executable, "-m", "tpdpdash", "run", *options, "--detach", "--", str(self.script)]
        environment = self.environment | variables
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(tmp_path: Path, driver: Path) -> Machine:
    scenario, script = tmp_path / "scenario.txt", tmp_path / "sleeper.py"
    scenario.write_text(fake_nvml.scenario(FOUR_GPUS))
    script.write_text("import time; time.sleep(600)")
    return Machine(scenario=scenario, environment=fake_nvml.environment(driver, scenario), script=script)


@pytest.fixture
def started(runs_root: Path) -> Iterator[Callable[[subprocess.CompletedProcess[str]], RunFolder]]:
    """The folder of a run that was started; it ends with the test."""
    folders: list[RunFolder] = []

    def folder_of(ended: subprocess.CompletedProcess[str]) -> RunFolder:
        assert ended.returncode == 0, ended.stderr
        folders.append(RunFolder(runs_root / ended.stdout.strip()))
        return folders[-1]

    yield folder_of
    for folder in folders:
        stop_run(folder, by="test")


def test_two_runs_never_share_a_device_by_accident_and_a_dead_run_blocks_nobody(
    machine: Machine, started: Callable[..., RunFolder]
) -> None:
    first = started(machine.run("--nproc", "2"))
    uuids = [f"GPU-{0x3CEB0000 + n * 0x1111:08x}-0000-4000-8000-{n:012x}" for n in range(4)]
    assert json.loads(first.command.read_text())["devices"] == uuids[:2]

    refused = machine.run("--nproc", "1")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"GPU 0: run {first.run_id} holds it" in refused.stderr
    assert len(list(first.path.parent.iterdir())) == 1, "no half-registered run"

    beside = started(machine.run("--nproc", "2", CUDA_VISIBLE_DEVICES="2,3"))
    assert json.loads(beside.command.read_text())["devices"] == uuids[2:]
    shared = started(machine.run("--nproc", "2", "--share-devices"))
    assert read_state(shared).state in ("created", "starting", "running")
    stop_run(shared, by="test")

    supervisor = read_state(first).status.supervisor_pid
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: not processes_of_run(first.run_id), 2 * SLACK)
    after = started(machine.run("--nproc", "2"))
    assert json.loads(after.command.read_text())["devices"] == uuids[:2]


def test_a_gpu_on_which_another_process_computes_is_refused_and_says_by_whom(
    machine: Machine, started: Callable[..., RunFolder]
) -> None:
    machine.scenario.write_text(
        fake_nvml.scenario([{"process": [f"{os.getpid()} {3 * GIB}", f"{2**22 - 1} {GIB}"]}, *FOUR_GPUS[1:]])
    )
    refused = machine.run("--nproc", "2")
    assert (refused.returncode, refused.stdout) == (2, "")
    whose, unseen = refused.stderr.splitlines()
    name = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    assert whose.startswith(f"GPU 0: process {os.getpid()} ({name}, user {getpass.getuser()}) computes there and holds")
    assert "3.0 GiB" in whose
    assert unseen.startswith(f"GPU 0: process {2**22 - 1}, which cannot be seen from here, computes there")
    assert "--share-devices" in whose
    started(machine.run("--nproc", "2", "--share-devices"))


def test_a_driver_that_is_lost_in_mid_run_ends_no_run_and_is_said_in_its_samples(
    machine: Machine, started: Callable[..., RunFolder]
) -> None:
    folder = started(machine.run("--nproc", "2"))
    samples = folder.devices / "node-000.jsonl"

    def last_sample() -> dict[str, object]:
        lines = samples.read_text().splitlines() if samples.exists() else []
        found = [json.loads(line) for line in lines if '"kind":"gpu"' in line]
        return found[-1] if found else {}

    wait_for(lambda: last_sample().get("devices"), 20 * SLACK)
    assert (len(last_sample()["devices"]), last_sample()["problem"]) == (4, None)

    machine.scenario.write_text(fake_nvml.scenario([{"every_error": "GPU_IS_LOST"}, *FOUR_GPUS[1:]]))
    wait_for(lambda: last_sample()["devices"][0]["lost"], 5 * SLACK)
    assert [device["power_w"] for device in last_sample()["devices"]] == [None, 71.0, 71.0, 71.0]

    machine.scenario.write_text(fake_nvml.scenario(FOUR_GPUS, init="DRIVER_NOT_LOADED"))
    wait_for(lambda: last_sample()["problem"], 5 * SLACK)
    assert (last_sample()["devices"], last_sample()["problem"]) == ([], "driver_not_loaded")
    assert read_state(folder).state in ("starting", "running")
    assert stop_run(folder, by="test").view.state == "stopped"
