"""Stretches of time: union, difference, the innermost one, and overlap, against a count of moments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tpdpdash.telemetry.intervals import difference, innermost, overlap, union

BEGUN_AND_LASTED = st.tuples(st.integers(0, 40), st.integers(0, 12))
INTERVALS = st.lists(BEGUN_AND_LASTED.map(lambda drawn: (float(drawn[0]), float(sum(drawn)))), max_size=8)


def moments(intervals: list[tuple[float, float]]) -> set[int]:
    """The unit stretches that they hold."""
    return {at for start, end in intervals for at in range(int(start), int(end))}


@given(INTERVALS, INTERVALS)
def test_union_and_difference_hold_the_moments_that_they_should(first: list, second: list) -> None:
    joined, other = union(first), union(second)
    assert moments(joined) == moments(first)
    assert sum(end - start for start, end in joined) == len(moments(first))
    left = difference(joined, other)
    assert moments(left) == moments(first) - moments(second)
    assert sum(end - start for start, end in left) == len(moments(left))


def test_the_innermost_of_nested_stretches_holds() -> None:
    nested = [(0.0, 10.0, "a"), (2.0, 6.0, "b"), (3.0, 4.0, "c"), (6.0, 8.0, "d"), (12.0, 13.0, "e")]
    assert innermost(nested) == [
        (0.0, 2.0, "a"), (2.0, 3.0, "b"), (3.0, 4.0, "c"), (4.0, 6.0, "b"), (6.0, 8.0, "d"), (8.0, 10.0, "a"),
        (12.0, 13.0, "e"),
    ]  # fmt: skip


@given(INTERVALS, INTERVALS)
def test_overlap_counts_the_moments_that_both_hold(first: list, second: list) -> None:
    one = [(start, end, str(i % 2)) for i, (start, end) in enumerate(union(first))]
    two = [(start, end, "x") for start, end in union(second)]
    lasted = overlap(one, two)
    assert sum(lasted.values()) == len(moments(first) & moments(second))
