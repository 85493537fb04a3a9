"""Whatever stands in the files of a run, Watch has a sentence, figures and tables, and the rollup says the same."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_statuses import own_status

from tpdpdash.charts.heat import noise_floor
from tpdpdash.run.folder import RunFolder, write_json
from tpdpdash.run.ranks import Ranks
from tpdpdash.telemetry.profiling import PROFILE_EVENTS
from tpdpdash.telemetry.reader import RunReader
from tpdpdash.telemetry.record import PHASES, rank_file
from tpdpdash.telemetry.snapshot import Telemetry
from tpdpdash.ui import live, live_tables, watch_metrics, watch_words
from tpdpdash.ui.live import LiveRun, Look

WORLD = 4
NOT_TAKEN = {"skipped_bytes", "restarts", "bad_lines"}
"""What a reader counts of its own way through the files."""


def a_record(draw: random.Random) -> dict[str, Any]:
    """One of any kind; values that are possible, at the edge, and beyond it."""
    kind = draw.choice(("step", "step", "step", "hello", "heartbeat", "event", "timeline"))
    odd = [None, True, "x", -1, 2**70, 1e308, float("nan"), float("inf")]
    amounts = [None, 0, 512, 5e9, 1e17, draw.choice(odd)]
    told: dict[str, Any] = {"kind": kind, "rank": draw.choice([*range(WORLD)] * 5 + [7, -1, "0"])}
    told["t"] = time.time() + draw.choice((0, 0, 0, -1e6, 1e5))
    if kind == "step":
        seconds = {name: draw.random() * draw.choice((0, 1, 1, 1e6)) for name in draw.sample(PHASES, 4)}
        told |= {"step": draw.choice((draw.randrange(30), draw.randrange(10**12), draw.choice(odd)))}
        told |= {"step_s": draw.choice((1.0, draw.random(), 0, 9.9e6, draw.choice(odd)))}
        told |= {"phase_s": draw.choice((seconds, seconds, {}, {"odd": 1.0}, {"forward": draw.choice(odd)}, None))}
        told |= {
            name: draw.choice(amounts) for name in ("loss", "tokens", "memory_bytes", "peak_memory_bytes", "cpu_s")
        }
    elif kind == "hello":
        places = {name: draw.randrange(3) for name in draw.sample(("tp", "dp", "pp", "ep", "edp"), 2)}
        told |= {"pid": draw.choice((1, 2, 2**31 - 1, *odd)), "host": draw.choice(("a", "b", "", "h" * 400))}
        told |= {"world_size": draw.choice((4, 8, 0)), "coords": draw.choice((places, {}, {"pp": 2**19}, None))}
        told |= {"region_cost_s": draw.choice(amounts), "local_rank": draw.choice(amounts), "backend": draw.choice(odd)}
    elif kind == "heartbeat":
        told |= {"step": draw.choice((1, None, 2**60)), "phase": draw.choice(("dp", "<b>", "", None))}
        told |= {"last_collective": draw.choice((None, "dp all_reduce")), "collectives": draw.choice(amounts)}
    elif kind == "event":
        told |= {"name": draw.choice(("importing", "error", "finished", "checkpoint", "x" * 301, *PROFILE_EVENTS))}
        told |= {"step": draw.choice((draw.randrange(30), draw.randrange(10**12), draw.choice(odd)))}
    else:
        told |= {
            "step": 2,
            "actions": draw.choice(([["F", 0, 0, 0.0, 0.1]], [["Z", 2**19, 2**19, 1e6, 1e6]], [], None)),
        }
    return told


def a_line(draw: random.Random) -> bytes:
    """A record as it may stand in a file: whole, torn, run into the next one, after NUL bytes, or no record at all."""
    line = json.dumps({"v": draw.choice([1] * 20 + [2]), **a_record(draw)}).encode() + b"\n"
    damage = draw.random()
    if damage < 0.04:
        return line[: draw.randrange(len(line))]
    if damage < 0.07:
        return line[:-1]
    if damage < 0.1:
        return b"\0" * draw.randrange(200) + line
    return draw.randbytes(50) + b"\n" if damage < 0.12 else line


def tell(draw: random.Random, path: Path) -> None:
    """Some more lines."""
    with path.open("ab") as file:
        file.write(b"".join(a_line(draw) for _ in range(draw.randrange(40))))


@pytest.fixture(autouse=True)
def every_look_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MIN_REFRESH_S", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run under way whose supervisor is this process."""
    run = RunFolder(tmp_path / "run")
    run.make()
    write_json(run.status, own_status(world_size=WORLD).to_json())
    return run


def look_closely(look: Look) -> None:
    """Everything that Watch makes of a look."""
    assert watch_words.sentence(look).text
    watch_words.notes(look, 2)
    json.dumps(look.verdict.to_json(), allow_nan=False)
    if not len(look.telemetry.steps):
        return
    assert watch_metrics.metrics(look)
    excess, phases = look.excess_frac, look.phases(50)
    ranks, infos = live_tables.shown_ranks(excess, None), look.telemetry.ranks
    live_tables.step_time_table(look.band, 50, None)
    live_tables.heat_table(look.telemetry.steps, excess, noise_floor(excess), "light", 1)
    live_tables.phases_table(phases, ranks, infos, "light")
    live_tables.summary_table(phases, ranks, infos)
    live_tables.memory_table(look.telemetry, ranks, "light", (1e9,), None, "")
    live_tables.loss_table(look.telemetry.steps, look.loss)
    for actions in look.telemetry.timelines.values():
        lanes = live_tables.lanes_of(actions, infos, 1)
        live_tables.timeline_table(lanes, live_tables.drawn_span(lanes)[0], infos, "light")


def assert_same(first: Telemetry, second: Telemetry) -> None:
    for name in {each.name for each in fields(Telemetry)} - NOT_TAKEN:
        left, right = getattr(first, name), getattr(second, name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right, err_msg=name)
        else:
            assert repr(left) == repr(right), name  # NaN equals itself here


@pytest.mark.parametrize("seed", range(12))
def test_no_line_stops_a_look_and_the_rollup_says_the_same(folder: RunFolder, seed: int) -> None:
    draw, run, followed = random.Random(seed), LiveRun(folder), Ranks(folder, WORLD)
    for _ in range(4):
        for rank in range(WORLD):
            tell(draw, rank_file(folder.path, rank))
        followed.update()
        look_closely(run.look())
    followed.close_rollup()
    reader = RunReader(folder.path, WORLD)
    reader.refresh()
    assert_same(reader.snapshot(), run.look().told)


@pytest.mark.parametrize("seed", range(6))
def test_files_that_are_cut_and_replaced_stop_no_look(folder: RunFolder, seed: int) -> None:
    draw, run, followed = random.Random(seed), LiveRun(folder), Ranks(folder, WORLD)
    for _ in range(6):
        for rank in range(WORLD):
            path, fate = rank_file(folder.path, rank), draw.random()
            if path.exists() and fate < 0.2:
                os.truncate(path, draw.randrange(path.stat().st_size + 1))
            elif path.exists() and fate < 0.4:
                path.rename(path.with_name(f"old-{path.name}"))
            tell(draw, path)
        followed.update()
        look_closely(run.look())
    assert followed.summary() is not None
