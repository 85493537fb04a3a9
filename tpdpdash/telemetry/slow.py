"""Who is slow: a rank whose own work is longer than that of its peers, a group whose link is slower than its like.

Own work and not step time: waiting smears a slow rank over its peers, who then look equally slow. A finding stands only
where it holds in nearly every step of a window and is several times larger than what noise makes of a median; the first
step of a run (allocation, connections) is never looked at, and one odd step (a checkpoint) does not make a median.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tpdpdash.telemetry.analysis import OWN_WORK, own_work_s
from tpdpdash.telemetry.record import COLLECTIVE_PHASES, PHASES
from tpdpdash.telemetry.snapshot import Floats, Telemetry

WINDOWS = (8, 20)
"""Last steps that are looked at: a few, so that a rank is named within ten steps, and more, which tell smaller ones."""
MIN_STEPS = 7
"""With fewer, one odd step would name a rank."""
HELD_SHARE = 0.8
"""In so many of the steps it must show: noise changes sides, a slow device does not."""
STEP_SHARE = 0.03
"""Share of the step from which on a difference matters."""
NOISE_FACTOR = 5.0
"""Standard errors of a median that a finding must exceed: it is looked for after every step, in every rank."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal noise: √(π/2)."""
MEAN_SIGMA = 1.2533
"""Standard deviation over the mean absolute deviation, for normal noise: √(π/2)."""

LARGE = 8
"""Among more, the median of all stands for that of the others."""
LOOK_FRAC = 0.05
"""Of many, those are looked at that lie so much above the median in part of the steps."""

