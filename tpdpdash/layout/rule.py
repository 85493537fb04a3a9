"""What a validity rule is: whose it is, which rows break it, how it names the fault and the nearest legal values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.faults import Fault
from tpdpdash.layout.columns import SHARDING, LayoutColumns
from tpdpdash.layout.frameworks import ALL, known_framework
from tpdpdash.layout.prediction import mtp_layers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from tpdpdash.cluster.spec import ClusterSpec
    from tpdpdash.layout.layout import Layout
    from tpdpdash.model.spec import ModelSpec
    from tpdpdash.training import Training

    Flags = NDArray[np.bool_]


def flags(condition: ArrayLike) -> Flags:
    """A condition on rows as an array of bool."""
    return np.asarray(condition, np.bool_)


def all_rows(columns: LayoutColumns, condition: bool) -> Flags:
    """A condition that does not depend on the layout, for every row."""
    return np.full(len(columns), condition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a layout is judged against."""

    model: ModelSpec
    """The architecture."""
    training: Training
    """The batch, the precision and the framework."""
    cluster: ClusterSpec | None
    """The devices; None = rules about them are not asked."""

    @property
    def framework(self) -> str:
        """The framework whose rules hold: the asked one, or the nearest that we know."""
        return known_framework(self.training.framework)

    @property
    def mtp_layers(self) -> int:
        """Prediction modules that are trained."""
        return mtp_layers(self.model, self.training)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What a fault says besides its code."""

    value: object
    """The value of the field that was judged."""
    values: Mapping[str, object]
    """What the sentence needs: limits, divisors, nearest legal values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition on a layout. Stands once; search, pages, CLI, preflight and worker all ask it."""

    code: str
    """Name of the fault; `fault_texts.py` has its sentence."""
    field: str
    """The key that a person would change."""
    violated: Callable[[Facts, LayoutColumns], Flags]
    """Which rows break it: (n,) for n layouts."""
    explain: Callable[[Facts, Layout], Explained]
    """The value and the nearest legal ones, for one layout that breaks it."""
    frameworks: frozenset[str] = ALL
    """Whose rule it is."""
    source: str = ""
    """Where the rule comes from, when it is one framework's."""
    of_degrees: bool = False
    """It reads tp, cp, pp, dp, ep and etp and no other column: asked once for many rows with the same degrees."""

    @property
    def of_states(self) -> bool:
        """It is about a key that decides where states live. No other rule reads such a column: the others are asked
        once for rows that differ in nothing else."""
        return self.field.removeprefix("layout.") in SHARDING

    def fault(self, facts: Facts, layout: Layout) -> Fault:
        """The fault of one layout that breaks the rule."""
        explained = self.explain(facts, layout)
        return Fault(code=self.code, field=self.field, value=explained.value, values=explained.values)
