"""Real processes under real torchrun: right state, first cause named, no process left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from live_runs import SCRIPT, SLACK, LiveRun, light_agent, wait_for

from tpdpdash.run.folder import RunFolder
from tpdpdash.run.history import list_runs, read_state
from tpdpdash.run.request import RunRequest, start_request
from tpdpdash.run.stop import stop_run
from tpdpdash.ui.live import LiveRun as Watched

Start = Callable[..., LiveRun]
GLOO_SCRIPT = Path(__file__).with_name("gloo_script.py")
FOREVER = ("100000", "0.05")


def test_a_run_that_ends_by_itself_is_finished_and_leaves_its_records(start: Start) -> None:
    run = start("3", "0.01")
    view = run.until_over(60)
    assert (view.state, view.status.exit_code, view.status.first_failure) == ("finished", 0, None)
    assert (view.status.last_step, view.status.phase, view.status.ranks_by_phase) == (3, "running", {"running": 2})
    run.until_gone()
    summary = json.loads(run.folder.summary.read_text())
    assert [(rank["rank"], rank["steps"], rank["has_finished"]) for rank in summary["ranks"]] == [
        (0, 3, True),
        (1, 3, True),
    ]
    assert (run.folder.path.stat().st_mode & 0o777) == 0o700
    samples = [json.loads(line) for line in (run.folder.devices / "node-000.jsonl").read_text().splitlines()]
    assert samples[0]["kind"] == "cpu"
    assert {"command.json", "status.json", "summary.json"} <= {path.name for path in run.folder.path.iterdir()}


def test_an_exception_in_a_rank_is_shown_first_with_its_traceback(start: Start) -> None:
    run = start("1000", "0.05", "raise:1:3")
    view = run.until_over(60)
    failure = view.status.first_failure
    assert (view.state, failure.code, failure.rank) == ("failed", "rank_raised", 1)
    assert failure.error == "ValueError: boom on rank 1"
    assert 'raise ValueError(f"boom on rank {rank}")' in failure.traceback
    assert [rank for rank, _ in failure.others] == [0]
    run.until_gone()


def test_an_exit_code_of_a_rank_is_told_although_torchrun_always_ends_with_1(start: Start) -> None:
    view = start("1000", "0.05", "exit:0:2:7").until_over(60)
    failure = view.status.first_failure
    assert (view.state, failure.code, failure.rank, failure.exit_code) == ("failed", "rank_exited", 0, 7)
    assert view.status.exit_code == 1


def test_kill_9_of_a_rank_names_it_and_its_signal_and_not_the_peers_that_lost_it(start: Start) -> None:
    run = start(world_size=3, script=GLOO_SCRIPT)
    run.until_running()
    run.kill("rank1")
    view = run.until_over(10 * SLACK)
    failure = view.status.first_failure
    assert (view.state, failure.code, failure.rank, failure.signal) == ("failed", "rank_killed", 1, "SIGKILL")
    assert sorted(rank for rank, _ in failure.others) == [0, 2]
    run.until_gone()


def test_kill_9_of_agent_or_supervisor_takes_every_rank_with_it(start: Start) -> None:
    """Two runs at once: they have ports of their own (r109)."""
    agentless, lost = start(*FOREVER), start(*FOREVER)
    agentless.until_running()
    lost.until_running()
    assert agentless.variable("rank0", "MASTER_PORT") != lost.variable("rank0", "MASTER_PORT")

    agentless.kill("agent")
    wait_for(lambda: not any(agentless.members[f"rank{rank}"].is_alive for rank in (0, 1)), 2 * SLACK)
    view = agentless.until_over(10 * SLACK)
    assert (view.state, view.status.first_failure.code) == ("failed", "agent_killed")
    assert view.status.first_failure.signal == "SIGKILL"
    agentless.until_gone()

    lost.kill("supervisor")
    wait_for(lambda: not lost.is_any_left(), 2 * SLACK)
    written = lost.folder.status.read_bytes()
    view = lost.view
    assert (view.state, view.status.state, view.status.phase) == ("lost", "running", "running")
    assert stop_run(lost.folder, by="test").view.state == "lost"
    assert lost.folder.status.read_bytes() == written  # lost is judged, never written


def test_stop_ends_every_process_and_says_who_asked(start: Start) -> None:
    """One rank and the supervisor are stopped by SIGSTOP: they would not hear of it."""
    run = start(*FOREVER)
    run.until_running()
    for member in ("rank1", "supervisor"):
        os.kill(run.members[member].pid, signal.SIGSTOP)
    result = stop_run(run.folder, by="cli")
    assert (result.view.state, result.could_not_kill) == ("stopped", ())
    assert (result.view.status.stop_requested_by, result.view.status.first_failure) == ("cli", None)
    run.until_gone()
    assert stop_run(run.folder, by="dashboard").view.status.stop_requested_by == "cli"  # stopping twice changes nothing


def test_sigterm_of_the_supervisor_stops_the_run_too(start: Start) -> None:
    run = start(*FOREVER, is_light=True)
    run.until_running()
    os.kill(run.members["supervisor"].pid, signal.SIGTERM)
    view = run.until_over(10 * SLACK)
    assert (view.state, view.status.stop_requested_by) == ("stopped", "signal")
    run.until_gone()


def test_a_run_outlives_its_full_disk_and_its_deleted_telemetry(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor has something to say of the telemetry, and no room to say it: its log is /dev/full."""
    monkeypatch.setattr(RunFolder, "supervisor_log", property(lambda _: Path("/dev/full")))
    run = start(*FOREVER, is_light=True)
    run.until_running()
    shutil.rmtree(run.folder.telemetry)
    heard = run.view.status.heartbeat
    wait_for(lambda: run.view.status.heartbeat > heard + 1, 5 * SLACK)
    assert (run.view.state, run.members["supervisor"].is_alive) == ("running", True)
    assert stop_run(run.folder, by="test").view.state == "stopped"
    run.until_gone()