Against = Literal["stage", "stages", "past"]
MIN_FRAC: Mapping[Against, float] = {"stage": 0.10, "stages": 1.0, "past": 0.30}
"""Least excess, by what a rank is compared with. Ranks of a stage do the same work; stages are uneven."""
PLANNED_FRAC = 0.5
"""Least excess over other stages where it is known how the stages' work should compare."""
LINK_STEP_SHARE = 0.05
"""Share of the step that a slow group's messages must cost more."""
LINK_FRAC = 0.5
"""Least excess of a group's transfer: ranks that share cores or links differ by tens of percent."""
UNEVEN_LINK_FRAC = 1.0
"""The same for dp against other stages: their gradients are of different sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank whose own work is longer than it should be."""

    rank: int
    """Rank."""
    phase: str
    """The phase that holds most of the excess: data, forward, backward, loss or optimizer."""
    excess_s: float
    """Seconds a step beyond what it is compared with."""
    excess_frac: float
    """The same as a share of it."""
    against: Against
    """Compared with the other ranks of its stage, with the other stages, or with its own earlier steps."""
    since_step: int
    """The first step of the present stretch in which it was slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """A group whose messages take longer than those of its like: a slow link."""

    kind: str
    """tp, cp, ep, pp or dp."""
    ranks: tuple[int, ...]
    """Its ranks."""
    transfer_s: float
    """Seconds a step in its messages, waiting for each other left out."""
    excess_s: float
    """Seconds beyond what it is compared with."""
    excess_frac: float
    """The same as a share of it."""
    against: Against
    """Compared with groups of its kind on the same stage, on other stages, or with its own earlier steps."""


def slow_ranks(telemetry: Telemetry, stage_work: Sequence[float] | None = None) -> list[SlowRank]:
    """Ranks that are slow now, the slowest first.

    `stage_work`: planned own work of each stage, in any unit. A stage that is one rank has no peers: it is compared
    with the other stages, and with its own earlier steps.
    """
    work, stages = own_work_s(telemetry), telemetry.ranks.stages
    read = telemetry.phase_s[:, :, PHASES.index("data")]
    found: dict[int, SlowRank] = {}
    for stage, ranks in stages.items():
        peers, readers = _Peers(work[ranks]), _Peers(read[ranks])
        for place in peers.candidates():
            rank = ranks[place]
            bases = (
                [_Base(against="stage", seconds=peers.without(place), least_frac=MIN_FRAC["stage"])]
                if len(ranks) > 1
                else _bases_of_lone_rank(work, stages, stage, stage_work)
            )
            for base in bases:
                over = _exceeds(telemetry, work[rank], base, STEP_SHARE)
                if over is None and base.against == "stage":  # computing is noisy on shared cores: reading by itself
                    reading = base.seconds + read[rank] - readers.without(place)
                    over = _exceeds(telemetry, reading, base, STEP_SHARE)
                if over is not None and (rank not in found or over.excess_s > found[rank].excess_s):
                    phase = _worst_phase(telemetry, rank, ranks, base.against)
                    found[rank] = SlowRank(rank=rank, phase=phase, excess_s=over.excess_s, excess_frac=over.frac,
                                           against=base.against, since_step=over.since_step)  # fmt: skip
    return sorted(found.values(), key=lambda each: -each.excess_s)


def slow_groups(telemetry: Telemetry, planned_idle_s: Floats | None = None) -> list[SlowGroup]:
    """Groups whose messages are slow now, the slowest first."""
    found = []
    stage = {rank: s for s, ranks in telemetry.ranks.stages.items() for rank in ranks}
    for kind in sorted(COLLECTIVE_PHASES):
        groups = [group for group in telemetry.ranks.groups(kind) if len(group) > 1]
        spent = telemetry.phase_s[:, :, PHASES.index(kind)]
        if kind == "pp" and planned_idle_s is not None:
            spent = np.maximum(spent - planned_idle_s[:, None], 0.0)
        alike: dict[int, list[list[int]]] = {}
        for group in groups:
            alike.setdefault(0 if kind == "pp" else stage[group[0]], []).append(group)
        for of_stage in alike.values():
            chosen = of_stage if len(of_stage) > 1 else groups
            against: Against = "past" if len(chosen) == 1 else "stage" if chosen is of_stage else "stages"
            found += _slow_of(telemetry, kind, spent, of_stage, chosen, against)
    return sorted(found, key=lambda each: -each.excess_s)


def _slow_of(
    telemetry: Telemetry,
    kind: str,
    spent: Floats,
    groups: Sequence[Sequence[int]],
    compared: Sequence[Sequence[int]],
    against: Against,
) -> list[SlowGroup]:
    """Those of `groups` whose transfer exceeds that of the others in `compared`."""
    peers = _Peers(_quickest(spent, compared))
    found = []
    for place in peers.candidates():
        group = compared[place]
        if group not in groups:
            continue
        seconds = peers.values[place]
        others = _past(seconds) if against == "past" else peers.without(place)
        is_uneven = kind == "dp" and against == "stages"
        base = _Base(against=against, seconds=others, least_frac=UNEVEN_LINK_FRAC if is_uneven else LINK_FRAC)
        over = _exceeds(telemetry, seconds, base, LINK_STEP_SHARE)
        if over is not None:
            now_s = float(np.nanmedian(seconds[-WINDOWS[0] :]))
            found.append(SlowGroup(kind=kind, ranks=tuple(group), transfer_s=now_s, excess_s=over.excess_s,
                                   excess_frac=over.frac, against=against))  # fmt: skip
    return found


def _quickest(spent: Floats, groups: Sequence[Sequence[int]]) -> Floats:
    """(G, S) the least seconds of any rank of each group: it waited for nobody."""
    if len({len(group) for group in groups}) == 1:
        return np.asarray(spent[np.array(groups)].min(axis=1))
    return np.array([spent[list(group)].min(axis=0) for group in groups])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """What a rank or group is compared with."""

    against: Against
    seconds: Floats  # (S,)
    least_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Over:
    """How far one lies above its base."""

    excess_s: float
    frac: float
    since_step: int


class _Peers:
    """(n, S) seconds of those that should be alike: each is compared with the median of the others."""

    def __init__(self, values: Floats) -> None:
        self.values = values
        self._is_large = len(values) > LARGE

    @cached_property
    def _middle(self) -> Floats:
        return np.asarray(np.median(self.values, axis=0))

    def without(self, place: int) -> Floats:
        """(S,) median of the others; where they are many, one more does not move it."""
        return self._middle if self._is_large else np.median(np.delete(self.values, place, axis=0), axis=0)

    def candidates(self) -> list[int]:
        """Those that are worth a closer look: of many, the ones that lie above the median at all in the last steps."""
        if not self._is_large:
            return list(range(len(self.values)))
        seen = self.values[:, -WINDOWS[-1] :]
        middle = np.median(seen, axis=0)
        above = np.nan_to_num(seen - middle, nan=0.0) > LOOK_FRAC * np.nan_to_num(middle)
        likely = np.maximum(above.mean(axis=1), above[:, -WINDOWS[0] :].mean(axis=1)) >= HELD_SHARE / 2
        return [int(place) for place in np.flatnonzero(likely)]


def _bases_of_lone_rank(
    work: Floats, stages: Mapping[int, list[int]], own: int, stage_work: Sequence[float] | None
) -> list[_Base]:
    """What the only rank of a stage is compared with: its past, as the others' work grew, and the other stages."""
    others = {stage: np.median(work[ranks], axis=0) for stage, ranks in stages.items() if stage != own}
    if not others:
        return []
    past = _past(work[stages[own][0]])
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.median([seconds / _past(seconds) for seconds in others.values()], axis=0)
    is_planned = stage_work is not None and max(stages) < len(stage_work)
    scale = {s: stage_work[own] / stage_work[s] if is_planned and stage_work is not None else 1.0 for s in others}
    elsewhere = np.median([seconds * scale[s] for s, seconds in others.items()], axis=0)
    least = PLANNED_FRAC if is_planned else MIN_FRAC["stages"]
    return [
        _Base(against="past", seconds=past * np.maximum(change, 1.0), least_frac=MIN_FRAC["past"]),
        _Base(against="stages", seconds=elsewhere, least_frac=least),
    ]


