"""How good a set of predictions is: absolute errors, rank correlation, regret of the pick."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of one set. Every figure is None where the set is empty."""

    n: int
    """Predictions that were measured."""
    median_abs_error: float | None
    """Median of |predicted / measured − 1|."""
    mean_abs_error: float | None
    """Mean of the same."""
    bias: float | None
    """Median of predicted / measured − 1: its sign says who is too slow."""
    spearman: float | None
    """Rank correlation of predicted and measured; None below two distinct values."""


def score(predicted: Sequence[float], measured: Sequence[float]) -> Score:
    """The score of pairs of predicted and measured values, both above 0."""
    if not predicted:
        return Score(n=0, median_abs_error=None, mean_abs_error=None, bias=None, spearman=None)
    errors = np.asarray(predicted, np.float64) / np.asarray(measured, np.float64) - 1
    sizes = np.abs(errors)
    return Score(
        n=len(sizes),
        median_abs_error=float(np.median(sizes)),
        mean_abs_error=float(sizes.mean()),
        bias=float(np.median(errors)),
        spearman=spearman(predicted, measured),
    )


def ranks(values: Sequence[float]) -> Floats:
    """Ranks from 0, equal values at the mean of theirs."""
    array = np.asarray(values, np.float64)
    ordered = np.sort(array)
    return np.asarray((np.searchsorted(ordered, array) + np.searchsorted(ordered, array, side="right") - 1) / 2)


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Correlation of the ranks; None where one side has fewer than two distinct values."""
    ra, rb = ranks(a), ranks(b)
    ra, rb = ra - ra.mean(), rb - rb.mean()
    size = float(np.sqrt((ra**2).sum() * (rb**2).sum()))
    return float((ra * rb).sum() / size) if size else None


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """How much slower the pick is than the best: measured time of the row with the least predicted, over the least
    measured, − 1."""
    return measured[int(np.argmin(predicted))] / min(measured) - 1


def by_key(items: Iterable[T], key: Callable[[T], Hashable]) -> dict[Hashable, list[T]]:
    """Items in groups, groups in the order in which they first occur."""
    groups: dict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of those that are known; None of nothing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
