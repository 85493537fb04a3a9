"""What Slurm is told and what it answers, without one."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from tpdpdash.faults import InvalidInputError
from tpdpdash.job import parse_job
from tpdpdash.run import address, slurm_preflight
from tpdpdash.run.failure import FirstFailure, RankEnd, exit_of_agents, failure_fault, first_failure, first_words
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.place import Place, checks
from tpdpdash.run.request import RunRequest
from tpdpdash.run.slurm import SlurmPartition, SlurmSilentError, ended_by_slurm, look_up, parse_partitions
from tpdpdash.run.slurm_preflight import NodesAsked, script_nodes
from tpdpdash.run.slurm_script import batch_script
from tpdpdash.run.status import RunStatus, SchedulerJob
from tpdpdash.text import fault_text

FOLDER = RunFolder(Path("/shared/my runs/20261130-131502-llama-3-8b-x7k2"))
TERMINATED = "SignalException: Process 7 got signal: 15\n"


def script(**changes: object) -> str:
    options = {"nodes": 2, "ranks_per_node": 8, "uses_gpus": True, "environ": {"PYTHONPATH": "/it's here"}}
    return batch_script(FOLDER, **{**options, **changes})  # type: ignore[arg-type]


def directives(text: str) -> list[str]:
    return [word for line in text.splitlines() if line.startswith("#SBATCH ") for word in shlex.split(line[8:])]


def test_the_batch_script_asks_for_nodes_and_gpus_and_is_legal_bash() -> None:
    text = script(partition="gpu")
    assert {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--partition=gpu"} <= set(directives(text))
    assert f"--output={FOLDER.supervisor_log}" in directives(text)
    assert "--gpus-per-node" not in script(uses_gpus=False)
    assert "--cpus-per-task=8" in directives(script(uses_gpus=False))
    assert not any(word.startswith("--partition") for word in directives(script()))
    checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_batch_script_never_meets_on_the_loopback_nor_guesses_a_node_rank() -> None:
    """r119, r120: no fallback to localhost, no `hostname --ip-address`; r109: a port that is free; r085."""
    text = script()
    assert not any(word in text for word in ("localhost", "127.0.0.1", "--ip-address", "--node-rank", "--node_rank"))
    assert '--rdzv-endpoint "$TPDPDASH_HEAD:$TPDPDASH_PORT"' in text
    assert "exit 1" in text


def test_gpus_that_slurm_assigned_are_not_rewritten() -> None:
    """r108."""
    assert "CUDA_VISIBLE_DEVICES" not in script()


def test_partitions_are_read_with_the_nodes_that_can_be_used() -> None:
    gpu, cpu = parse_partitions(
        "gpu*|up|g1|idle|64|gpu:h100:8(S:0-1),nvme:1\n"
        "gpu*|up|g2|mixed|64|gpu:h100:4\n"
        "gpu*|up|g3|drained|64|gpu:h100:8\n"
        "cpu|down|c1|idle~|16|(null)\n"
    )
    assert gpu == SlurmPartition(
        name="gpu",
        is_default=True,
        is_up=True,
        num_nodes=2,
        cpus_per_node=64,
        gpus_per_node=4,
        hosts=("g1", "g2", "g3"),
    )
    assert (cpu.name, cpu.is_default, cpu.is_up, cpu.num_nodes, cpu.gpus_per_node) == ("cpu", False, False, 1, 0)


def job_of(nodes: int, devices: int) -> object:
    return parse_job(
        "[model]\nnum_layers = 2\nhidden_size = 32\nnum_attention_heads = 4\nffn_hidden_size = 64\n"
        f'vocab_size = 128\n[cluster]\ndevice = "local"\nnodes = {nodes}\ndevices_per_node = {devices}\n'
        "[training]\nseq_len = 32\nglobal_batch_size = 12\n"
    )


def slurm_checks(monkeypatch: pytest.MonkeyPatch, job: object, partition: str | None = None) -> dict[str, object]:
    found = parse_partitions("main*|up|n0|idle|2|(null)\nmain*|up|n1|idle|2|(null)\nold|down|n0|idle|2|(null)")
    monkeypatch.setattr(slurm_preflight, "list_partitions", lambda: found)
    return {c.code: c for c in checks(job, Place(engine="slurm", partition=partition))}  # type: ignore[arg-type]


def test_preflight_says_what_a_partition_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {code: check.level for code, check in slurm_checks(monkeypatch, job_of(2, 2)).items()}
    assert (levels["slurm"], levels["partition"], levels["nodes"]) == ("ok", "ok", "ok")
    for nodes, devices in ((3, 2), (2, 3)):
        assert slurm_checks(monkeypatch, job_of(nodes, devices))["nodes"].level == "failed"
    assert slurm_checks(monkeypatch, job_of(2, 2), "old")["partition"].level == "failed"
    (fault,) = slurm_checks(monkeypatch, job_of(2, 2), "mane")["partition"].faults
    assert (fault.code, fault.values["nearest"]) == ("slurm_no_partition", "main")


def test_a_script_takes_what_the_nodes_of_its_partition_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = parse_partitions("gpu*|up|g0|idle|64|gpu:8\ngpu*|up|g1|idle|64|gpu:4\ncpu|up|c0|idle|16|(null)")
    monkeypatch.setattr(slurm_preflight, "list_partitions", lambda: found)

    def asked(partition: str | None, nodes: int, each: int | None) -> NodesAsked:
        return script_nodes(partition=partition, nodes=nodes, ranks_per_node=each, cwd=tmp_path)

    assert asked(None, 2, None) == NodesAsked(nodes=2, num_ranks=8, uses_gpus=True)
    assert asked("gpu", 1, 2) == NodesAsked(nodes=1, num_ranks=2, uses_gpus=True)
    assert asked("cpu", 1, None) == NodesAsked(nodes=1, num_ranks=1, uses_gpus=False)
    assert asked("cpu", 1, 16).ranks_per_node == 16
    for partition, nodes, each in (("gpu", 3, 1), ("gpu", 1, 5), ("cpu", 2, 1), ("cpu", 1, 17)):
        with pytest.raises(InvalidInputError) as refused:
            asked(partition, nodes, each)
        assert [fault.code for fault in refused.value.faults] == ["preflight_nodes"]
    with pytest.raises(InvalidInputError) as refused:
        asked("gpus", 1, 1)
    assert [(fault.code, fault.values["nearest"]) for fault in refused.value.faults] == [("slurm_no_partition", "gpu")]


def test_devices_are_not_shared_behind_slurms_back() -> None:
    with pytest.raises(InvalidInputError) as refused:
        RunRequest(name="x", world_size=1, engine="slurm", shares_devices=True)
    (fault,) = refused.value.faults
    assert (fault.code, fault.field) == ("slurm_deals_devices", "--share-devices")
    assert RunRequest(name="x", world_size=1, engine="hosts", shares_devices=True).shares_devices


def test_preflight_says_when_slurm_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> list[SlurmPartition]:
        raise SlurmSilentError("sinfo is not installed here")

    monkeypatch.setattr(slurm_preflight, "list_partitions", silent)
    found = {check.code: check for check in checks(job_of(2, 2), Place(engine="slurm"))}
    assert (found["slurm"].level, "partition" in found) == ("failed", False)
    assert "sinfo is not installed here" in fault_text(found["slurm"].faults[0])
    with pytest.raises(InvalidInputError) as refused:
        script_nodes(partition=None, nodes=1, ranks_per_node=1, cwd=Path("/"))
    assert refused.value.faults == found["slurm"].faults


def test_a_runs_folder_that_only_this_machine_sees_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def on(kind: str) -> str:
        mounts = [type("Mount", (), {"mountpoint": "/", "fstype": kind})()]
        monkeypatch.setattr("psutil.disk_partitions", lambda **_: mounts)
        return slurm_checks(monkeypatch, job_of(2, 2))["shared_folder"].level

    assert (on("ext4"), on("nfs4"), on("lustre")) == ("warning", "ok", "ok")


def test_this_machine_is_named_by_what_others_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: "gpu-07")
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [(2, 1, 6, "", ("10.0.0.7", 0))])
    assert address.reachable_name() == "gpu-07"
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [(2, 1, 6, "", ("127.0.1.1", 0))])
    card = type("Address", (), {"family": 2, "address": "192.168.3.4"})()
    loopback = type("Address", (), {"family": 2, "address": "127.0.0.1"})()
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"lo": [loopback], "eth0": [card]})
    assert address.reachable_name() == "192.168.3.4"
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"lo": [loopback]})
    with pytest.raises(OSError, match="no address"):
        address.reachable_name()


def test_agents_that_were_ended_because_another_failed_are_not_the_cause() -> None:
    assert first_words([TERMINATED, "srun: error: n1: task 1: Exited with exit code 1"]).startswith("srun")
    assert first_words([TERMINATED, ""]) == f"{TERMINATED}\n"


def test_an_agent_that_srun_ended_does_not_hide_the_rank_that_failed() -> None:
    killed = RankEnd(rank=3, exit_code=-9)
    agent_exit = exit_of_agents(128 + 15, [RankEnd(rank=0), killed])
    failure = first_failure([RankEnd(rank=0), killed], agent_exit=agent_exit, agent_log="srun: error: n1: task 1: x")
    assert (failure.code, failure.rank) == ("rank_killed", 3)
    assert exit_of_agents(128 + 15, [RankEnd(rank=0, exit_code=-15, was_ended_by_agent=True)]) == 143
    assert exit_of_agents(128 + 9, [killed]) == 137


def test_a_killed_agent_is_named_by_its_node() -> None:
    log = "srun: error: n1: task 1: Killed\nsrun: error: n0: task 0: Exited with exit code 1\n"
    failure = first_failure([], agent_exit=137, agent_log=log)
    assert (failure.code, failure.signal, failure.error) == ("agent_killed", "SIGKILL", "n1: task 1: Killed")
    assert "on n1: task 1: Killed" in fault_text(failure_fault(failure))
    assert failure_fault(FirstFailure(code="agent_killed", signal="SIGKILL")).code == "agent_killed"


@pytest.mark.parametrize(
    ("state", "reason", "cause"),
    [
        ("TIMEOUT", "TimeLimit", "TIMEOUT"),
        ("COMPLETING", "TimeLimit", "TIMEOUT"),
        ("PREEMPTED", "", "PREEMPTED"),
        ("COMPLETING", "Preempted", "PREEMPTED"),
        ("CANCELLED", "", None),
        ("COMPLETING", "", None),
    ],
)
def test_what_slurm_ends_by_itself_is_told_from_what_a_person_cancels(state: str, reason: str, cause: str) -> None:
    assert ended_by_slurm(SchedulerJob(id="1", state=state, reason=reason)) == cause


def test_the_place_in_the_queue_survives_the_status_file() -> None:
    status = RunStatus(
        state="created",
        engine="slurm",
        host="login",
        boot_id="b",
        supervisor_pid=1,
        supervisor_start_time=1.0,
        created=1.0,
        scheduler=SchedulerJob(id="7", state="PENDING", partition="gpu", reason="Priority", position=2),
    )
    document = json.loads(json.dumps(status.to_json()))
    assert RunStatus.from_json(document).scheduler == status.scheduler
    for broken in ({"id": 7}, {**document["scheduler"], "position": "2"}, []):
        with pytest.raises(ValueError, match="scheduler"):
            RunStatus.from_json({**document, "scheduler": broken})


def test_an_answer_that_is_none_is_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's wrapper may print what it likes: a run is not damaged by it."""
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 'maintenance tonight | see motd'\n")
    squeue.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SlurmSilentError, match="maintenance"):
        look_up("7", FOLDER.run_id)
