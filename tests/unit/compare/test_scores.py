"""Scores against values worked out by hand."""

import pytest

from tpdpdash.compare.scores import mean, regret, score, spearman


def test_errors_are_signed_fractions_of_the_measured():
    found = score([1.1, 0.8, 3.0], [1.0, 1.0, 2.0])
    assert found.median_abs_error == pytest.approx(0.2)
    assert found.mean_abs_error == pytest.approx((0.1 + 0.2 + 0.5) / 3)
    assert found.bias == pytest.approx(0.1)


def test_nothing_scores_nothing():
    assert score([], []).median_abs_error is None
    assert mean([None]) is None


def test_rank_correlation_with_ties_and_without_spread():
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert spearman([3, 2, 1], [10, 20, 30]) == pytest.approx(-1)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.8660254)  # ranks 0.5 0.5 2 against 0 1 2
    assert spearman([1, 1], [1, 2]) is None


def test_regret_is_what_the_pick_costs():
    assert regret([2.0, 1.0, 3.0], [4.0, 5.0, 9.0]) == pytest.approx(0.25)
