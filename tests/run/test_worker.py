"""The worker as torchrun starts it: events, records, bounds on what was not attributed, refusals, failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import RankJob, run_jobs
from rank_records import records

from tpdpdash.layout.schedules import SCHEDULE_FACTS, part_of
from tpdpdash.schedule.actions import schedule_actions
from tpdpdash.telemetry.record import PHASES

pytestmark = pytest.mark.timeout(600)
JOB = """
[model]
name = "tiny"
num_layers = {num_layers}
hidden_size = 128
num_attention_heads = 8
num_kv_heads = 4
head_dim = 16
ffn_hidden_size = 384
vocab_size = {vocab_size}
[cluster]
device = "CPU"
nodes = 1
devices_per_node = {cluster_size}
[training]
seq_len = 64
global_batch_size = {global_batch_size}
steps = {steps}
precision = "{precision}"
framework = "builtin"
[layout]
{layout}
"""
STEPS = 6
WARM_UP = 2
"""Steps whose times are not looked at: the first ones allocate and open connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One job of the worker, over."""

    folder: Path
    exit_code: int
    output: str

    def records(self, rank: int, kind: str) -> list[dict[str, Any]]:
        """One rank's records of a kind, in order."""
        return records(self.folder, kind, rank)

    def errors(self) -> list[str]:
        """The messages of every error.json."""
        files = sorted(self.folder.glob("logs/*/attempt_0/*/error.json"))
        return [json.loads(file.read_text())["message"]["message"] for file in files]


def write_job(folder: Path, *, world_size: int, layout: str, **job: Any) -> None:
    """The job in its folder."""
    values = {"num_layers": 4, "vocab_size": 512, "global_batch_size": 8, "steps": STEPS, "precision": "fp32"} | job
    values.setdefault("cluster_size", world_size)
    (folder / "job.toml").write_text(JOB.format(layout=layout, **values))


