"""What is wrong, as data: a code with values. `text.fault_text` and the screens put it into words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong with one field."""

    code: str
    """Which rule was broken; `text.FAULT_TEXTS` holds the sentence for it."""
    field: str
    """The key as the person wrote it: "layout.tp", "model.hidden_size", "cluster.device"."""
    value: object = None
    """The value that was given."""
    values: Mapping[str, object] = dataclass_field(default_factory=dict)
    """What the sentence needs besides: limits, divisors, the nearest legal values (`nearest`)."""


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
