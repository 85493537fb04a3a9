"""Verdicts of made telemetry: what bounds a run, in figures and in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_telemetry import STEP, beat, made, places, slowed

from tpdpdash.compare.run_plan import BetterLayout
from tpdpdash.compare.verdict import BOUNDS, Verdict, judge
from tpdpdash.compare.verdict_words import BOUND_TEXTS, NEXT_TEXTS, evidence, headline, next_step
from tpdpdash.telemetry.hang import find_hang


def text(verdict: Verdict) -> str:
    return " ".join((headline(verdict), evidence(verdict), next_step(verdict)))


@pytest.mark.parametrize(
    ("phase_s", "code"),
    [
        ({}, "compute"),
        ({"data": 0.5}, "input"),
        ({"tp": 0.5}, "tp"),
        ({"cp": 0.5}, "cp"),
        ({"ep": 0.5}, "ep"),
        ({"pp": 0.5}, "pp"),
        ({"dp": 0.5}, "dp"),
        ({"other": 0.5}, "unmeasured"),
        ({"data": 0.15, "dp": 0.2}, "compute"),
        ({"data": 0.4, "dp": 0.6}, "dp"),
    ],
)
def test_a_run_is_bound_by_the_largest_part_beside_compute_once_it_matters(
    phase_s: dict[str, float], code: str
) -> None:
    verdict = judge(made(places(tp=2, dp=2), noise=0.1, phase_s={**STEP, **phase_s}))
    assert verdict.code == code
    assert verdict.bound is not None
    assert verdict.bound.num_steps == 19  # the first step is not looked at
    assert headline(verdict) == BOUND_TEXTS[code]
    assert next_step(verdict) == NEXT_TEXTS[code]


def test_waiting_is_part_of_what_bounds_a_run_and_is_told_apart() -> None:
    seen = made(places(dp=2), phase_s={**STEP, "dp": 0.3})
    seen.phase_s[0, 1::2, 8] += 0.3  # they wait for each other in turn
    seen.phase_s[1, 0::2, 8] += 0.3
    verdict = judge(seen)
    assert verdict.code == "dp"
    assert verdict.bound is not None
    assert verdict.bound.waiting_s == pytest.approx(0.15, abs=0.01)
    assert "of these 150 ms are waiting for other ranks" in text(verdict).lower()


def test_the_worst_news_comes_first_and_blames_no_layout() -> None:
    seen = made(places(tp=2, dp=2), phase_s={**STEP, "tp": 1.0})
    seen.memory_bytes[3] += 2e7 * np.arange(20)
    assert judge(seen).code == "memory_grows"
    assert "Rank 3's memory grows with every step. It holds" in text(judge(seen))
    for rank in (0, 1):
        slowed(seen, rank, "tp", 0.9)
    assert judge(seen).code == "slow_link"
    assert "The TP group of ranks 0, 1 has a slow link." in text(judge(seen))
    slowed(seen, 2, "data", 0.5)
    assert judge(seen).code == "slow_input"
    slowed(seen, 1, "backward", 0.6)
    verdict = judge(seen)
    assert verdict.code == "slow_rank"
    assert not verdict.wants_layout
    assert "Rank 1 is slow. Since step 2 its own work takes" in text(verdict)
    assert "Slow too: rank 2." in text(verdict)
    now = float(np.nanmax(seen.t + seen.step_s)) + 40
    stuck = {rank: beat(now, phase="forward" if rank == 3 else "dp") for rank in range(4)}
    hung = replace(verdict, hang=find_hang(replace(seen, heartbeats=stuck), now))
    assert hung.code == "hung"
    assert "No step for 40.0 s: rank 3 is in forward and does not go on." in text(hung)
    assert "Its DP group (ranks 1, 3) waits in dp all_reduce." in text(hung)
    assert judge(replace(seen, heartbeats=stuck)).code == "slow_rank"  # a run that is over does not hang


def test_a_layout_of_the_planner_is_what_to_try_next() -> None:
    verdict = judge(made(places(tp=2), phase_s={**STEP, "tp": 1.0}))
    assert verdict.wants_layout
    better = BetterLayout(layout_id="tp1-pp1-dp2", schedule="", saved_frac=0.25)
    assert "expects tp1-pp1-dp2 to take 25.0 % less of a step" in next_step(verdict.with_layout(better))
    assert verdict.with_layout(better).to_json()["try_layout"]["layout_id"] == "tp1-pp1-dp2"


def test_before_the_first_step_nothing_is_said() -> None:
    verdict = judge(made(places(dp=2), steps=0))
    assert (verdict.code, verdict.bound) == ("no_steps", None)
    assert headline(verdict) == "No step has been measured."


def test_every_bound_has_its_words() -> None:
    assert BOUNDS.keys() == BOUND_TEXTS.keys()
    assert BOUNDS.keys() < NEXT_TEXTS.keys()
