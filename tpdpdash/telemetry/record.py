"""The telemetry file format: one JSON object a line, one file a rank. Standard library only."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

VERSION = 1
PHASES = ("data", "forward", "backward", "loss", "tp", "cp", "ep", "pp", "dp", "optimizer", "other")
"""Names of phase_s; a region of another name counts as the last one."""
COLLECTIVE_PHASES = frozenset({"tp", "cp", "ep", "pp", "dp"})
"""Phases in which a rank may wait for another."""
KINDS = ("hello", "event", "heartbeat", "step", "timeline")
RUN_DIR_VARIABLE = "TPDPDASH_RUN_DIR"
RUN_ID_VARIABLE = "TPDPDASH_RUN_ID"
PROFILE_REQUEST = "control/profile.json"
"""In the run folder: what whoever wants a deep profile writes, and the ranks look for."""
MAX_LINE_BYTES = 1 << 20
"""A reader skips longer lines, so a writer never makes one."""
MAX_ACTIONS = 8192
"""Actions of one timeline record; 8,192 of them stay below MAX_LINE_BYTES."""


def telemetry_dir(run_dir: Path) -> Path:
    """The folder of a run that its ranks write to."""
    return run_dir / "telemetry"


def rank_file(run_dir: Path, rank: int) -> Path:
    """The file of one rank: telemetry/rank-00000.jsonl."""
    return telemetry_dir(run_dir) / f"rank-{rank:05d}.jsonl"


def is_rank_file(name: str) -> bool:
    """Whether a file of the telemetry folder is a rank's."""
    return name.startswith("rank-") and name.endswith(".jsonl")


def encode(record: Mapping[str, object]) -> bytes:
    """One line. Non-finite numbers are not JSON and raise ValueError: the probe writes null for them."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


class RecordWriter:
    """Appends whole lines to one rank's file; a failed write is counted, never raised.

    A training script must not die of its telemetry. What could not be written is told in the next line that can:
    `lost_records` counts lines lost so far. A line cut short by a full disk is closed before the next one starts.
    """

    __slots__ = ("_clock", "_descriptor", "_is_torn", "lost_records", "rank")

    def __init__(self, path: Path | None, rank: int, clock: Callable[[], float] = time.time) -> None:
        self.rank = rank
        self.lost_records = 0
        self._clock = clock
        self._is_torn = False
        self._descriptor: int | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o600)
        except OSError:
            self.lost_records = 1

    def write(self, kind: str, fields: Mapping[str, object], t: float | None = None) -> None:
        """Append one record; `t` is the wall time at the start of what it tells (now, if absent)."""
        if self._descriptor is None:
            return
        record = {"v": VERSION, "kind": kind, "rank": self.rank, "t": self._clock() if t is None else t, **fields}
        if self.lost_records:
            record["lost_records"] = self.lost_records
        try:
            line = encode(record)
            if len(line) > MAX_LINE_BYTES:
                raise ValueError("longer than a reader accepts")
            if self._is_torn:
                line = b"\n" + line
            written = os.write(self._descriptor, line)
            self._is_torn = 0 < written < len(line)
            self.lost_records += written < len(line)
        except (OSError, ValueError, TypeError):
            self.lost_records += 1

    def close(self) -> None:
        """Close the file; later writes do nothing."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)
