"""Runs under a real Slurm: two nodes on this machine (slurm_cluster.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from live_runs import SCRIPT as RANK_SCRIPT
from live_runs import SLACK, LiveRun, wait_for
from slurm_cluster import NODES, PARTITION, SlurmCluster

from tpdpdash.faults import InvalidInputError
from tpdpdash.run import history
from tpdpdash.run.folder import RunFolder, new_run_folder, write_json
from tpdpdash.run.request import RunRequest, start_request
from tpdpdash.run.slurm import cancel, look_up, tell_to_stop
from tpdpdash.run.stop import stop_run
from tpdpdash.telemetry.reader import RunReader
from tpdpdash.telemetry.record import PHASES

Start = Callable[..., LiveRun]
FOREVER = ("100000", "0.05")
TWO_NODES = {"engine": "slurm", "nodes": 2, "partition": PARTITION}
JOB = """
[model]
num_layers = 2
hidden_size = 32
num_attention_heads = 4
ffn_hidden_size = 64
vocab_size = 128
[cluster]
device = "local"
nodes = 2
devices_per_node = 1
[training]
seq_len = 32
global_batch_size = 4
steps = 4
[layout]
dp = 2
"""
SCRIPT = """
import os, sys, time
from pathlib import Path
print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.getcwd(), *sys.argv[1:])
import torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight])
while not Path("go").exists():
    time.sleep(0.05)
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
"""


def tpdpdash(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command as a person types it."""
    command = [sys.executable, "-m", "tpdpdash", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_a_job_on_two_nodes_runs_from_the_command_line_and_every_rank_is_timed(
    slurm: SlurmCluster, tmp_path: Path, runs_root: Path
) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    ended = tpdpdash("run", "job.toml", "--engine", "slurm", "--partition", PARTITION, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    folder = RunFolder(runs_root / ended.stdout.strip())
    status = history.read_state(folder).status
    assert (status.state, status.engine, status.last_step, status.world_size) == ("finished", "slurm", 4, 2)
    reader = RunReader(folder.path, 2)
    reader.refresh()
    seen = reader.snapshot()
    assert (sorted(seen.ranks), list(seen.steps)) == ([0, 1], [1, 2, 3, 4])
    for phase in ("forward", "backward", "dp"):
        assert (seen.phase_s[:, :, PHASES.index(phase)] > 0).all()
    script = folder.batch_script.read_text()
    assert "srun --nodes=2 --ntasks-per-node=1" in script
    assert "--rdzv-backend c10d" in script
    assert sorted(path.name for path in folder.agent_logs()) == ["agent-0.log", "agent-1.log", "agent.log"]
    samples = {path.name: path.read_text() for path in folder.devices.iterdir()}
    assert sorted(samples) == ["node-000.jsonl", "node-001.jsonl"]
    assert '"node":1' in samples["node-001.jsonl"]
    for rank in (0, 1):
        assert folder.rank_outputs(rank)["stderr.log"].is_file()
    wait_for(lambda: look_up(status.scheduler.id, folder.run_id).state == "COMPLETED", 10 * SLACK)
    assert slurm.ask("sinfo", "--noheader", "--format=%D %t") == f"{len(NODES)} idle"


def test_a_script_on_two_nodes_is_timed_without_a_line_and_another_waits_behind_it(
    slurm: SlurmCluster, tmp_path: Path, runs_root: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("run", "--engine", "slurm", "--partition", PARTITION, "--nodes", "2", "--nproc", "2", "--detach", "--")
    first, second = (tpdpdash(*words, "train.py", "--lr", "1", folder=tmp_path) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    running, waiting = (RunFolder(runs_root / ended.stdout.strip()) for ended in (first, second))
    wait_for(lambda: history.read_state(waiting).status.scheduler.position == 1, 10 * SLACK)
    stopped = tpdpdash("stop", waiting.run_id, folder=tmp_path)
    assert (stopped.returncode, history.read_state(waiting).state) == (0, "stopped"), stopped.stderr

    wait_for(lambda: history.read_state(running).state == "running", 20 * SLACK)
    (tmp_path / "go").touch()
    wait_for(lambda: history.read_state(running).is_over, 20 * SLACK)
    view = history.read_state(running)
    assert (view.state, view.status.engine, view.status.world_size) == ("finished", "slurm", 4)
    said = sorted(running.rank_outputs(rank)["stdout.log"].read_text().split() for rank in range(4))
    assert said == [[str(rank), "4", str(tmp_path), "--lr", "1"] for rank in range(4)]
    reader = RunReader(running.path, 4)
    reader.refresh()
    seen = reader.snapshot()
    assert (sorted(seen.ranks), list(seen.steps)) == ([0, 1, 2, 3], [2, 3])  # the first has no beginning
    assert (seen.step_s > 0).all()
    assert sorted(path.name for path in running.agent_logs()) == ["agent-0.log", "agent-1.log", "agent.log"]
    wait_for(lambda: slurm.ask("squeue", "--noheader", "--states=PENDING,RUNNING") == "", 10 * SLACK)


def test_a_job_waits_in_the_queue_and_a_killed_rank_of_the_running_one_is_named(
    slurm: SlurmCluster, start: Start
) -> None:
    """The watch on the waiting job is killed, as by the end of a login session: it is no less in the queue."""
    running = start(*FOREVER, world_size=4, **TWO_NODES)
    waiting = start(*FOREVER, **TWO_NODES)
    wait_for(lambda: waiting.view.status.scheduler.position == 1 and waiting.view.status.scheduler.reason, 10 * SLACK)
    assert waiting.view.state == "created"
    watch = history.supervisor_here(waiting.view.status)
    os.kill(watch.pid, signal.SIGKILL)
    wait_for(lambda: not watch.is_alive, SLACK)
    assert (waiting.view.state, waiting.view.status.scheduler.state) == ("created", "PENDING")
    stop_run(waiting.folder, by="test")
    assert look_up(waiting.view.status.scheduler.id, waiting.folder.run_id).state == "CANCELLED"
    assert waiting.view.is_over

    running.until_running()
    assert {"supervisor", "srun", "agent0", "agent1", "sampler", "rank0", "rank3"} <= set(running.members)
    running.kill("rank3")
    view = running.until_over(10 * SLACK)
    failure = view.status.first_failure
    assert (view.state, failure.code, failure.rank, failure.signal) == ("failed", "rank_killed", 3, "SIGKILL")
    running.until_gone()
    wait_for(lambda: slurm.ask("squeue", "--noheader", "--states=RUNNING,PENDING") == "", 10 * SLACK)


def test_stop_lets_the_ranks_of_all_nodes_end_and_clears_the_queue(slurm: SlurmCluster, start: Start) -> None:
    run = start(*FOREVER, **TWO_NODES)
    run.until_running()
    result = stop_run(run.folder, by="cli")
    assert (result.view.state, result.view.status.stop_requested_by) == ("stopped", "cli")
    assert slurm.ask("squeue", "--noheader", "--states=RUNNING,COMPLETING") == ""
    run.until_gone()
    assert "got signal: 15" in (run.folder.logs / "agent-1.log").read_text()  # told to end, not killed


def test_a_killed_agent_is_named_by_its_node_and_a_killed_supervisor_is_told_by_the_watch_on_the_job(
    slurm: SlurmCluster, start: Start
) -> None:
    """Two jobs share the nodes: each has meeting points and processes of its own."""
    del slurm
    agentless, orphaned = start(*FOREVER, **TWO_NODES), start(*FOREVER, **TWO_NODES)
    agentless.until_running()
    orphaned.until_running()
    agentless.kill("agent1")
    orphaned.kill("supervisor")
    view = agentless.until_over(10 * SLACK)
    failure = view.status.first_failure
    assert (view.state, failure.code, failure.error) == ("failed", "agent_killed", "n1: task 1: Killed")
    agentless.until_gone()
    wait_for(lambda: history.written_status(orphaned.folder).is_final, 15 * SLACK)
    status = orphaned.view.status
    assert (status.state, status.first_failure.code, status.last_step is None) == ("failed", "batch_job_ended", False)
    assert status.first_failure.error == "FAILED"
    orphaned.until_gone()


def test_a_job_whose_time_is_up_was_not_stopped_by_somebody(slurm: SlurmCluster, start: Start) -> None:
    run = start(*FOREVER, **TWO_NODES)
    run.until_running()
    slurm.ask("scontrol", "update", f"JobId={run.view.status.scheduler.id}", "EndTime=now+1seconds")
    view = run.until_over(20 * SLACK)
    failure = view.status.first_failure
    assert (view.state, failure.code, failure.error) == ("failed", "job_ended_by_slurm", "TIMEOUT")
    run.until_gone()


def test_another_job_that_has_a_runs_old_id_is_neither_shown_as_it_nor_cancelled(
    slurm: SlurmCluster, tmp_path: Path, runs_root: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids begin anew with the controller. A job is its run's whatever SBATCH_JOB_NAME says."""
    monkeypatch.setenv("SBATCH_JOB_NAME", "mine")
    run = start(*FOREVER, **TWO_NODES)
    other = slurm.ask("sbatch", "--parsable", "--wrap=sleep 600", "--output=/dev/null", f"--chdir={tmp_path}")
    job = run.view.status.scheduler
    assert slurm.ask("squeue", "--noheader", f"--jobs={job.id}", "--format=%j") == run.folder.run_id
    gone = new_run_folder(runs_root, "gone")
    before = {**run.view.status.to_json(), "host": "elsewhere", "heartbeat": 1.0}
    for state in ("created", "running"):
        write_json(gone.status, {**before, "state": state, "scheduler": {**before["scheduler"], "id": other}})
        view = history.read_state(gone)
        assert (view.state, view.status.scheduler.state) == ("lost", "GONE")
        stop_run(gone, by="test")
        cancel(other, gone.run_id)
        tell_to_stop(other, gone.run_id)
    assert slurm.ask("squeue", "--noheader", f"--jobs={other}", "--format=%T") in ("PENDING", "RUNNING")
    slurm.ask("scancel", other)
    stop_run(run.folder, by="test")
    run.until_gone()


def test_a_partition_that_does_not_exist_is_one_line_and_nothing_is_left(
    slurm: SlurmCluster, tmp_path: Path, runs_root: Path
) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    ended = tpdpdash("run", "job.toml", "--engine", "slurm", "--partition", "mian", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.strip() == "--partition: there is no partition mian; it must be one of main; nearest: main"
    assert not runs_root.exists()
    with pytest.raises(InvalidInputError) as refused:  # and where nobody had asked sinfo before
        start_request(RunRequest(name="x", world_size=2, engine="slurm", nodes=2, partition="mian"), root=runs_root)
    (fault,) = refused.value.faults
    assert (fault.code, list(runs_root.iterdir())) == ("not_submitted", [])
    assert "Invalid partition name" in str(fault.values["reason"])
    assert slurm.ask("squeue", "--noheader", "--name=x") == ""


def test_without_slurm_its_engine_is_refused(tmp_path: Path, runs_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    ended = tpdpdash("run", "job.toml", "--engine", "slurm", folder=tmp_path)
    told = "--engine slurm: Slurm does not answer here: sinfo is not installed here"
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (2, "", told)
    assert not runs_root.exists()


def test_other_machines_join_a_script_by_the_line_that_it_shows(tmp_path: Path, runs_root: Path) -> None:
    words = (
        "run",
        "--engine",
        "hosts",
        "--nodes",
        "2",
        "--nproc",
        "1",
        "--detach",
        "--",
        str(RANK_SCRIPT),
        "3",
        "0.05",
    )
    started = tpdpdash(*words, folder=tmp_path)
    assert started.returncode == 0, started.stderr
    folder = RunFolder(runs_root / started.stdout.strip())
    line = started.stderr.strip().splitlines()[-1]
    assert line == folder.elsewhere_command()
    assert history.read_state(folder).state == "starting"
    joined = subprocess.run(["bash", "-c", line], cwd="/", capture_output=True, text=True, check=False)
    assert joined.returncode == 0, joined.stderr
    wait_for(lambda: history.read_state(folder).is_over, 20 * SLACK)
    view = history.read_state(folder)
    assert (view.state, view.status.engine, view.status.last_step) == ("finished", "hosts", 3)
    assert view.status.ranks_by_phase == {"running": 2}
    assert len(list(folder.logs.glob("*/attempt_0/*/stdout.log"))) == 2
