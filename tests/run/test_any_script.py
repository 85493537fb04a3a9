"""The probe in scripts that are not ours: two lines under each kind of parallelism, and no line at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from live_runs import LiveRun
from rank_records import records

from tpdpdash.run.folder import RunFolder

SCRIPT = Path(__file__).with_name("parallel_script.py")
STEPS = 6
WARM_UP = 2
"""Steps whose times are not looked at: the first ones allocate, open connections and import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run of the script, over."""

    folder: RunFolder
    noted: Path
    """Where the script wrote its losses."""

    def records(self, rank: int, kind: str) -> list[dict[str, Any]]:
        """One rank's records of a kind, in order."""
        return records(self.folder.path, kind, rank)

    def steps(self, rank: int) -> list[dict[str, Any]]:
        """The steps of the watched round."""
        return [step for step in self.records(rank, "step") if step["step"] > STEPS]

    def events(self, rank: int) -> list[str]:
        """Names of one rank's events."""
        return [event["name"] for event in self.records(rank, "event")]


def typed(kind: str, folder: Path) -> RunFolder:
    """`tpdpdash run --nproc 2 -- SCRIPT`, to its end."""
    environment = {**os.environ, "TPDPDASH_RUNS": str(folder / "runs")}
    command = [sys.executable, "-m", "tpdpdash", "run", "--nproc", "2", "--", str(SCRIPT), kind, str(folder)]
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return RunFolder(folder / "runs" / ended.stdout.strip())


def started(kind: str, folder: Path) -> LiveRun:
    """The same run without torchrun, whose own import of torch is most of what it takes."""
    size = 4 if kind == "megatron" else 2
    options = {"watches_steps": True, "has_probe": False, "cwd": str(folder)}
    return LiveRun(folder / "runs", kind, str(folder), world_size=size, script=SCRIPT, is_light=True, **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """One run of each kind of parallelism: one from the command line, the others as it starts them."""
    made = {}
    for kind in ("ddp", "fsdp", "tp", "pp", "megatron"):
        noted = tmp_path_factory.mktemp(kind)
        if kind == "ddp":
            made[kind] = Ended(folder=typed(kind, noted), noted=noted)
            continue
        run = started(kind, noted)
        assert run.until_over(150).state == "finished", run.folder.agent_log.read_text()
        made[kind] = Ended(folder=run.folder, noted=noted)
    return made


def losses(ended: Ended, rank: int) -> dict[str, list[Any]]:
    """What the script itself noted."""
    noted: dict[str, list[Any]] = json.loads((ended.noted / f"losses-{rank}.json").read_text())
    return noted


def size(ended: Ended) -> int:
    """Ranks of the run."""
    return int(ended.records(0, "hello")[0]["world_size"])


def test_losses_are_those_of_the_unwatched_script_to_the_last_bit(runs: dict[str, Ended]) -> None:
    for ended in runs.values():
        for rank in range(size(ended)):
            noted = losses(ended, rank)
            assert noted["watched"] == noted["plain"]


def test_the_loss_is_told_as_the_script_computes_it(runs: dict[str, Ended]) -> None:
    for kind, ended in runs.items():
        for rank in range(size(ended)):
            told = [step["loss"] for step in ended.steps(rank)]
            is_off_the_last_stage = kind == "pp" and rank == 0
            assert told == ([None] * STEPS if is_off_the_last_stage else pytest.approx(losses(ended, rank)["told"]))


def test_each_kind_of_parallelism_shows_in_its_own_phase(runs: dict[str, Ended]) -> None:
    common = {"data", "forward", "backward", "optimizer"}
    for kind, own in (("ddp", {"dp"}), ("fsdp", {"dp"}), ("tp", {"tp"}), ("pp", {"pp"}), ("megatron", {"tp", "dp"})):
        for rank in range(size(runs[kind])):
            loss = set() if kind == "pp" and rank == 0 else {"loss"}
            for step in runs[kind].steps(rank)[WARM_UP:]:
                assert set(step["phase_s"]) == common | own | loss


def test_little_is_unattributed_and_the_probe_costs_less_than_a_hundredth(runs: dict[str, Ended]) -> None:
    """By each rank's best step: what no phase covers is in every step, a core lent to somebody else is in some."""
    for kind, ended in runs.items():
        for rank in range(size(ended)):
            cost_s = ended.records(rank, "hello")[-1]["region_cost_s"]
            steps = ended.steps(rank)[WARM_UP:]
            unattributed = min(1 - sum(step["phase_s"].values()) / step["step_s"] for step in steps)
            assert -1e-6 <= unattributed <= 0.05, kind
            assert cost_s > 0
            assert min(step["regions"] * cost_s / step["step_s"] for step in steps) < 0.01, kind


def test_who_a_rank_is_was_learnt_from_the_groups(runs: dict[str, Ended]) -> None:
    nothing = {"tp": 0, "cp": 0, "dp": 0, "pp": 0}
    for kind, axis in (("ddp", "dp"), ("fsdp", "dp"), ("tp", "tp"), ("pp", "pp")):
        told = [runs[kind].records(rank, "hello")[-1] for rank in range(2)]
        assert [hello["coords"] for hello in told] == [nothing, nothing | {axis: 1}]
        assert {hello["backend"] for hello in told} == {"gloo"}
    told = [runs["megatron"].records(rank, "hello")[-1]["coords"] for rank in range(4)]
    assert told == [nothing | {"tp": rank % 2, "dp": rank // 2} for rank in range(4)]


def test_a_pipelines_timeline_is_1f1b(runs: dict[str, Ended]) -> None:
    planned = ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    for rank, actions in enumerate(planned):
        (timeline,) = runs["pp"].records(rank, "timeline")
        assert " ".join(f"{kind}{microbatch}" for kind, _, microbatch, _, _ in timeline["actions"]) == actions
        assert {stage for _, stage, *_ in timeline["actions"]} == {rank}


def test_a_script_without_a_line_tells_step_times_and_whoever_watches_goes_on_from_there(
    runs: dict[str, Ended],
) -> None:
    """The first step began before torch was there; no phase is told before `watch`."""
    for ended in runs.values():
        for rank in range(size(ended)):
            steps = ended.records(rank, "step")
            assert [step["step"] for step in steps] == [*range(2, STEPS + 1), *range(STEPS + 1, 2 * STEPS + 1)]
            assert all(step["step_s"] > 0 and step["memory_bytes"] > 0 for step in steps)
            assert not any(step["phase_s"] for step in steps if step["step"] <= STEPS)
            assert ended.events(rank) == ["building", "first_step", "finished"]
