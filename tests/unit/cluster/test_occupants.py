"""Who computes on a GPU, as the driver tells it: refused, forbidden and lost are nobody, never an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_nvml import Gpu, build, environment, scenario

LOOK = """
import dataclasses, json, os
from tpdpdash.cluster.nvml import detect_devices
from tpdpdash.cluster.occupants import device_processes, rank_devices
found = detect_devices(os.environ)
print(json.dumps([dataclasses.asdict(each) for each in device_processes(found, rank_devices(found, 2))]))
"""
NO_PID = 2**22 - 1


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def seen(library: Path, folder: Path, *gpus: Gpu) -> list[dict[str, object]]:
    """The processes on the first two GPUs of this scenario."""
    text = folder / "scenario.txt"
    text.write_text(scenario(gpus))
    command = [sys.executable, "-c", LOOK]
    told = subprocess.run(command, env=environment(library, text), capture_output=True, text=True, check=True)
    answer: list[dict[str, object]] = json.loads(told.stdout)
    return answer


def test_processes_are_told_with_their_device_program_user_and_memory(library: Path, tmp_path: Path) -> None:
    two = {"process": [f"{os.getpid()} {5 << 30}", f"{NO_PID} {2**64 - 1}"]}
    mine, unseen = seen(library, tmp_path, {}, two, {"process": f"{NO_PID} 1"})
    assert (mine["pid"], mine["used_bytes"]) == (os.getpid(), 5 << 30)
    assert mine["name"] is not None
    assert mine["user"] is not None
    assert mine["device"] == unseen["device"] == "GPU-3ceb1111-0000-4000-8000-000000000001"
    assert (unseen["pid"], unseen["name"], unseen["user"], unseen["used_bytes"]) == (NO_PID, None, None, None)


@pytest.mark.parametrize("refusal", [{"process_error": "NO_PERMISSION"}, {"process_error": "NOT_SUPPORTED"}])
def test_a_driver_that_does_not_tell_names_nobody_and_the_other_gpus_are_still_asked(
    library: Path, tmp_path: Path, refusal: dict[str, object]
) -> None:
    (found,) = seen(library, tmp_path, {**refusal, "process": "7 1"}, {"process": f"{NO_PID} 1024"})
    assert (found["device"], found["used_bytes"]) == ("GPU-3ceb1111-0000-4000-8000-000000000001", 1024)
