"""A run that several viewers watch: what one look gives is made once for all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_statuses import own_status

from tpdpdash.run.folder import RunFolder, write_json
from tpdpdash.telemetry import analysis
from tpdpdash.telemetry.record import PHASES, RecordWriter, rank_file
from tpdpdash.ui import live
from tpdpdash.ui.live import LiveRun


def told(folder: RunFolder, steps: range) -> None:
    """Two ranks tell these steps."""
    for rank in range(2):
        writer = RecordWriter(rank_file(folder.path, rank), rank)
        for step in steps:
            writer.write("step", {"step": step, "step_s": 1.0 + rank, "phase_s": dict.fromkeys(PHASES[:3], 0.25)})
        writer.close()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of two ranks whose supervisor is this process."""
    run = RunFolder(tmp_path / "run")
    run.make()
    write_json(run.status, own_status(world_size=2).to_json())
    told(run, range(1, 5))
    return run


def test_a_second_viewer_makes_no_figure_anew(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int | None] = []
    rank_phases = analysis.rank_phases
    monkeypatch.setattr(analysis, "rank_phases", lambda *args: (made.append(args[1]), rank_phases(*args))[1])
    run = LiveRun(folder)
    first, second = run.look(), run.look()
    assert first.phases(3) is second.phases(3)
    assert first.phases(None) is second.phases(200), "no more steps are kept"
    assert first.band is second.band
    assert made == [3, 4]


def test_news_make_all_figures_anew_and_leave_the_former_look_as_it_was(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MIN_REFRESH_S", 0.0)
    run = LiveRun(folder)
    former = run.look()
    assert former.band.max_s.tolist() == [2.0] * 4
    told(folder, range(5, 7))
    latter = run.look()
    assert latter.version == former.version + 1
    assert latter.band.max_s.tolist() == [2.0] * 6
    assert latter.phases(None).num_steps == 6
    assert former.phases(None).num_steps == 4
    np.testing.assert_array_equal(former.telemetry.steps, [1, 2, 3, 4])


def test_a_look_without_news_keeps_what_was_made(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MIN_REFRESH_S", 0.0)
    run = LiveRun(folder)
    assert run.look().excess_frac is run.look().excess_frac


def test_what_lasts_is_made_once_and_only_so_much_of_it_is_kept() -> None:
    made: list[int] = []
    lasting = live.Shared(2)
    for key in (1, 1, 2, 3, 3, 1):
        assert lasting.once(key, lambda key=key: (made.append(key), key)[1]) == key
    assert made == [1, 2, 3, 1]
