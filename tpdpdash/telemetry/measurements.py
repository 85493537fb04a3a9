"""measurements.json of a run that measures the machine: what each operator and message took. Written by its rank 0."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tpdpdash.telemetry.regular import read_json

VERSION = 1
FILE = "measurements.json"
MAX_BYTES = 16 << 20
"""Some thousand measurements take a hundredth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One operator or message of one size."""

    what: str
    """gemm, attention_forward, attention_backward, layer_forward, layer_both, update, copy, launch, all_reduce,
    all_gather, reduce_scatter, send; step of a short run."""
    sizes: tuple[int, ...]
    """gemm: rows, inner, outer; attention: tokens, heads, width of a head; layer: hidden size, FFN size, heads, tokens;
    update: parameters; copy and messages: bytes (of a message: of the whole tensor); launch: nothing; step: the fields
    of checked_runs.CheckedRun."""
    busy: int
    """Ranks that computed at once, or that took part in the message."""
    seconds: float
    """Of one operator: CPU time on a CPU, which the load of the machine leaves alone; of a message and a step, by the
    clock."""
    stretch: float = 1.0
    """Clock time per CPU time meanwhile: more than 1 where others use the cores too."""
    precision: str = "fp32"
    """Of the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """All that one run measured."""

    is_cpu: bool
    """CPU ranks over gloo, else GPUs over NCCL."""
    world_size: int
    """Ranks of the run."""
    taken: tuple[Measurement, ...]
    """In the order of measuring."""


def busy_counts(world_size: int, *, is_cpu: bool) -> tuple[int, ...]:
    """How many ranks compute at once, one step of the run each: 1, 2, 4, … and all where they share a machine's
    cores."""
    if not is_cpu:
        return (1,)
    powers = [2**k for k in range(world_size.bit_length()) if 2**k < world_size]
    return (*powers, world_size)


def num_steps(world_size: int, *, is_cpu: bool) -> int:
    """Steps of the run: computation, messages, and on CPU ranks short runs."""
    return len(busy_counts(world_size, is_cpu=is_cpu)) + (2 if is_cpu else 1)


def write_measurements(folder: Path, measurements: Measurements) -> None:
    """The file of a run folder. Raises OSError."""
    (folder / FILE).write_text(json.dumps({"v": VERSION, **asdict(measurements)}, indent=1) + "\n", encoding="utf-8")


def read_measurements(folder: Path) -> Measurements:
    """What a run measured. Raises OSError, and ValueError where the file is not what its version says."""
    document: dict[str, Any] = read_json(folder / FILE, MAX_BYTES)
    try:
        if document["v"] != VERSION:
            raise ValueError(f"version {document['v']}, not {VERSION}")
        return Measurements(
            is_cpu=bool(document["is_cpu"]), world_size=int(document["world_size"]), taken=_taken(document["taken"])
        )
    except (KeyError, TypeError, AttributeError) as wrong:
        raise ValueError(f"{FILE}: {type(wrong).__name__} {wrong}") from wrong


def _taken(rows: Sequence[dict[str, Any]]) -> tuple[Measurement, ...]:
    return tuple(Measurement(**{**row, "sizes": tuple(int(size) for size in row["sizes"])}) for row in rows)
