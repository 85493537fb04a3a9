"""A run that is being watched: one reader for every viewer, and what a page shows of it at this moment.

Readers are refreshed by whoever looks, under a lock; no thread is started and nothing here calls streamlit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpdpdash.run.folder import RunFolder, read_json
from tpdpdash.run.history import RunView, read_state
from tpdpdash.telemetry.reader import RunReader, Telemetry

MIN_REFRESH_S = 0.3
"""Viewers within this time share one look at the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the estimate said of the Job as it runs; None where it is unknown."""

    step_s: float | None = None
    """Seconds of a step."""
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
        return cls(
            step_s=_number(time_, "step_s"),
            tokens_per_s=_number(_table(document, "throughput"), "tokens_per_s"),
            stage_bytes=tuple(total for total in totals if total is not None) if None not in totals else (),
            capacity_bytes=_number(memory, "capacity_bytes"),
        )


def _as_table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _table(document: Any, name: str) -> Mapping[str, Any]:
    return _as_table(_as_table(document).get(name))


def _number(table: Mapping[str, Any], name: str) -> float | None:
    value = table.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at a run."""

    view: RunView
    """Its state, as the reader judges it."""
    telemetry: Telemetry
    """What the ranks have told."""
    prediction: Prediction
    """What was expected."""
    version: int
    """Grows when there is news: equal versions have equal telemetry."""
    seen_t: float
    """Wall time of this look."""


class LiveRun:
    """Follows one run for every viewer of this process."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._reader: RunReader | None = None
        self._telemetry: Telemetry | None = None
        self._prediction: Prediction | None = None
        self._version = 0
        self._read_at = float("-inf")

    def look(self) -> Look:
        """The run as it is now."""
        view = read_state(self.folder)
        with self._lock:
            if time.monotonic() - self._read_at >= MIN_REFRESH_S:
                self._refresh(view)
            if self._telemetry is None:
                raise AssertionError("the first look always refreshes")
            return Look(
                view=view,
                telemetry=self._telemetry,
                prediction=self._prediction or Prediction(),
                version=self._version,
                seen_t=time.time(),
            )

    def _refresh(self, view: RunView) -> None:
        """Read what is new. The number of ranks is known from the first status on."""
        world_size = view.status.world_size if view.status else 1
        if self._reader is None or self._reader.world_size != world_size:
            self._reader = RunReader(self.folder.path, world_size)
            self._telemetry = None
        if self._reader.refresh() or self._telemetry is None:
            self._telemetry = self._reader.snapshot()
            self._version += 1
        if self._prediction is None:
            self._prediction = _read_prediction(self.folder)
        self._read_at = time.monotonic()


def _read_prediction(folder: RunFolder) -> Prediction:
    """What was predicted; nothing where there is no such file, or it is damaged."""
    try:
        return Prediction.from_json(read_json(folder.prediction))
    except (OSError, ValueError):
        return Prediction()
