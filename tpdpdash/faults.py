"""What is wrong, as data: a code with values. `text.fault_text` and the screens put it into words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong with one field."""

    code: str
    """Which rule was broken; `fault_texts.py` holds the sentence for it."""
    field: str
    """The key as the person wrote it: "layout.tp", "model.hidden_size", "cluster.device"."""
    value: object = None
    """The value that was given."""
    values: Mapping[str, object] = dataclass_field(default_factory=dict)
    """What the sentence needs besides: limits, divisors, the nearest legal values (`nearest`)."""


def range_values(value: float, low: float, high: float) -> dict[str, object]:
    """What a sentence about a number outside its limits (both included) needs: them, and the nearest legal number."""
    return {"low": low, "high": high, "nearest": min(max(value, low), high)}


def out_of_range(field: str, value: float, low: float, high: float) -> Fault:
    """A number that lies outside its limits, both included."""
    return Fault(code="out_of_range", field=field, value=value, values=range_values(value, low, high))


def whole_number_fault(field: str, value: object, low: int, high: int) -> Fault | None:
    """What is wrong with a value that must be a whole number between two limits, both included."""
    if isinstance(value, bool) or not isinstance(value, int):
        return Fault(code="not_whole_number", field=field, value=value)
    return None if low <= value <= high else out_of_range(field, value, low, high)


def written(value: object) -> str:
    """repr of any value; whole numbers have more digits than Python writes when they come from hexadecimal."""
    try:
        return repr(value)
    except ValueError:
        return "a number of too many digits"


class InvalidInputError(ValueError):
    """A person's input cannot be used. Carries every fault that was found, not only the first."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        super().__init__("; ".join(f"{f.field}={written(f.value)}: {f.code} {written(f.values)}" for f in self.faults))