@pytest.fixture(scope="module")
def tp_pp(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """TP 2 × PP 2 on four ranks under torchrun."""
    folder = tmp_path_factory.mktemp("tp-pp")
    write_job(folder, world_size=4, layout="tp = 2\npp = 2")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    logs = ["--log-dir", str(folder / "logs"), "--redirects", "3"]
    done = subprocess.run(
        [*torchrun, *logs, "-m", "tpdpdash.worker", "--run-dir", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    logged = "".join(file.read_text()[-3000:] for file in folder.glob("logs/*/attempt_0/*/stderr.log"))
    assert done.returncode == 0, done.stderr[-3000:] + logged
    return Launch(folder=folder, exit_code=done.returncode, output=logged)


JOBS: dict[str, dict[str, Any]] = {
    "text dp": {"world_size": 2, "layout": "dp = 2", "precision": "bf16", "num_layers": 2},
    "interleaved": {"world_size": 2, "layout": "pp = 2\nnum_model_chunks = 2"},
    "dualpipe-v": {"world_size": 2, "layout": 'pp = 2\nschedule = "dualpipe-v"'},
    "zero 3": {"world_size": 2, "layout": "dp = 2\nzero_stage = 3", "num_layers": 2},
    "offload": {
        "world_size": 1, "layout": "offload_activations = true\noffload_optimizer = true", "global_batch_size": 2,
    },
    "no text": {"world_size": 1, "layout": ""},
    "another size": {"world_size": 1, "layout": "tp = 2", "cluster_size": 2},
}  # fmt: skip
"""Jobs whose ranks are forked: what only torchrun does is seen on `tp_pp`."""


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Launch]:
    """All of them, over."""
    folder = tmp_path_factory.mktemp("worker")
    text = folder / "text"
    text.write_text("All happy families are alike; each unhappy family is unhappy in its own way. " * 40)
    texts = {"text dp": ("--text", str(text)), "no text": ("--text", str(folder / "nothing"))}
    jobs = {}
    for name, job in JOBS.items():
        run_dir = folder / name
        run_dir.mkdir()
        write_job(run_dir, **job)
        arguments = ("--run-dir", str(run_dir), *texts.get(name, ()))
        jobs[name] = RankJob(
            program="tpdpdash.worker", arguments=arguments, world_size=job["world_size"], logs=str(run_dir / "logs")
        )
    codes = run_jobs(list(jobs.values()), timeout_s=550)
    return {
        name: Launch(folder=folder / name, exit_code=max(map(abs, ended)), output=jobs[name].stderr())
        for (name, ended) in zip(jobs, codes, strict=True)
    }


def trained(launches: dict[str, Launch], name: str) -> Launch:
    """One that must have gone well."""
    assert launches[name].exit_code == 0, launches[name].output
    return launches[name]


@pytest.fixture(scope="module")
def text_dp(launches: dict[str, Launch]) -> Launch:
    """DP 2 on a text file."""
    return trained(launches, "text dp")


@pytest.fixture(scope="module")
def interleaved(launches: dict[str, Launch]) -> Launch:
    """PP 2 with two model chunks a rank."""
    return trained(launches, "interleaved")


@pytest.fixture(scope="module")
def dualpipe_v(launches: dict[str, Launch]) -> Launch:
    """PP 2 in a V, whose backward is split here and whole there."""
    return trained(launches, "dualpipe-v")


@pytest.fixture(scope="module")
def zero_3(launches: dict[str, Launch]) -> Launch:
    """DP 2 under FSDP2."""
    return trained(launches, "zero 3")


def test_a_rank_tells_who_it_is_before_anything_else(tp_pp: Launch) -> None:
    for rank in range(4):
        (hello,) = tp_pp.records(rank, "hello")
        assert (hello["coords"]["tp"], hello["coords"]["pp"]) == (rank % 2, rank // 2)
        assert (hello["world_size"], hello["backend"], hello["device"]) == (4, "gloo", "cpu")


def test_the_events_of_a_start_come_in_order(tp_pp: Launch) -> None:
    names = [event["name"] for event in tp_pp.records(3, "event")]
    assert names == ["importing", "connecting", "building", "first_step", "finished"]


def test_every_step_is_told_with_its_tokens_and_a_loss_on_the_last_stage(tp_pp: Launch) -> None:
    for rank in range(4):
        steps = tp_pp.records(rank, "step")
        assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
        assert {step["tokens"] for step in steps} == {8 * 64}
        assert all((step["loss"] is None) == (rank < 2) for step in steps)
        assert all(step["memory_bytes"] > 0 for step in steps)
        assert all(step["peak_memory_bytes"] >= step["memory_bytes"] for step in steps)
    last = [[step["loss"] for step in tp_pp.records(rank, "step")] for rank in (2, 3)]
    assert last[0] == last[1]
    assert last[0][-1] < last[0][0]


def test_unattributed_and_other_time_stay_within_their_bounds(
    tp_pp: Launch, text_dp: Launch, interleaved: Launch, dualpipe_v: Launch, zero_3: Launch
) -> None:
    """By each rank's best step: what no phase covers is in every step, a core lent to somebody else is in some."""
    for done, world_size, bound in (
        (tp_pp, 4, 0.03),
        (text_dp, 2, 0.03),
        (interleaved, 2, 0.03),
        (dualpipe_v, 2, 0.03),
        (zero_3, 2, 0.03),
    ):
        for rank in range(world_size):
            steps = done.records(rank, "step")[WARM_UP:]
            unattributed = [1 - sum(step["phase_s"].values()) / step["step_s"] for step in steps]
            assert -1e-6 <= min(unattributed) <= bound
            assert min(step["phase_s"].get("other", 0.0) / step["step_s"] for step in steps) <= 0.10


def test_each_kind_of_parallelism_shows_in_its_own_phase(
    tp_pp: Launch, text_dp: Launch, interleaved: Launch, zero_3: Launch
) -> None:
    common = {"forward", "backward", "optimizer"}
    for rank in range(4):
        ends = {"data", "loss"} if rank >= 2 else {"data"}
        assert set(tp_pp.records(rank, "step")[-1]["phase_s"]) == common | ends | {"tp", "pp"}
    assert set(text_dp.records(0, "step")[-1]["phase_s"]) == common | {"data", "loss", "dp"}
    assert set(interleaved.records(0, "step")[-1]["phase_s"]) == common | {"data", "pp"}
    assert set(interleaved.records(1, "step")[-1]["phase_s"]) == common | {"data", "loss", "pp"}
    assert set(zero_3.records(0, "step")[-1]["phase_s"]) == common | {"data", "loss", "dp"}
    assert common <= set(PHASES)


def test_a_sampled_step_has_a_timeline_in_the_order_of_1f1b(tp_pp: Launch) -> None:
    (timeline,) = tp_pp.records(0, "timeline")
    actions = [f"{kind}{microbatch}" for kind, _, microbatch, _, _ in timeline["actions"]]
    steady = [action for m in range(6) for action in (f"B{m}", f"F{m + 2}")]
    assert timeline["step"] == 2
    assert actions == ["F0", "F1", *steady, "B6", "B7"]
    assert {action[1] for action in timeline["actions"]} == {0}
    starts = [start for *_, start, _ in timeline["actions"]]
    assert starts == sorted(starts)


def test_with_several_chunks_the_timeline_is_the_planned_one(interleaved: Launch, dualpipe_v: Launch) -> None:
    for done, schedule in ((interleaved, "interleaved"), (dualpipe_v, "dualpipe-v")):
        placement = SCHEDULE_FACTS[schedule].placement
        for rank, planned in enumerate(schedule_actions(schedule, 2, 8, 2)):
            (timeline,) = done.records(rank, "timeline")
            ran = [(kind, stage, microbatch) for kind, stage, microbatch, _, _ in timeline["actions"]]
            assert ran == [(a.kind, part_of(placement, 2, rank, a.chunk), a.microbatch) for a in planned], schedule


def test_in_a_v_the_first_rank_reads_the_batch_and_tells_the_loss(dualpipe_v: Launch) -> None:
    losses = [[step["loss"] for step in dualpipe_v.records(rank, "step")] for rank in range(2)]
    assert losses[1] == [None] * STEPS
    assert losses[0][-1] < losses[0][0]
    assert set(dualpipe_v.records(0, "step")[-1]["phase_s"]) >= {"data", "loss", "pp"}


def test_a_text_file_is_learnt(text_dp: Launch) -> None:
    losses = [step["loss"] for step in text_dp.records(0, "step")]
    assert losses[-1] < losses[0] - 0.1


def test_a_job_that_the_worker_cannot_run_is_refused_by_name_one_line_a_fault(launches: dict[str, Launch]) -> None:
    done = launches["offload"]
    assert done.exit_code != 0
    lines = next(done.folder.glob("logs/*/attempt_0/0/stderr.log")).read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["layout.offload_optimizer", "layout.offload_activations"]


def test_a_text_that_is_missing_is_named_in_the_ranks_own_error_file(launches: dict[str, Launch]) -> None:
    done = launches["no text"]
    assert done.exit_code != 0
    assert "file_unreadable" in done.errors()[0]
    assert str(done.folder.parent / "nothing") in done.output


def test_r068_a_world_of_another_size_is_refused_with_what_to_start(launches: dict[str, Launch]) -> None:
    """One process for a layout of TP 2."""
    done = launches["another size"]
    assert done.exit_code != 0
    assert "WORLD_SIZE is 1; the layout needs 2 ranks" in done.output
    assert "torchrun --nproc-per-node 2" in done.output
