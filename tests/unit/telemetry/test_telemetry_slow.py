"""Who is slow: named within ten steps and nobody else; noise, uneven stages, first and checkpoint steps name nobody."""

from __future__ import annotations

import pytest
from made_telemetry import STEP, made, places, slowed, up_to

from tpdpdash.telemetry.record import PHASES
from tpdpdash.telemetry.slow import MIN_STEPS, slow_groups, slow_ranks
from tpdpdash.telemetry.snapshot import Telemetry


def named(telemetry: Telemetry, *, stage_work: tuple[float, ...] | None = None) -> list[tuple[int, str]]:
    return [(slow.rank, slow.phase) for slow in slow_ranks(telemetry, stage_work)]


@pytest.mark.parametrize("degrees", [{"dp": 2}, {"tp": 2}, {"tp": 2, "dp": 2}, {"tp": 2, "pp": 2}, {"dp": 4}])
@pytest.mark.parametrize("phase", ["backward", "data", "optimizer"])
def test_200_ms_more_on_one_rank_names_it_and_its_phase_within_ten_steps(degrees: dict[str, int], phase: str) -> None:
    seen = made(places(**degrees), steps=30, noise=0.05)
    slowed(seen, 1, phase, 0.2, first=21)
    assert named(seen) == [(1, phase)]
    (slow,) = slow_ranks(seen)
    assert slow.against == "stage"
    assert slow.excess_s == pytest.approx(0.2, abs=0.08)
    assert abs(slow.since_step - 21) <= 2


def test_a_lone_rank_of_a_stage_is_told_by_its_past_and_its_stage_is_not_blamed_for_being_longer() -> None:
    """Stage 1 has half as much work again; then rank 0 takes 400 ms more."""
    seen = made(places(pp=2), steps=30, noise=0.03)
    slowed(seen, 1, "forward", 0.45)
    assert named(seen) == []
    slowed(seen, 0, "backward", 0.4, first=21)
    assert named(seen) == [(0, "backward")]
    assert slow_ranks(seen)[0].against == "past"


def test_when_a_slow_stage_recovers_the_others_are_not_called_slow() -> None:
    seen = made(places(pp=2), steps=30, noise=0.03)
    slowed(seen, 0, "backward", 0.8, first=1, last=12)
    for steps in range(13, 30):
        assert named(up_to(seen, steps), stage_work=(1.0, 1.0)) in ([], [(0, "backward")])
    assert named(seen, stage_work=(1.0, 1.0)) == []


def test_a_lone_rank_that_was_slow_from_the_start_is_told_by_the_planned_work_of_the_stages() -> None:
    seen = made(places(pp=2), steps=9, noise=0.03)
    slowed(seen, 1, "backward", 0.7)
    assert named(seen) == []  # 1.7 times the work may be the stage's own
    assert named(seen, stage_work=(1.0, 1.0)) == [(1, "backward")]
    assert named(seen, stage_work=(1.0, 1.7)) == []
    slowed(seen, 1, "backward", 0.7)
    assert named(seen) == [(1, "backward")]
    assert slow_ranks(seen)[0].against == "stages"


@pytest.mark.parametrize("degrees", [{"dp": 2}, {"dp": 8}, {"tp": 2, "dp": 2, "pp": 2}, {"pp": 4}, {"dp": 32}])
def test_noise_of_20_percent_names_nobody_at_any_step(degrees: dict[str, int]) -> None:
    for seed in range(5):
        for steps in range(MIN_STEPS, 40, 3):
            seen = made(places(**degrees), steps=steps, noise=0.2, seed=seed)
            assert named(seen) == [], (seed, steps)
            assert slow_groups(seen) == [], (seed, steps)


def test_slow_reading_is_told_where_computing_is_too_noisy_to_tell_anything() -> None:
    seen = made(places(dp=2), steps=30, noise=0.6, seed=3)
    slowed(seen, 1, "backward", 0.2, first=21)
    assert named(seen) == []
    slowed(seen, 0, "data", 0.3, first=21)
    assert named(seen) == [(0, "data")]


def test_a_first_step_and_a_checkpoint_step_name_nobody() -> None:
    seen = made(places(dp=2), steps=20, noise=0.02)
    slowed(seen, 0, "forward", 30.0, last=1)
    slowed(seen, 0, "other", 5.0, first=10, last=10)
    slowed(seen, 0, "optimizer", 5.0, first=15, last=15)
    assert named(seen) == []


def test_what_does_not_matter_to_the_step_names_nobody() -> None:
    """A tenth more of a work that is a tenth of the step."""
    seen = made(places(dp=2), phase_s={**STEP, "dp": 20.0})
    slowed(seen, 1, "backward", 0.2)
    assert named(seen) == []


def test_a_machine_that_gets_slower_as_a_whole_names_nobody() -> None:
    seen = made(places(pp=4), steps=30, noise=0.03)
    seen.phase_s[:, 20:] *= 2
    assert named(seen) == []


def test_among_many_ranks_the_slow_ones_are_found_slowest_first() -> None:
    seen = made(places(tp=4, dp=16), noise=0.1)
    slowed(seen, 7, "backward", 0.3)
    slowed(seen, 40, "forward", 0.6)
    assert named(seen) == [(40, "forward"), (7, "backward")]


def test_a_throttled_group_is_named_by_its_kind_and_ranks() -> None:
    seen = made(places(tp=2, dp=2), noise=0.1)
    for rank in (2, 3):
        slowed(seen, rank, "tp", 0.2)
    (slow,) = slow_groups(seen)
    assert (slow.kind, slow.ranks, slow.against) == ("tp", (2, 3), "stage")
    assert slow.excess_s == pytest.approx(0.2, abs=0.05)
    assert named(seen) == []


def test_the_only_group_of_its_kind_is_compared_with_its_past() -> None:
    seen = made(places(dp=2), steps=30, noise=0.1)
    assert slow_groups(seen) == []
    for rank in (0, 1):
        slowed(seen, rank, "dp", 0.3, first=21)
    (slow,) = slow_groups(seen)
    assert (slow.kind, slow.ranks, slow.against) == ("dp", (0, 1), "past")


def test_peers_that_wait_for_a_slow_rank_are_no_slow_group() -> None:
    seen = made(places(tp=2, dp=2))
    slowed(seen, 0, "backward", 0.5)
    seen.phase_s[1, :, PHASES.index("tp")] += 0.5
    seen.phase_s[2:, :, PHASES.index("dp")] += 0.5
    assert slow_groups(seen) == []
    assert named(seen) == [(0, "backward")]