def test_a_run_whose_folder_is_deleted_ends_since_nobody_could_find_it_again(start: Start) -> None:
    run = start(*FOREVER, is_light=True)
    run.until_running()
    shutil.rmtree(run.folder.path)
    wait_for(lambda: not run.is_any_left(), 10 * SLACK)
    assert not run.folder.path.exists()


STARTER = """
import pathlib, sys
from tpdpdash.run.request import RunRequest, start_request
root, script = sys.argv[1:]
request = RunRequest(name="test", world_size=2, rank_argv=(sys.executable, script, "100000", "0.05"))
print(start_request(request, root=pathlib.Path(root)).run_id)
"""


def test_a_run_outlives_the_dashboard_and_another_one_reads_and_stops_it(runs_root: Path) -> None:
    """The starter's stdout is a pipe: that it comes to its end shows that the run holds none of it."""
    starter = [sys.executable, "-c", STARTER, str(runs_root), str(SCRIPT)]
    ended = subprocess.run(starter, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60)
    (view,) = list_runs(runs_root)
    try:
        assert view.run_id == ended.stdout.strip()
        wait_for(lambda: (read_state(view.folder).status.last_step or 0) > 2, 60)
        assert read_state(view.folder).state == "running"
    finally:
        result = stop_run(view.folder, by="dashboard")
    assert (result.view.state, result.could_not_kill) == ("stopped", ())


DASHBOARD = """
import pathlib, sys, threading, time
from tpdpdash.run.request import RunRequest, start_request
root, agent = pathlib.Path(sys.argv[1]), tuple(sys.argv[2:])
request = RunRequest(name="test", world_size=2, agent_argv=agent)
click = lambda: print(start_request(request, request_id="click-1", root=root).run_id + "\\n", end="", flush=True)
clicks = [threading.Thread(target=click) for _ in range(2)]
[thread.start() for thread in clicks]
time.sleep(600)
"""


def test_one_run_goes_on_when_the_dashboard_is_killed_and_comes_again_and_both_tabs_see_it(runs_root: Path) -> None:
    agent = light_agent(2, (sys.executable, str(SCRIPT), *FOREVER))
    said: list[str] = []
    for _ in range(2):  # the second one is asked again by a tab that had not heard the answer
        server = [sys.executable, "-c", DASHBOARD, str(runs_root), *agent]
        dashboard = subprocess.Popen(server, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert dashboard.stdout is not None
        said += [dashboard.stdout.readline().strip() for _ in range(2)]
        os.killpg(dashboard.pid, signal.SIGKILL)
        dashboard.communicate()
    folder = RunFolder(runs_root / said[0])
    try:
        assert said == [folder.run_id] * 4
        wait_for(lambda: (read_state(folder).status.last_step or 0) > 2, 60)
        tabs = [Watched(folder).look() for _ in range(2)]
        assert [tab.view.state for tab in tabs] == ["running", "running"]
        assert all(len(tab.telemetry.steps) for tab in tabs)
    finally:
        result = stop_run(folder, by="dashboard")
    assert (result.view.state, result.could_not_kill) == ("stopped", ())


def test_a_double_click_starts_one_run(runs_root: Path) -> None:
    sleeper = (sys.executable, "-c", "import time; time.sleep(600)")
    request = RunRequest(name="twice", world_size=1, agent_argv=sleeper, has_probe=False)
    started = []
    clicks = [
        threading.Thread(target=lambda: started.append(start_request(request, request_id="click-1", root=runs_root)))
        for _ in range(3)
    ]
    for click in clicks:
        click.start()
    for click in clicks:
        click.join()
    try:
        assert len(set(started)) == 1
        assert len(list_runs(runs_root)) == 1
    finally:
        results = [stop_run(folder, by="test") for folder in set(started)]
    assert [result.view.state for result in results] == ["stopped"]


def test_a_program_that_cannot_be_started_fails_with_its_reason(runs_root: Path) -> None:
    request = RunRequest(name="odd", world_size=1, agent_argv=("/no/such/program",), has_probe=False)
    folder = start_request(request, root=runs_root)
    wait_for(lambda: read_state(folder).is_over, 30)
    view = read_state(folder)
    assert (view.state, view.status.first_failure.code) == ("failed", "agent_failed")
    assert "/no/such/program" in (view.status.first_failure.traceback or "") + (view.status.first_failure.error or "")
