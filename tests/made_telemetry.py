"""Made telemetry: ranks with places in a layout, seconds by phase and step, and a noise that is the same every time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from tpdpdash.telemetry.grid import RankGrid, RankInfo
from tpdpdash.telemetry.record import PHASES
from tpdpdash.telemetry.rows import SCALARS
from tpdpdash.telemetry.snapshot import Heartbeat, Telemetry

STEP = {"data": 0.01, "forward": 0.3, "loss": 0.02, "backward": 0.6, "tp": 0.1, "dp": 0.1, "optimizer": 0.05}


def places(tp: int = 1, dp: int = 1, pp: int = 1) -> dict[int, dict[str, int]]:
    """Coordinates of each rank, tp fastest and pp slowest."""
    return {
        rank: {"tp": rank % tp, "cp": 0, "dp": rank // tp % dp, "pp": rank // (tp * dp)} for rank in range(tp * dp * pp)
    }


def made(
    coords: Mapping[int, Mapping[str, int]],
    *,
    steps: int = 20,
    noise: float = 0.0,
    phase_s: Mapping[str, float] = MappingProxyType(STEP),
    seed: int = 0,
    memory_bytes: float = 400e6,
) -> Telemetry:
    """Every rank spends `phase_s` a step, own work times 1 ± `noise` (a standard deviation), drawn step by step."""
    shape = (len(coords), steps)
    draw = np.random.default_rng(seed)
    seconds = np.zeros((*shape, len(PHASES)))
    for name, spent in phase_s.items():
        seconds[:, :, PHASES.index(name)] = spent * np.maximum(0.05, 1 + noise * draw.standard_normal(shape))
    step_s = np.broadcast_to(seconds.sum(axis=2).max(axis=0), shape).copy()
    begins = np.cumsum(step_s, axis=1) - step_s + 1000.0
    blank = np.full(shape, np.nan)
    infos = {
        rank: RankInfo(rank=rank, pid=rank + 1, host="a", local_rank=rank, coords=where, backend="gloo", device="cpu")
        for rank, where in coords.items()
    }
    return Telemetry(
        world_size=len(coords),
        ranks=RankGrid(infos),
        steps=np.arange(1, steps + 1),
        t=begins,
        step_s=step_s,
        phase_s=seconds,
        cpu_s=blank,
        tokens=np.full(shape, 512.0),
        loss=blank,
        memory_bytes=np.full(shape, memory_bytes),
        peak_memory_bytes=np.full(shape, memory_bytes),
        regions=np.full(shape, 100.0),
        heartbeats={rank: beat(float(step_s[rank].sum()) + 1000.0) for rank in coords},
        events=(),
        last_event=dict.fromkeys(coords, "first_step"),
        timelines={},
        num_steps=steps,
        bad_lines={},
        lost_records=0,
        skipped_bytes=0,
        restarts=0,
        duplicated_ranks=frozenset(),
        non_finite_losses=0,
    )


def slowed(telemetry: Telemetry, rank: int, phase: str, more_s: float, *, first: int = 1, last: int = 10**9) -> None:
    """From step `first` to `last` this rank spends more in a phase, and its step is longer."""
    during = (telemetry.steps >= first) & (telemetry.steps <= last)
    telemetry.phase_s[rank, during, PHASES.index(phase)] += more_s
    telemetry.step_s[:, during] += more_s


def beat(t: float, *, phase: str = "dp", last_collective: str = "dp all_reduce", collectives: int = 9) -> Heartbeat:
    """A heartbeat."""
    return Heartbeat(t=t, step=20, phase=phase, last_collective=last_collective, collectives=collectives)


def up_to(telemetry: Telemetry, step: int) -> Telemetry:
    """The same without later steps."""
    kept = telemetry.steps <= step
    cut = {name: getattr(telemetry, name)[:, kept] for name in (*SCALARS, "phase_s")}
    return replace(telemetry, steps=telemetry.steps[kept], num_steps=int(kept.sum()), **cut)
