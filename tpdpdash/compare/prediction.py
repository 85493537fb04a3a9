"""What was predicted of a run: prediction.json as a type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tpdpdash.cost.figures import TIME_PARTS
from tpdpdash.run.folder import RunFolder, read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the estimate said of the Job as it runs; None where it is unknown."""

    step_s: float | None = None
    """Seconds of a step."""
    error_frac: float | None = None
    """Half-width of the error bar of step_s and of what follows from it, as a share."""
    part_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Exposed seconds of a step by part (cost.figures.TIME_PARTS); empty unless all of them are known."""
    tokens_per_s: float | None = None
    """Tokens of all replicas a second."""
    stage_bytes: tuple[float, ...] = ()
    """Memory of a rank, by stage."""
    capacity_bytes: float | None = None
    """Usable memory of a device."""

    @classmethod
    def from_json(cls, document: Any) -> Prediction:
        """Read prediction.json; a part that is missing or of another kind is unknown."""
        time_, memory = _table(document, "time"), _table(document, "memory")
        stages = memory.get("stages") if isinstance(memory.get("stages"), list) else []
        totals = [_number(_as_table(stage), "total_bytes") for stage in stages or []]
        parts = {name: _number(_table(time_, "parts"), name) for name in TIME_PARTS}
        known = {name: seconds for name, seconds in parts.items() if seconds is not None}
        return cls(
            step_s=_number(time_, "step_s"),
            error_frac=_number(time_, "error_frac"),
            part_s=MappingProxyType(known if len(known) == len(parts) else {}),
            tokens_per_s=_number(_table(document, "throughput"), "tokens_per_s"),
            stage_bytes=tuple(total for total in totals if total is not None) if None not in totals else (),
            capacity_bytes=_number(memory, "capacity_bytes"),
        )


def read_prediction(folder: RunFolder) -> Prediction:
    """What was predicted; nothing where there is no such file, or it is damaged."""
    try:
        return Prediction.from_json(read_json(folder.prediction))
    except (OSError, ValueError):
        return Prediction()


def _as_table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _table(document: Any, name: str) -> Mapping[str, Any]:
    return _as_table(_as_table(document).get(name))


def _number(table: Mapping[str, Any], name: str) -> float | None:
    value = table.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
