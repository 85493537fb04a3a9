"""Closed forms of the schedules whose backward is cut in two: each rank's work before its first and up to its last pass
of every leg, counted from the lists of split_actions.py, for the longest path through them.

Arrays are (n, ranks); p = ranks (n, 1), m = microbatches (n, 1), s = rank (1, ranks). F0, F1, I0 … are passes of the
two chunks: forward, input gradient, weight gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.schedule.paths import Leg, longest_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkSeconds:
    """One microbatch through one chunk on each rank [s], (n, ranks); 0 where there is no rank."""

    forward_s: Floats
    """Forward."""
    input_gradient_s: Floats
    """What the rank before waits for."""
    weight_gradient_s: Floats
    """What can wait."""

    @property
    def total_s(self) -> Floats:
        """All three."""
        return self.forward_s + self.input_gradient_s + self.weight_gradient_s

    def rows(self, index: Flags) -> ChunkSeconds:
        """Some layouts."""
        return self._changed(lambda seconds: seconds[index])

    def where(self, exists: Flags) -> ChunkSeconds:
        """Nothing on other ranks."""
        return self._changed(lambda seconds: np.where(exists, seconds, 0.0))

    def times(self, factor: float) -> ChunkSeconds:
        """A share of every part."""
        return self._changed(lambda seconds: seconds * factor)

    def less(self, other: ChunkSeconds) -> ChunkSeconds:
        """What is left without another chunk."""
        return ChunkSeconds(
            forward_s=self.forward_s - other.forward_s,
            input_gradient_s=self.input_gradient_s - other.input_gradient_s,
            weight_gradient_s=self.weight_gradient_s - other.weight_gradient_s,
        )

    def _changed(self, change: Callable[[Floats], Floats]) -> ChunkSeconds:
        return ChunkSeconds(
            forward_s=change(self.forward_s),
            input_gradient_s=change(self.input_gradient_s),
            weight_gradient_s=change(self.weight_gradient_s),
        )


def zero_bubble_seconds(each: ChunkSeconds, pp: Floats, m: Floats, depth: Floats, *, skewed: Flags) -> Floats:
    """ZB-H1 (depth 1) and ZB-H2 (depth 2), (n,). Even stages with w ≤ f, i: m (f + i + w) + (p − 1)(f + i − w), from
    step to step m (f + i + w) + (p − 1) max(f + i − 2 w, 0): arXiv:2401.10241 table 1."""
    f, i, w = each.forward_s, each.input_gradient_s, each.weight_gradient_s
    p, m, s, exists = _axes(f, pp, m)
    ahead, behind = np.minimum(depth[:, None] * np.maximum(p - 1 - s, 0), m), depth[:, None] * s
    turns = np.maximum(m - 1 - ahead, 0)
    forwards = Leg(
        rises=True,
        before_s=np.zeros_like(f),
        first_s=f,
        last_s=f,
        through_s=m * f + turns * i + np.maximum(turns - behind, 0) * w,
    )
    gradients = Leg(
        rises=False,
        before_s=np.minimum(ahead + 1, m) * f,
        first_s=i,
        last_s=i,
        through_s=m * (f + i) + np.maximum(m - 1 - behind, 0) * w,
    )
    return longest_path([forwards, gradients], m * each.total_s, exists, skewed=skewed)


def _axes(seconds: Floats, pp: Floats, m: Floats) -> tuple[Floats, Floats, Floats, Flags]:
    """(p, m, s, which ranks exist), to meet (n, ranks)."""
    s = np.arange(seconds.shape[1], dtype=np.float64)[None, :]
    p = pp[:, None]
    return p, m[:, None], s, s < p


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Fold:
    """Two chunks of every rank, and work as numbers of passes."""

    one: ChunkSeconds
    two: ChunkSeconds
    m: Floats

    def work(
        self,
        *,
        f0: Floats | float = 0.0,
        f1: Floats | float = 0.0,
        i0: Floats | float = 0.0,
        i1: Floats | float = 0.0,
        w0: Floats | float = 0.0,
        w1: Floats | float = 0.0,
    ) -> Floats:
        """Seconds of so many passes; never more than there are microbatches."""
        counts = [np.minimum(count, self.m) for count in (f0, f1, i0, i1, w0, w1)]
        forward = counts[0] * self.one.forward_s + counts[1] * self.two.forward_s
        inputs = counts[2] * self.one.input_gradient_s + counts[3] * self.two.input_gradient_s
        weights = counts[4] * self.one.weight_gradient_s + counts[5] * self.two.weight_gradient_s
        return np.asarray(forward + inputs + weights)

    @property
    def total_s(self) -> Floats:
        """A rank's work in the step."""
        return self.m * (self.one.total_s + self.two.total_s)


