"""Array types of the cost formulas, and the two steps between a row per layout and a row per layout and stage.

Where one layout alone is priced, what is declared as an array (n,) of figures or flags is numpy's plain number
(LayoutColumns.plain): the same formulas, at a tenth of an array's price. Arrays (n, stages) are arrays then too.

Arrays (n, stages) lie in memory stage by stage (Fortran order, which numpy's operators keep): stages are few, so that a
loop over the rows of one stage runs at the processor's speed, and one over the stages of each row at a quarter of it.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from tpdpdash.units import Numeric

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Flag: TypeAlias = bool | Flags
"""A flag, or one for each layout."""
Code: TypeAlias = int | NDArray[np.uint8]
"""An index into a legend, or one for each layout."""


Kind = TypeVar("Kind", bound=np.generic)


def column(values: NDArray[Kind]) -> NDArray[Kind]:
    """(n,) as (n, 1), to meet (n, stages); a number as it is."""
    return values[:, None] if isinstance(values, np.ndarray) and values.ndim else values


def first_largest(values: Floats) -> NDArray[np.intp]:
    """The first of the stages with the largest value (n,)."""
    largest, place = values[:, 0], np.zeros(len(values), np.intp)
    for stage in range(1, values.shape[1]):
        place[values[:, stage] > largest] = stage
        largest = np.maximum(largest, values[:, stage])
    return place


def of_rows(value: Numeric | ArrayLike, like: Floats) -> Floats:
    """A figure that may be the same for all layouts, as one a row of `like` (n,)."""
    if not np.ndim(like):
        return floats(value)
    if isinstance(value, np.ndarray) and value.shape == like.shape and value.dtype == np.float64:
        return value
    return np.asarray(value, np.float64) + np.zeros_like(like)


def floats(value: Numeric | ArrayLike) -> Floats:
    """Figures as an array; numpy's number stays one."""
    return value if isinstance(value, (np.ndarray, np.float64)) else np.float64(value)  # type: ignore[arg-type, return-value]


Part = TypeVar("Part")


def rows_of(part: Part, index: NDArray[np.intp] | Flags) -> Part:
    """The rows of an index or a mask: of an array, of what has a `take`, of a structure or a tuple of such. What is no
    array stays as it is."""
    rows = np.flatnonzero(index) if index.dtype == np.bool_ else index
    return _indexed(part, rows)  # type: ignore[no-any-return]


def _indexed(part: Any, index: NDArray[Any]) -> Any:
    if isinstance(part, np.ndarray):
        if part.ndim == 2:
            return part.T.take(index, axis=1).T  # stage by stage
        return part.take(index, axis=0)  # twice as fast as part[index]
    if isinstance(part, np.generic):
        return part
    if isinstance(part, tuple):
        return tuple(_indexed(each, index) for each in part)
    if isinstance(part, dict):
        return {name: _indexed(each, index) for name, each in part.items()}
    if hasattr(part, "take"):
        return part.take(index)
    if is_dataclass(part) and not isinstance(part, type):
        return type(part)(**{name: _indexed(getattr(part, name), index) for name in _field_names(type(part))})
    return part


@cache
def _field_names(structure: type[Any]) -> tuple[str, ...]:
    """Asked hundreds of times a search, of few structures."""
    return tuple(field.name for field in fields(structure))
