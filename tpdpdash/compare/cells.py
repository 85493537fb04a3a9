"""Cells of one row as numbers and words, and the list of what the row did not state."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from tpdpdash.compare.table import Row

NOT_STATED = frozenset(
    ("n/a", "n.a.", "na", "#n/a", "nan", "null", "nil", "?", "-", "\u2013", "\u2014", "unknown", "not stated")
)
"""What people and their tools write into a cell that says nothing."""
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
"""Thousands set apart by commas."""


class UnreadableRowError(ValueError):
    """A row that no layout and model can be read from: a reason as a code, the column, and what stands there."""

    def __init__(self, reason: str, column: str = "", value: str = "") -> None:
        self.reason, self.column, self.value = reason, column, value
        super().__init__(f"{reason} {column} {value!r}".strip())


@dataclass(slots=True, kw_only=True)
class Cells:
    """One row, and on the way the names of the fields that were inferred."""

    row: Row
    """Cells by column name."""
    inferred: list[str] = field(default_factory=list)
    """Fields that the row does not state, or contradicts."""

    def text(self, column: str) -> str:
        """The cell; empty where the column is missing, or says that it says nothing."""
        cell = self.row.get(column, "")
        return "" if cell.lower() in NOT_STATED else cell

    def word(self, column: str) -> str:
        """The cell in lower case."""
        return self.text(column).lower()

    def number(self, column: str, low: float = 0.0, high: float = 1e18) -> float | None:
        """A finite number in [low, high]; None where the cell is empty. Raises UnreadableRowError: anything else."""
        cell = self.text(column)
        if cell.lower() in ("", "none"):
            return None
        try:
            value = float(cell.replace(",", "") if _GROUPED.fullmatch(cell) else cell)
        except ValueError:
            raise UnreadableRowError("bad_value", column, cell) from None
        if not (math.isfinite(value) and low <= value <= high):
            raise UnreadableRowError("bad_value", column, cell)
        return value

    def measured(self, column: str) -> float | None:
        """A number above 0; None where the cell is empty."""
        return self.number(column, low=math.ulp(0.0))

    def whole(self, column: str, high: int, low: int = 0) -> int | None:
        """A whole number in [low, high] (8 and 8.0 alike); None where the cell is empty."""
        value = self.number(column, low, high)
        if value is None:
            return None
        if value != int(value):
            raise UnreadableRowError("bad_value", column, self.text(column))
        return int(value)

    def flag(self, column: str) -> bool | None:
        """True, false, or None where the cell is empty."""
        cell = self.word(column)
        if cell in ("1", "1.0", "true", "yes", "on"):
            return True
        if cell in ("0", "0.0", "false", "no", "off"):
            return False
        if cell in ("", "none"):
            return None
        raise UnreadableRowError("bad_value", column, self.text(column))

    def infer(self, name: str) -> None:
        """Note that a field was inferred, once."""
        if name not in self.inferred:
            self.inferred.append(name)
