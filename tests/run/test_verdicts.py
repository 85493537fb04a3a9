"""Real runs with something wrong on one rank: it is named, and nobody else; a hung run is called one and is stopped.

Three runs carry all of it: each goes through several faults, and what was told up to a step is judged apart.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from live_runs import SLACK, wait_for
from made_telemetry import up_to
from typer.testing import CliRunner

from tpdpdash.cli import app
from tpdpdash.compare.attribution import attribute
from tpdpdash.compare.prediction import read_prediction
from tpdpdash.compare.run_plan import planned_idle_s, read_run_plan
from tpdpdash.compare.verdict import Verdict, judge
from tpdpdash.compare.verdict_words import headline
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.job import parse_job
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.request import RunRequest, start_request
from tpdpdash.run.stop import StopResult, stop_run
from tpdpdash.telemetry.analysis import own_work_s
from tpdpdash.telemetry.hang import Hang, find_hang
from tpdpdash.telemetry.reader import RunReader, Telemetry

HUNG_S, STOP_S = 15.0, 10.0
"""Deadlines: from the last step until a run is called hung; from asking for the end until every process is gone."""
BUSY_S = 0.25
"""Own work of a step, a few times what it takes where every rank has a core."""
INJECTED = Path(__file__).with_name("injected_worker.py")
JOB = """
name = "verdict"
[model]
name = "tiny"
num_layers = 4
hidden_size = 128
num_attention_heads = 8
num_kv_heads = 4
head_dim = 16
ffn_hidden_size = 384
vocab_size = 512
[cluster]
device = "CPU"
nodes = 1
devices_per_node = {world_size}
[training]
seq_len = 64
global_batch_size = 8
steps = 100000
precision = "fp32"
framework = "builtin"
[layout]
{layout}
"""


class Story:
    """A run with things going wrong, followed until `last_step` or its hang."""

    def __init__(self, root: Path, layout: str, world_size: int, *faults: str) -> None:
        text = JOB.format(world_size=world_size, layout=layout)
        prediction = json.dumps(estimate_job(parse_job(text).resolved()).to_json())
        request = RunRequest(
            name="verdict",
            world_size=world_size,
            rank_argv=(sys.executable, str(INJECTED), *faults),
            files=MappingProxyType({"job.toml": text, "prediction.json": prediction}),
        )
        self.folder: RunFolder = start_request(request, root=root)
        self.plan = read_run_plan(self.folder)
        self._reader = RunReader(self.folder.path, world_size)

    def now(self) -> Telemetry:
        """All that was told so far."""
        self._reader.refresh()
        return self._reader.snapshot()

    def until_step(self, step: int, limit_s: float = 180.0) -> None:
        """Until every rank has told that step."""
        wait_for(lambda: _has_told(self.now(), step), limit_s)

    def verdict_at(self, step: int) -> Verdict:
        """What would have been said after that step."""
        seen = up_to(self.now(), step)
        return judge(seen, self.plan, planned_idle_s(seen, self.plan))

    def until_hung(self) -> Hang:
        """Until it is called hung; fails when that takes longer after its last step than it may."""
        found: list[Hang] = []

        def is_hung() -> bool:
            hang = find_hang(self.now(), time.time())
            found.extend([hang] if hang is not None else [])
            return hang is not None

        wait_for(is_hung, HUNG_S + SLACK)
        return found[0]

    def stop(self) -> StopResult:
        """Stop it."""
        return stop_run(self.folder, by="test")

    def stops_in_time(self) -> None:
        """Stop it; every process is gone in time."""
        began = time.monotonic()
        result = self.stop()
        assert (result.view.state, result.could_not_kill) == ("stopped", ())
        assert time.monotonic() - began < STOP_S * SLACK


def _has_told(telemetry: Telemetry, step: int) -> bool:
    """Whether every rank has."""
    column = telemetry.step_s[:, telemetry.steps == step]
    return bool(column.size) and bool((column > 0).all())


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Story]]:
    """Start stories; those that still run are stopped at the end."""
    started: list[Story] = []
    folder = tmp_path_factory.mktemp("stories")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))

        def one(layout: str, world_size: int, *faults: str) -> Story:
            started.append(Story(folder / "runs", layout, world_size, *faults))
            return started[-1]

        yield one
        for story in started:
            story.stop()


def named(story: Story, first: int) -> set[tuple[int, str]]:
    """Every rank that is named, with its phase, from five to ten steps after it became slow.

    On a machine so busy that a step's work takes several times as long as it should, 200 ms more are not to be seen.
    """
    usual_s = float(np.median(own_work_s(story.now())))
    if usual_s > BUSY_S:
        pytest.skip(f"this machine is too busy: {usual_s:.2f} s of own work a step")
    verdicts = [story.verdict_at(step) for step in range(first + 5, first + 10)]
    return {(slow.rank, slow.phase) for verdict in verdicts for slow in verdict.slow_ranks}


@pytest.fixture(scope="module")
def replicas(begin: Callable[..., Story]) -> Story:
    """DP 2, to the step after which rank 1 hangs."""
    slow = ("backward:1:9:18:0.2", "data:0:27:36:0.2", "link:0,1:45:54:0.15")
    faults = (*slow, "memory:1:37:1000:8e6", "hang:1:56:56:0")
    story = begin("dp = 2", 2, *faults)
    story.until_step(55)
    return story


@pytest.fixture(scope="module")
def stages(begin: Callable[..., Story], replicas: Story) -> Story:
    """PP 2; it imports while the replicas hang."""
    assert replicas.folder.path.is_dir()
    return begin("pp = 2", 2, "backward:0:1:10:0.2", "backward:1:19:28:0.2")


@pytest.fixture(scope="module")
def grid(begin: Callable[..., Story], stages: Story) -> Story:
    """TP 2 × PP 2, started once the stages are through."""
    stages.until_step(28)
    stages.stop()
    story = begin("tp = 2\npp = 2", 4, "backward:3:9:18:0.2")
    story.until_step(18)
    return story


def test_in_a_dp_group_200_ms_of_backward_name_the_rank_within_ten_steps_and_no_other(replicas: Story) -> None:
    assert named(replicas, 9) == {(1, "backward")}
    verdict = replicas.verdict_at(18)
    assert (verdict.code, verdict.slow_ranks[0].against) == ("slow_rank", "stage")
    assert verdict.slow_ranks[0].excess_s == pytest.approx(0.2, abs=0.07)


def test_a_slow_input_pipeline_on_one_rank_is_told_as_that(replicas: Story) -> None:
    assert named(replicas, 27) == {(0, "data")}
    verdict = replicas.verdict_at(36)
    assert verdict.code == "slow_input"
    assert "reads its data slowly" in headline(verdict)


def test_a_throttled_link_is_named_by_its_group(replicas: Story) -> None:
    assert replicas.verdict_at(44).slow_groups == ()
    verdict = replicas.verdict_at(54)
    assert [(slow.kind, slow.ranks, slow.against) for slow in verdict.slow_groups] == [("dp", (0, 1), "past")]
    assert verdict.slow_groups[0].excess_s == pytest.approx(0.3, abs=0.1)


def test_a_rank_that_allocates_ever_more_memory_is_named(replicas: Story) -> None:
    assert replicas.verdict_at(36).growing == ()
    (growth,) = judge(replicas.now(), replicas.plan).growing
    assert growth.rank == 1
    assert growth.bytes_per_step > 1e6


def test_a_rank_that_hangs_before_a_collective_is_called_hung_within_15_s_and_can_be_stopped(
    replicas: Story, stages: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stages.folder.path.is_dir()  # it starts meanwhile
    hang = replicas.until_hung()
    (held,) = hang.culprits
    assert (held.rank, held.phase, held.kind, held.group) == (1, "backward", "dp", (0, 1))
    assert (held.last_collective, held.awaited) == ("dp all_gather", "dp reduce_scatter")
    monkeypatch.setenv("TPDPDASH_RUNS", str(replicas.folder.path.parent))
    shown = CliRunner().invoke(app, ["show", replicas.folder.run_id])
    assert "rank 1 is in backward and does not go on" in shown.stdout
    replicas.stops_in_time()


def test_in_a_pp_group_the_rank_is_named_from_the_first_steps_on_and_when_it_begins_later(stages: Story) -> None:
    stages.until_step(28)
    assert named(stages, 1) == {(0, "backward")}
    assert named(stages, 19) == {(1, "backward")}


def test_in_a_tp_group_200_ms_of_backward_name_the_rank_within_ten_steps_and_no_other(grid: Story) -> None:
    assert named(grid, 9) == {(3, "backward")}


def test_the_parts_of_the_step_stand_beside_the_predicted_ones(grid: Story) -> None:
    seen = grid.now()
    found = attribute(seen, read_prediction(grid.folder), planned_idle_s(seen, grid.plan))
    assert found is not None
    assert sum(part.measured_s for part in found.parts) == pytest.approx(found.measured_step_s, rel=0.01)
    assert {part.part for part in found.parts} >= {"compute", "tp", "pp", "bubble", "optimizer", "waiting"}
    assert all(part.predicted_s is not None for part in found.parts)
    assert [memory.predicted_bytes is not None for memory in found.memory] == [True, True]


def test_a_stopped_process_is_called_hung_within_15_s_and_the_run_can_be_stopped(grid: Story) -> None:
    os.kill(grid.now().ranks[1].pid, signal.SIGSTOP)
    hang = grid.until_hung()
    assert [(held.rank, held.is_silent) for held in hang.culprits] == [(1, True)]
    assert hang.culprits[0].kind in ("tp", "pp")
    assert 1 in hang.culprits[0].group
    assert hang.culprits[0].last_collective is not None
    grid.stops_in_time()
