"""Larger, smaller, one or the other: of two numbers or element by element, whichever a formula is handed.

numpy's own functions take numbers too, and need a microsecond or more for each; a single layout is a few hundred of
them. Numbers and arrays give the same figures to the last bit; sums have a fixed order for it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, overload

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.units import Numeric

    Floats = NDArray[np.float64]
    Flag = bool | NDArray[np.bool_]


@overload
def larger(left: float, right: float) -> float: ...
@overload
def larger(left: Floats, right: Numeric) -> Floats: ...
@overload
def larger(left: Numeric, right: Floats) -> Floats: ...
@overload
def larger(left: Numeric, right: Numeric) -> Numeric: ...
def larger(left: Any, right: Any) -> Any:
    """The larger of both; NaN where one of them is."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return np.maximum(left, right)
    return left if left >= right or left != left else right


@overload
def smaller(left: float, right: float) -> float: ...
@overload
def smaller(left: Floats, right: Numeric) -> Floats: ...
@overload
def smaller(left: Numeric, right: Floats) -> Floats: ...
@overload
def smaller(left: Numeric, right: Numeric) -> Numeric: ...
def smaller(left: Any, right: Any) -> Any:
    """The smaller of both; NaN where one of them is."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return np.minimum(left, right)
    return left if left <= right or left != left else right


@overload
def choose(flag: NDArray[np.bool_], yes: Numeric, no: Numeric) -> Floats: ...
@overload
def choose(flag: Flag, yes: Floats, no: Numeric) -> Floats: ...
@overload
def choose(flag: Flag, yes: Numeric, no: Floats) -> Floats: ...
@overload
def choose(flag: Flag, yes: Numeric, no: Numeric) -> Numeric: ...
def choose(flag: Any, yes: Any, no: Any) -> Any:
    """`yes` where the flag holds, else `no`; of the shape that all three have together."""
    if isinstance(flag, np.ndarray):
        return np.where(flag, yes, no)
    chosen, other = (yes, no) if flag else (no, yes)
    if not isinstance(other, np.ndarray):
        return chosen
    if isinstance(chosen, np.ndarray) and chosen.shape == other.shape:
        return chosen
    return np.where(flag, yes, no)


def somewhere(flag: Flag) -> bool:
    """Whether a flag holds in some row."""
    return bool(flag.any()) if isinstance(flag, np.ndarray) else bool(flag)


def added_up(rows: Floats) -> Floats:
    """Sum over the first axis, one after the other: np.sum's order depends on how many rows there are, and with it the
    last bit."""
    return functools.reduce(np.add, rows)


def rounded(value: Numeric, digits: int) -> Numeric:
    """To so many digits behind the point: what np.round does, without its microseconds."""
    scale = 10.0**digits
    return np.rint(value * scale) / scale
