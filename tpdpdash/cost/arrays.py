"""Array types of the cost formulas, and the two steps between a row per layout and a row per layout and stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

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
    """(n,) as (n, 1), to meet (n, stages)."""
    return values[:, None]


def of_rows(value: Numeric | ArrayLike, like: Floats) -> Floats:
    """A figure that may be the same for all layouts, as one a row of `like` (n,)."""
    return np.asarray(value, np.float64) + np.zeros_like(like)
