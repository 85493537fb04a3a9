"""Who is slow: what a run's steps jump by anyway stays blank, a slow rank does not."""

from __future__ import annotations

import numpy as np
import pytest

from tpdpdash.charts.heat import noise_floor


def noisy(spread: float) -> np.ndarray:
    """Eight ranks, sixty steps."""
    return np.random.default_rng(7).normal(0, spread, (8, 60))


@pytest.mark.parametrize("spread", [0.01, 0.1, 0.6])
def test_of_a_healthy_run_almost_nothing_stands_out_however_noisy_it_is(spread: float) -> None:
    excess = noisy(spread)
    assert np.mean(excess > noise_floor(excess)) < 0.01


@pytest.mark.parametrize("since", [0, 30])
def test_a_rank_that_is_slow_or_becomes_it_stands_out(since: int) -> None:
    excess = noisy(0.02)
    excess[5, since:] += 0.3
    lit = excess > noise_floor(excess)
    assert lit[5, since:].all()
    assert lit.sum() - lit[5].sum() < 10


def test_without_two_steps_there_is_no_noise() -> None:
    assert noise_floor(np.full((4, 1), np.nan)) == 0.0
