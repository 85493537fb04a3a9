"""Analysis: parts add up, a slow rank is told from the peers that wait for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tpdpdash.telemetry import analysis
from tpdpdash.telemetry.reader import RunReader, Telemetry
from tpdpdash.telemetry.record import PHASES, RecordWriter, rank_file

TP, PP, DP = (PHASES.index(name) for name in ("tp", "pp", "dp"))


def told(run: Path, ranks: dict[int, tuple[dict[str, int], list[dict[str, float]]]], step_s: float = 10.0) -> Telemetry:
    """Telemetry of ranks, each with its coordinates and phase_s of steps 1, 2, …"""
    for rank, (coords, steps) in ranks.items():
        hello = {"pid": 1, "host": "a", "world_size": len(ranks), "coords": coords}
        lines = [{"kind": "hello", **hello}]
        for number, phase_s in enumerate(steps, 1):
            step = {"step": number, "step_s": step_s, "phase_s": phase_s, "tokens": 512.0}
            lines.append({"kind": "step", **step, "loss": float(number)})
        text = "".join(json.dumps({"v": 1, "rank": rank, "t": 0.0, **line}) + "\n" for line in lines)
        rank_file(run, rank).parent.mkdir(exist_ok=True)
        rank_file(run, rank).write_text(text)
    reader = RunReader(run, len(ranks))
    reader.refresh()
    return reader.snapshot()


def test_what_a_rank_spends_beyond_its_groups_quickest_is_waiting(tmp_path: Path) -> None:
    seen = told(
        tmp_path,
        {
            0: ({"tp": 0, "dp": 0}, [{"forward": 2, "tp": 5, "dp": 1}]),
            1: ({"tp": 1, "dp": 0}, [{"forward": 6, "tp": 1, "dp": 1}]),  # slow: comes last, waits least
            2: ({"tp": 0, "dp": 1}, [{"forward": 2, "tp": 3, "dp": 2}]),
            3: ({"tp": 1, "dp": 1}, [{"forward": 2, "tp": 3, "dp": 4}]),
        },
    )
    assert sorted(seen.ranks.groups("tp")) == [[0, 1], [2, 3]]
    assert sorted(seen.ranks.groups("dp")) == [[0, 2], [1, 3]]
    split = analysis.split_waiting(seen)
    waiting = split.waiting_s
    assert waiting[:, 0, TP].tolist() == [4.0, 0.0, 0.0, 0.0]
    assert waiting[:, 0, DP].tolist() == [0.0, 0.0, 1.0, 3.0]
    np.testing.assert_allclose(split.occupied_s + waiting, seen.phase_s)


def test_places_in_the_expert_grid_do_not_split_dense_groups(tmp_path: Path) -> None:
    """What the worker says of tp 2 × dp 2: every rank has a place of its own among the experts."""
    places = {
        rank: {"tp": rank % 2, "cp": 0, "pp": 0, "dp": rank // 2, "ep": 0, "etp": rank % 2, "edp": rank // 2}
        for rank in range(4)
    }
    seen = told(tmp_path, {rank: (coords, []) for rank, coords in places.items()})
    assert sorted(seen.ranks.groups("tp")) == [[0, 1], [2, 3]]
    assert sorted(seen.ranks.groups("dp")) == [[0, 2], [1, 3]]
    assert sorted(seen.ranks.groups("ep")) == [[0], [1], [2], [3]]


def test_where_a_rank_of_the_group_is_missing_nothing_is_called_waiting(tmp_path: Path) -> None:
    seen = told(tmp_path, {0: ({"tp": 0}, [{"tp": 5}, {"tp": 5}]), 1: ({"tp": 1}, [{"tp": 1}])})
    waiting = analysis.split_waiting(seen).waiting_s
    assert waiting[0, :, TP].tolist() == [4.0, 0.0]


def test_the_parts_of_a_ranks_step_add_up_to_it(tmp_path: Path) -> None:
    phases = {"data": 0.5, "forward": 2, "backward": 3, "tp": 1, "pp": 1.5, "other": 0.25}
    seen = told(tmp_path, {rank: ({"tp": rank, "pp": 0}, [phases, {**phases, "tp": 1.5 + rank}]) for rank in range(2)})
    parts = analysis.rank_phases(seen)
    total = parts.working_s + parts.transferring_s + parts.bubble_s + parts.total_waiting_s + parts.unattributed_s
    np.testing.assert_allclose(total, parts.step_s)
    assert parts.num_steps == 2
    assert analysis.rank_phases(seen, window=1).num_steps == 1


def test_unattributed_and_other_are_shares_of_the_step(tmp_path: Path) -> None:
    seen = told(tmp_path, {0: ({}, [{"forward": 9, "other": 0.5}] * 4)})
    parts = analysis.rank_phases(seen)
    assert (parts.unattributed_s / parts.step_s).tolist() == pytest.approx([0.05])
    assert (parts.phase_s[:, PHASES.index("other")] / parts.step_s).tolist() == pytest.approx([0.05])


def test_own_work_is_compared_within_a_stage_only(tmp_path: Path) -> None:
    """The second stage works longer than the first; only rank 3 is slow among its peers."""
    work = {0: 1.0, 1: 1.0, 2: 1.0, 3: 4.0, 4: 2.0, 5: 2.0, 6: 2.0}
    ranks = {rank: ({"pp": int(rank > 3), "dp": rank % 4}, [{"forward": work[rank]}]) for rank in work}
    seen = told(tmp_path, ranks)
    assert analysis.own_work_ratio(seen)[:, 0].tolist() == [1.0, 1.0, 1.0, 4.0, 1.0, 1.0, 1.0]


def test_tokens_of_a_replica_are_counted_once(tmp_path: Path) -> None:
    """tp 2 × dp 2: two replicas of 512 tokens in 10 s."""
    ranks = {rank: ({"tp": rank % 2, "dp": rank // 2}, [{"forward": 1}]) for rank in range(4)}
    seen = told(tmp_path, ranks)
    assert analysis.tokens_per_s(seen).tolist() == [102.4]


def test_the_band_is_over_the_ranks_and_the_loss_is_their_mean(tmp_path: Path) -> None:
    seen = told(tmp_path, {rank: ({"dp": rank}, [{"forward": 1}] * 3) for rank in range(2)})
    band = analysis.step_band(seen)
    assert (band.steps.tolist(), band.max_s.tolist()) == ([1, 2, 3], [10.0] * 3)
    assert analysis.loss_by_step(seen).tolist() == [1.0, 2.0, 3.0]


def test_before_the_first_step_every_answer_is_empty_or_unknown(tmp_path: Path) -> None:
    seen = told(tmp_path, {0: ({"tp": 0}, []), 1: ({"tp": 1}, [])})
    assert np.isnan(analysis.rank_phases(seen).step_s).all()
    assert np.isnan(analysis.rank_phases(seen).unattributed_s).all()
    assert analysis.own_work_ratio(seen).shape == (2, 0)
    assert analysis.step_band(seen).max_s.shape == (0,)


def test_mean_phases_are_the_means_of_the_parted_seconds(tmp_path: Path) -> None:
    """rank_phases makes no arrays by step and phase: its means are those of split_waiting all the same."""
    for rank in range(4):
        writer = RecordWriter(rank_file(tmp_path, rank), rank)
        coords = {"tp": rank % 2, "pp": rank // 2, "dp": 0, "cp": 0}
        writer.write("hello", {"pid": 1, "host": "a", "world_size": 4, "coords": coords})
        for number in range(1, 6 - (rank == 3)):  # the last step of one rank has not come
            phases = {"forward": 1.0, "tp": 0.1 * (1 + rank) + 0.01 * number, "pp": 0.3 + 0.1 * rank}
            writer.write("step", {"step": number, "step_s": 3.0, "phase_s": phases})
        writer.close()
    reader = RunReader(tmp_path, 4)
    reader.refresh()
    seen, idle = reader.snapshot(), np.array([0.1, 0.2, 0.0, 0.3])
    split, means = analysis.split_waiting(seen, idle), analysis.rank_phases(seen, None, idle)
    for found, parted in (
        (means.phase_s, split.occupied_s),
        (means.waiting_s, split.waiting_s),
        (means.bubble_s, split.bubble_s),
    ):
        np.testing.assert_allclose(found, np.nanmean(parted, axis=1), atol=1e-12)
    assert means.total_waiting_s.max() > 0


def test_a_rank_that_says_hello_later_joins_its_group(tmp_path: Path) -> None:
    told(tmp_path, {0: ({"tp": 0}, [{"tp": 1}])})
    reader = RunReader(tmp_path, 2)
    reader.refresh()
    before = reader.snapshot()
    told(tmp_path, {0: ({"tp": 0}, [{"tp": 1}]), 1: ({"tp": 1}, [{"tp": 2}])})
    reader.refresh()
    assert before.ranks.groups("tp") == [[0]]
    assert reader.snapshot().ranks.groups("tp") == [[0, 1]]
    assert reader.snapshot().ranks is reader.snapshot().ranks, "nobody said hello in between"


def test_a_step_that_only_some_ranks_have_finished_leaves_the_others_means_as_they_are(tmp_path: Path) -> None:
    seen = told(tmp_path, {0: ({}, [{"forward": 2}, {"forward": 4}]), 1: ({}, [{"forward": 3}])})
    forward = analysis.rank_phases(seen).phase_s[:, PHASES.index("forward")]
    assert forward.tolist() == [3.0, 3.0]
    assert analysis.step_band(seen).median_s.tolist() == [10.0, 10.0]
    assert analysis.own_work_ratio(seen)[:, 1].tolist()[0] == 1.0
