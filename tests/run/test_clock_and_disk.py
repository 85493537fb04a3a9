"""A clock that is set back, a disk that is full or read-only: the run goes on or ends with a clear state."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_runs import SLACK, LiveRun, wait_for
from small_disk import MountedDisk, elsewhere, small_disk

from tpdpdash.report.history import run_lines
from tpdpdash.run.history import list_runs
from tpdpdash.run.stop import stop_run
from tpdpdash.telemetry.reader import RunReader

Start = Callable[..., LiveRun]
FAKE_CLOCK = Path(__file__).parents[1] / "golden" / "run" / "fake_clock.c"
HOUR_S = 3600
FOREVER = ("100000", "0.05")


@pytest.fixture(scope="module")
def clock_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("clock") / "fake_clock.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(FAKE_CLOCK)], check=True
    )
    return library


@pytest.fixture
def set_clock(clock_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], object]:
    """Moves the wall clock of every program that is started from now on, and of those that run already."""
    offset = tmp_path / "offset"
    monkeypatch.setenv("LD_PRELOAD", str(clock_library))
    monkeypatch.setenv("FAKE_CLOCK", str(offset))
    return lambda seconds: offset.write_text(str(seconds))


@pytest.mark.parametrize("moved_s", [-HOUR_S, HOUR_S], ids=["set back", "set forward"])
def test_a_clock_that_is_set_in_mid_run_changes_nothing_but_the_dates(
    start: Start, set_clock: Callable[[int], object], moved_s: int
) -> None:
    run = start("80", "0.05", is_light=True)
    run.until_running()
    before = run.view.status.heartbeat
    set_clock(moved_s)
    wait_for(lambda: abs(run.view.status.heartbeat - before - moved_s) < HOUR_S / 2, 5 * SLACK)
    assert run.view.state == "running"
    view = run.until_over(60)
    assert (view.state, view.status.last_step) == ("finished", 80)
    run.until_gone()
    summary = json.loads(run.folder.summary.read_text())
    assert all(80 * 0.05 < rank["total_step_s"] < 120 for rank in summary["ranks"])
    assert not any("-" in line.split("after", 1)[-1] for line in run_lines(view) if "after" in line)
    reader = RunReader(run.folder.path, 2)
    reader.refresh()
    telemetry = reader.snapshot()
    assert (list(telemetry.steps), telemetry.bad_lines) == (list(range(1, 81)), {})


def test_what_failed_after_the_clock_was_set_back_is_named_and_a_stop_ends_in_time(
    start: Start, set_clock: Callable[[int], object]
) -> None:
    broken, stopped = start(*FOREVER, is_light=True), start(*FOREVER, is_light=True)
    broken.until_running()
    stopped.until_running()
    set_clock(-HOUR_S)
    broken.kill("rank1")
    view = broken.until_over(10 * SLACK)
    failure = view.status.first_failure
    assert (view.state, failure.code, failure.rank) == ("failed", "rank_killed", 1)
    assert stop_run(stopped.folder, by="cli").view.state == "stopped"
    broken.until_gone()
    stopped.until_gone()


# ------------------------------------------------------------------------------------------------------------- disk


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MountedDisk]:
    """A disk of 1 MiB."""
    with small_disk(tmp_path / "disk", may_mount=getattr(request, "param", True)) as made:
        yield made


START = """
import sys
from pathlib import Path
from tpdpdash.faults import InvalidInputError
from tpdpdash.run.request import RunRequest, start_request
from tpdpdash.text import fault_lines
sleeper = (sys.executable, "-c", "import time; time.sleep(600)")
request = RunRequest(name="disk", world_size=1, agent_argv=sleeper, has_probe=False)
try:
    print("started", start_request(request, root=Path(sys.argv[1])).run_id)
except InvalidInputError as refused:
    print(*fault_lines(refused.faults), sep="\\n")
"""
STOP = """
import sys
from pathlib import Path
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.stop import stop_run
print(stop_run(RunFolder(Path(sys.argv[1])), by="cli").could_not_kill)
"""


@pytest.mark.parametrize("disk", [True, False], ids=["mounted", "played"], indirect=True)
def test_a_start_on_a_full_disk_is_refused_and_leaves_nothing(disk: MountedDisk) -> None:
    root = disk.path / "runs"
    root.mkdir()
    disk.fill()
    assert "No space left" in elsewhere(START, str(root))
    assert list_runs(root) == []
    assert list(root.iterdir()) == []


def test_a_start_in_a_read_only_folder_is_refused_and_names_it(disk: MountedDisk) -> None:
    root = disk.path / "runs"
    root.mkdir()
    disk.make_read_only()
    assert re.search(f"{root}.*Read-only file system", elsewhere(START, str(root)))
    assert list(root.iterdir()) == []


def test_a_run_goes_on_when_its_disk_fills_and_ends_with_its_cause_once_there_is_room(
    start: Start, disk: MountedDisk
) -> None:
    run = start(*FOREVER, root=disk.path / "runs", is_light=True)
    run.until_running()
    disk.fill()
    step, heard = run.view.status.last_step, run.view.status.heartbeat
    time.sleep(3)  # beyond a heartbeat, which finds no room
    assert (run.view.state, run.view.status.heartbeat) == ("running", heard)
    assert all(process.is_alive for process in run.members.values())
    run.kill("rank0")
    wait_for(lambda: not run.members["agent"].is_alive, 10 * SLACK)
    disk.free()
    view = run.until_over(10 * SLACK)
    failure = view.status.first_failure
    assert (view.state, failure.code, failure.rank) == ("failed", "rank_gone", 0)
    assert view.status.last_step >= step
    run.until_gone()
    summary = json.loads(run.folder.summary.read_text())
    assert summary["state"] == "failed"


def test_stop_ends_a_run_on_a_full_disk(start: Start, disk: MountedDisk) -> None:
    run = start(*FOREVER, root=disk.path / "runs", is_light=True)
    run.until_running()
    disk.fill()
    assert elsewhere(STOP, str(run.folder.path)) == "()"
    run.until_gone()
    assert run.view.state == "stopped"
    assert json.loads(run.folder.summary.read_text())["state"] == "stopped"