def zb_v_seconds(one: ChunkSeconds, two: ChunkSeconds, pp: Floats, m: Floats, *, skewed: Flags) -> Floats:
    """ZB-V, (n,): no bubble from step to step where f = i = w and chunks are equal (arXiv:2405.15362)."""
    p, m, s, exists = _axes(one.forward_s, pp, m)
    fold = _Fold(one=one, two=two, m=m)
    legs = [
        _zb_v_forward_0(fold, p, s),
        _zb_v_forward_1(fold, p, s),
        _zb_v_gradient_1(fold, p, s),
        _zb_v_gradient_0(fold, p, s),
    ]
    return longest_path(legs, fold.total_s, exists, skewed=skewed)


def _zb_v_forward_0(fold: _Fold, p: Floats, s: Floats) -> Leg:
    """Forwards of chunk 0: 2(p − s) − 1 at once, s in turn with F1, the rest each before I0 W0 F1 I1 W1."""
    left, last, f = p - s, fold.m - 1, fold.one.forward_s
    turn = np.maximum(last - (2 * p - 1 - s), 0)
    steady = last >= 2 * p - 1 - s
    alone = np.maximum(last - 2 * left + 2, 0)
    through = np.where(
        steady,
        fold.work(f0=fold.m, f1=p + turn, i0=turn, w0=turn, i1=left + turn, w1=left + turn),
        fold.work(f0=fold.m, f1=alone),
    )
    return Leg(rises=True, before_s=np.zeros_like(f), first_s=f, last_s=f, through_s=through)


def _zb_v_forward_1(fold: _Fold, p: Floats, s: Floats) -> Leg:
    """Forwards of chunk 1: s in turn with F0, p − s each before I1 W1, the rest in the steady turns."""
    left, last, f = p - s, fold.m - 1, fold.two.forward_s
    turn, own = np.maximum(last - p, 0), np.maximum(last - s, 0)
    filling = fold.work(f0=2 * left - 1 + np.minimum(last, s), f1=fold.m, i1=own, w1=own)
    steady = fold.work(f0=2 * p - s + turn, f1=fold.m, i0=turn + 1, w0=turn + 1, i1=left + turn, w1=left + turn)
    through = np.where(last >= p, steady, filling)
    return Leg(rises=False, before_s=fold.work(f0=2 * left - 1), first_s=f, last_s=f, through_s=through)


def _zb_v_gradient_1(fold: _Fold, p: Floats, s: Floats) -> Leg:
    """Input gradients of chunk 1: the first after 2p − 1 − s F0 and s + 1 F1; the last s in turn with I0."""
    left, last, i, m = p - s, fold.m - 1, fold.two.input_gradient_s, fold.m
    laid_out = np.maximum(2 * p - 1, m)
    turn, drain = np.maximum(last - left, 0), np.maximum(last - (laid_out - s), 0)
    filling = fold.work(f0=2 * p - 1 - s, f1=last + s + 1, i1=m, w1=last)
    steady = fold.work(f0=2 * p - s + turn, f1=p + turn + 1, i0=turn + 1, w0=turn + 1, i1=m, w1=last)
    draining = fold.work(f0=m, f1=m, i0=laid_out - p + drain + 1, w0=laid_out - p, i1=m, w1=laid_out - s)
    through = np.where(last < left, filling, np.where(last < laid_out - s, steady, draining))
    before = fold.work(f0=2 * p - 1 - s, f1=s + 1)
    return Leg(rises=True, before_s=before, first_s=i, last_s=i, through_s=through)


