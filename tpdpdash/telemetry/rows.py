"""A step record as a row of numbers of fixed size: what the rollup keeps and the rings hold. Standard library only."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from tpdpdash.telemetry.record import PHASES

SCALARS = ("t", "step_s", "cpu_s", "tokens", "loss", "memory_bytes", "peak_memory_bytes", "regions")
COLUMNS = (*SCALARS, *PHASES)
"""Numbers of a row, after its step and rank."""
FORGET = -1
"""In the place of a step: the rank began anew, and its earlier rows no longer count."""
MAX_STEPS = 2000
MAX_CELLS = 1 << 17
"""Rank × step cells that are kept: 20 MB, analysed in a tenth of a second. 1,024 ranks keep their last 128 steps."""
MAX_TIMELINE_STEPS = 8
"""Sampled steps whose timelines are kept."""
_ROW = struct.Struct(f"<qq{len(COLUMNS)}d")
ROW_BYTES = _ROW.size
_NAN = float("nan")
_OTHER = PHASES.index("other")
_INDEX = {name: index for index, name in enumerate(PHASES)}


def kept_steps(world_size: int) -> int:
    """How many steps a reader of so many ranks keeps."""
    return max(16, min(MAX_STEPS, MAX_CELLS // max(1, world_size)))


def step_row(record: Mapping[str, Any]) -> bytes:
    """The row of a step record that parse_line has accepted; NaN = not told. A phase that took no time is 0."""
    scalars = [_NAN if (value := record.get(name)) is None else float(value) for name in SCALARS]
    phases = [0.0] * len(PHASES)
    for name, seconds in record["phase_s"].items():
        phases[_INDEX.get(name, _OTHER)] += seconds
    return _ROW.pack(record["step"], record["rank"], *scalars, *phases)


def forget_row(rank: int) -> bytes:
    """The row that takes back all earlier ones of a rank."""
    return _ROW.pack(FORGET, rank, *[_NAN] * len(COLUMNS))