def _past(seconds: Floats) -> Floats:
    """(S,) the median of what was measured before the last window, for every step; NaN before there is enough."""
    before = seconds[1 : -WINDOWS[0]]
    known = before[np.isfinite(before)]
    return np.full(len(seconds), np.median(known) if len(known) >= MIN_STEPS else np.nan)


def _exceeds(telemetry: Telemetry, seconds: Floats, base: _Base, step_share: float) -> _Over | None:
    """How far `seconds` (S,) lie above the base, where they do beyond doubt in any window."""
    first = int(telemetry.dropped_steps == 0)  # the first step of a run tells nothing
    recent = slice(max(first, len(seconds) - WINDOWS[-1]), None)
    now, under, step_s = seconds[recent], base.seconds[recent], telemetry.step_s[:, recent]
    known = (under > 0) & (now > 0)
    now, under = now[known], under[known]
    ratio, over = np.log(now / under), now - under  # noise may be a factor, or seconds that other processes take
    least = np.log1p(base.least_frac)
    for window in WINDOWS:
        seen = ratio[-window:]
        if len(seen) < MIN_STEPS or np.mean(seen > least) < HELD_SHARE:
            continue
        middle, excess_s = float(np.median(seen)), float(np.median(over[-window:]))
        is_certain = _is_beyond_noise(ratio, window) or _is_beyond_noise(over, window)
        if middle > least and is_certain and excess_s > step_share * float(np.nanmedian(step_s[:, -window:])):
            since = _since(telemetry, seconds > (1 + base.least_frac) * base.seconds, first)
            return _Over(excess_s=excess_s, frac=float(np.expm1(middle)), since_step=since)
    return None


def _is_beyond_noise(values: Floats, window: int) -> bool:
    """Whether the median of the window's values is several times what noise makes of it.

    Noise is a step's deviation in the window, or from step to step (which a rank that gets slower moves only once).
    """
    seen = values[-window:]
    middle = float(np.median(seen))
    around = np.abs(seen - middle).mean()
    from_step_to_step = np.abs(np.diff(values)).mean() / np.sqrt(2)
    noise = MEAN_SIGMA * float(max(around, from_step_to_step))
    return middle > NOISE_FACTOR * MEDIAN_ERROR * noise / math.sqrt(len(seen))


def _since(telemetry: Telemetry, is_above: NDArray[np.bool_], first: int) -> int:
    """The first step of the last stretch above; a single quiet step does not end it."""
    start = len(is_above) - 1
    for i in range(len(is_above) - 1, first - 1, -1):
        if not is_above[max(first, i - 1) : i + 1].any():
            break
        start = i if is_above[i] else start
    return int(telemetry.steps[start])


def _worst_phase(telemetry: Telemetry, rank: int, stage: Sequence[int], against: Against) -> str:
    """The phase of own work that grew most: against the rank's peers, its past, or the other stages."""
    window = slice(-WINDOWS[0], None)
    peers = [other for other in (stage if against == "stage" else telemetry.ranks) if other != rank]
    excess = {}
    for name in OWN_WORK:
        spent = telemetry.phase_s[:, :, PHASES.index(name)]
        usual = _past(spent[rank]) if against == "past" else np.median(spent[peers], axis=0)
        grown = (spent[rank] - usual)[window]
        excess[name] = float(np.nanmedian(grown)) if np.isfinite(grown).any() else -np.inf
    return max(excess, key=lambda name: excess[name])
