"""The worker as torchrun starts it: events, records, bounds on what was not attributed, refusals, failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tpdpdash.telemetry.record import PHASES, rank_file

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
    """One finished torchrun."""

    folder: Path
    exit_code: int
    output: str

    def records(self, rank: int, kind: str) -> list[dict[str, Any]]:
        """One rank's records of a kind, in order."""
        lines = [json.loads(line) for line in rank_file(self.folder, rank).read_text().splitlines()]
        return [line for line in lines if line["kind"] == kind]

    def errors(self) -> list[str]:
        """The messages of every error.json."""
        files = sorted(self.folder.glob("logs/*/attempt_0/*/error.json"))
        return [json.loads(file.read_text())["message"]["message"] for file in files]


def launch(folder: Path, *, world_size: int, layout: str, arguments: tuple[str, ...] = (), **job: Any) -> Launch:
    """Run the worker under torchrun to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"num_layers": 4, "vocab_size": 512, "global_batch_size": 8, "steps": STEPS, "precision": "fp32"} | job
    values.setdefault("cluster_size", world_size)
    (folder / "job.toml").write_text(JOB.format(layout=layout, **values))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    logs = ["--log-dir", str(folder / "logs"), "--redirects", "3"]
    done = subprocess.run(
        [*torchrun, *logs, "-m", "tpdpdash.worker", "--run-dir", str(folder), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    logged = "".join(file.read_text()[-3000:] for file in folder.glob("logs/*/attempt_0/*/stderr.log"))
    return Launch(folder=folder, exit_code=done.returncode, output=done.stderr[-3000:] + logged)


@pytest.fixture(scope="module")
def tp_pp(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """TP 2 × PP 2 on four ranks."""
    done = launch(tmp_path_factory.mktemp("tp-pp"), world_size=4, layout="tp = 2\npp = 2")
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def text_dp(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """DP 2 on a text file."""
    folder = tmp_path_factory.mktemp("text-dp")
    text = folder / "text"
    text.write_text("All happy families are alike; each unhappy family is unhappy in its own way. " * 40)
    arguments = ("--text", str(text))
    done = launch(folder, world_size=2, layout="dp = 2", arguments=arguments, precision="bf16", num_layers=2)
    assert done.exit_code == 0, done.output
    return done


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


def test_unattributed_and_other_time_stay_within_their_bounds(tp_pp: Launch, text_dp: Launch) -> None:
    for done, world_size, bound in ((tp_pp, 4, 0.03), (text_dp, 2, 0.03)):
        for rank in range(world_size):
            steps = done.records(rank, "step")[WARM_UP:]
            unattributed = [1 - sum(step["phase_s"].values()) / step["step_s"] for step in steps]
            assert -1e-6 <= median(unattributed) <= bound
            assert median(step["phase_s"].get("other", 0.0) / step["step_s"] for step in steps) <= 0.10


def test_each_kind_of_parallelism_shows_in_its_own_phase(tp_pp: Launch, text_dp: Launch) -> None:
    common = {"forward", "backward", "optimizer"}
    for rank in range(4):
        ends = {"data", "loss"} if rank >= 2 else {"data"}
        assert set(tp_pp.records(rank, "step")[-1]["phase_s"]) == common | ends | {"tp", "pp"}
    assert set(text_dp.records(0, "step")[-1]["phase_s"]) == common | {"data", "loss", "dp"}
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


def test_a_text_file_is_learnt(text_dp: Launch) -> None:
    losses = [step["loss"] for step in text_dp.records(0, "step")]
    assert losses[-1] < losses[0] - 0.1


def test_a_job_that_the_worker_cannot_run_is_refused_by_name_one_line_a_fault(tmp_path: Path) -> None:
    done = launch(tmp_path, world_size=1, layout="zero_stage = 2\noffload_optimizer = true", global_batch_size=2)
    assert done.exit_code != 0
    lines = next(tmp_path.glob("logs/*/attempt_0/0/stderr.log")).read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["layout.zero_stage", "layout.offload_optimizer"]


def test_a_text_that_is_missing_is_named_in_the_ranks_own_error_file(tmp_path: Path) -> None:
    done = launch(tmp_path, world_size=1, layout="", arguments=("--text", str(tmp_path / "nothing")))
    assert done.exit_code != 0
    assert "file_unreadable" in done.errors()[0]
    assert str(tmp_path / "nothing") in done.output


def test_a_world_of_another_size_is_refused(tmp_path: Path) -> None:
    done = launch(tmp_path, world_size=1, layout="tp = 2", cluster_size=2)
    assert done.exit_code != 0
    assert "the layout needs 2 ranks" in done.output