def _zb_v_gradient_0(fold: _Fold, p: Floats, s: Floats) -> Leg:
    """Input gradients of chunk 0: from the first steady turn on; s in turn with I1, the last p − s in turn with W0."""
    left, last, i, m = p - s, fold.m - 1, fold.one.input_gradient_s, fold.m
    laid_out = np.maximum(2 * p - 1, m)
    drain, tail = last - (laid_out - p), np.maximum(last - (laid_out - left), 0)
    steady = fold.work(f0=2 * p - s + last, f1=p + last, i0=m, w0=last, i1=left + last, w1=left + last)
    i1 = np.minimum(laid_out - s + np.maximum(drain, 0), laid_out)
    draining = fold.work(f0=m, f1=m, i0=m, w0=laid_out - p + tail, i1=i1, w1=laid_out - s)
    through = np.where(last < laid_out - p, steady, draining)
    before = fold.work(f0=2 * p - s, f1=p, i1=left, w1=left)
    return Leg(rises=False, before_s=before, first_s=i, last_s=i, through_s=through)


def dualpipe_v_seconds(one: ChunkSeconds, two: ChunkSeconds, pp: Floats, m: Floats) -> Floats:
    """DualPipe-V of m ≥ 2p microbatches over the first pp ranks, (n,). Even chunks with w ≤ f, i: m (f + i + w) of both
    chunks and (p − 1)(f + i) of both besides. A pair is as long as its two passes; what it hides is taken off them
    before."""
    p, m, s, exists = _axes(one.forward_s, pp, m)
    fold = _Fold(one=one.where(exists), two=two.where(exists), m=m)
    after, turns = np.maximum(p - 1 - s, 0), m - 2 * p + s + 1
    legs = [*_dualpipe_forwards(fold, after, turns, s), *_dualpipe_gradients(fold, after, turns, s)]
    return longest_path(legs, fold.total_s, exists, skewed=np.zeros(len(pp), np.bool_))


def _dualpipe_forwards(fold: _Fold, after: Floats, turns: Floats, s: Floats) -> list[Leg]:
    """F0: the last one is paired with a backward of chunk 1 (not so where it is the middle's first turn). F1: the last
    one is paired with a backward of chunk 0."""
    one, two, m = fold.one, fold.two, fold.m
    paired = np.where((after == 0) & (turns == 1), 0.0, 1.0)
    whole = two.input_gradient_s + two.weight_gradient_s
    first = Leg(
        rises=True,
        before_s=np.zeros_like(one.forward_s),
        first_s=one.forward_s,
        last_s=one.forward_s + paired * whole,
        through_s=fold.work(
            f0=m, f1=s + after + turns, i0=turns - 1, w0=turns - 1,
            i1=after + turns - 1 + paired, w1=after + turns - 1 + paired,
        ),
    )  # fmt: skip
    done = turns + after
    second = Leg(
        rises=False,
        before_s=fold.work(f0=2 * after + 1),
        first_s=two.forward_s,
        last_s=two.forward_s + one.input_gradient_s + one.weight_gradient_s,
        through_s=fold.work(f0=m, f1=m, i0=done, w0=done, i1=done + after, w1=done + after),
    )
    return [first, second]


def _dualpipe_gradients(fold: _Fold, after: Floats, turns: Floats, s: Floats) -> list[Leg]:
    """Backwards of chunk 1 and of chunk 0. Of the 2 s + 2 that follow the pairs the later half leave their weight
    gradients; `after` more of chunk 0 come in turn with those that wait, the oldest first."""
    one, two, m = fold.one, fold.two, fold.m
    middle, done = after == 0, turns + after
    kept_0, waiting_1 = np.floor((s + 1) / 2), s - np.floor(s / 2)
    second = Leg(
        rises=True,
        before_s=fold.work(f0=2 * after + s + 1 + middle, f1=s + 1),
        first_s=two.input_gradient_s + np.where(middle, two.weight_gradient_s, 0.0),
        last_s=two.input_gradient_s + np.where(s == 0, two.weight_gradient_s, 0.0),
        through_s=fold.work(f0=m, f1=m, i0=done + s, w0=done + kept_0, i1=m, w1=m - waiting_1),
    )
    from_pairs = np.minimum(after, s + 1)
    of_1 = np.floor((from_pairs + s % 2) / 2)
    first = Leg(
        rises=False,
        before_s=fold.work(f0=2 * after + s + 2, f1=s + 1 + after, i1=after + 1, w1=after + 1),
        first_s=two.forward_s + one.input_gradient_s + one.weight_gradient_s,
        last_s=one.input_gradient_s,
        through_s=fold.work(
            f0=m, f1=m, i0=m, w0=done + kept_0 + after - of_1, i1=m, w1=m - waiting_1 + of_1
        ),
    )  # fmt: skip
    return [second, first]
