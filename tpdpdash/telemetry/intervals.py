"""Stretches of time on one axis: their union, their difference, and which label holds when. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
Labelled = tuple[float, float, str]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time, each moment once, in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif end > start:
            joined.append((start, end))
    return joined


def difference(of: Sequence[Interval], without: Sequence[Interval]) -> list[Interval]:
    """What of the first lies in none of the second; both are unions."""
    left: list[Interval] = []
    place = 0
    for start, end in of:
        while place < len(without) and without[place][1] <= start:
            place += 1
        at, begun = place, start
        while at < len(without) and without[at][0] < end:
            if without[at][0] > begun:
                left.append((begun, without[at][0]))
            begun = max(begun, without[at][1])
            at += 1
        if begun < end:
            left.append((begun, end))
    return left


def innermost(nested: Iterable[Labelled]) -> list[Labelled]:
    """Of stretches that begin and end inside each other, the innermost one of each moment, in order."""
    found: list[Labelled] = []
    open_: list[Labelled] = []
    at = 0.0

    def until(moment: float) -> None:
        nonlocal at
        while open_ and open_[-1][1] <= moment:
            _, end, label = open_.pop()
            if end > at:
                found.append((at, end, label))
                at = end
        if open_ and moment > at:
            found.append((at, moment, open_[-1][2]))
        at = max(at, moment)

    for stretch in sorted(nested, key=lambda each: (each[0], -each[1])):
        until(stretch[0])
        open_.append(stretch)
    until(float("inf"))
    return found


def overlap(first: Sequence[Labelled], second: Sequence[Labelled]) -> dict[tuple[str, str], float]:
    """How long each pair of labels holds at once. Both are in order, and no moment has two labels of one."""
    lasted: dict[tuple[str, str], float] = {}
    place = 0
    for start, end, label in first:
        while place < len(second) and second[place][1] <= start:
            place += 1
        at = place
        while at < len(second) and second[at][0] < end:
            shared = min(end, second[at][1]) - max(start, second[at][0])
            if shared > 0:
                lasted[label, second[at][2]] = lasted.get((label, second[at][2]), 0.0) + shared
            at += 1
    return lasted
