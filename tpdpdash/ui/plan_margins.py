"""What a layout loses against the best one, and where: in words, as far as the model can tell layouts apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cost.comparison import tie_frac
from tpdpdash.cost.figures import TIME_PARTS
from tpdpdash.search.margins import Margin, margins
from tpdpdash.search.ranking import NEAR_FRAC
from tpdpdash.text import t
from tpdpdash.units import format_count, format_difference, format_share

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.cost.estimate import Estimates

PARTS_TOLD = 3
LEAST_FRAC = 0.0005
"""Differences below a twentieth of a per cent of the step are not told."""


def tie_of(ranked: Estimates) -> float | None:
    """Layouts whose steps differ by a smaller share are not told apart; None where no error is known."""
    return tie_frac() if np.isfinite(ranked.error_frac[0]) else None


def against_best(each: Margin, tie: float | None) -> str:
    """The column: "best", "− 0.5 % tie", "− 31 %" of the best's speed."""
    if not each.step_frac and not each.where:
        return t("best")
    told = format_difference(each.speed_frac)
    return t("{difference} tie", difference=told) if tie is not None and abs(each.step_frac) <= tie else told


def where(each: Margin, best_s: float) -> str:
    """Where it loses, the largest differences first, as shares of the best's step: bubble + 1.4 %, TP + 0.7 %."""
    shares = {name: getattr(each.time, name) / best_s for name in TIME_PARTS}
    told = sorted((name for name in TIME_PARTS if abs(shares[name]) >= LEAST_FRAC), key=lambda name: -abs(shares[name]))
    return ", ".join(f"{_part_word(name)} {format_difference(shares[name])}" for name in told[:PARTS_TOLD])


def _part_word(name: str) -> str:
    kind = name.removesuffix("_s")
    return kind.upper() if kind in ("tp", "cp", "ep", "pp", "dp") else t(kind)


def simplest_sentence(near: int) -> str:
    """Why the pick need not be the fastest. near: layouts that are near-equal to that, with it."""
    share = format_share(NEAR_FRAC)
    return t(
        "It is the simplest of {count} layouts within {share} of the fastest.", count=format_count(near), share=share
    )


def runner_up_sentence(ranked: Estimates, rows: NDArray[np.intp], name: str) -> str:
    """By how much other degrees are slower than the pick and where, and whether estimates can tell. rows: of the pick
    and of the other; name: the other's."""
    second = margins(ranked, rows.tolist())[1]
    slower = format_difference(second.step_frac)
    word = t("{by} faster a step") if second.step_frac < 0 else t("{by} slower a step")
    told = t("as fast") if slower == "0 %" else word.format(by=format_share(abs(second.step_frac)))
    lost = where(second, float(ranked.step_s[int(rows[0])]))
    runner = t("The runner-up, {degrees}, is {told}", degrees=name, told=f"{told} ({lost})." if lost else f"{told}.")
    tie = tie_of(ranked)
    if tie is None or abs(second.step_frac) > tie:
        return runner
    return (
        f"{runner} {t('That is closer than layouts can be told apart, ± {share}: try both.', share=format_share(tie))}"
    )
