"""What the ranks of a run have told, at one moment: the reader fills it, analysis and screens take it apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """Who a rank is."""

    rank: int
    """Rank."""
    pid: int
    """Process id on its host."""
    host: str
    """Machine."""
    local_rank: int
    """Place among the ranks of its machine."""
    coords: Mapping[str, int]
    """Place in each group kind: {"tp": 0, "pp": 1, "dp": 1}."""
    backend: str
    """gloo or nccl."""
    device: str
    """cpu, cuda:0."""
    region_cost_s: float
    """Seconds that one region of the probe costs there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a rank said last, from the thread of its own."""

    t: float
    """Wall time."""
    step: int | None
    """The step it is in, or was in last."""
    phase: str
    """The region it is in."""
    last_collective: str | None
    """The collective it entered last: "dp all_reduce"."""
    collectives: int
    """How many it has entered: a rank that is behind has fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What the ranks have told so far. Arrays are rank × step (× phase); NaN where a rank has said nothing."""

    world_size: int
    """Ranks of the run."""
    ranks: Mapping[int, RankInfo]
    """Ranks that said hello."""
    steps: NDArray[np.int64]
    """The steps that are kept, ascending."""
    t: Floats
    """Wall time at the start of the step."""
    step_s: Floats
    """Seconds of the step."""
    phase_s: Floats
    """Exclusive seconds by phase, in the order of record.PHASES."""
    cpu_s: Floats
    """Processor seconds of the process in the step."""
    tokens: Floats
    """Tokens of the rank's replica."""
    loss: Floats
    """Loss; NaN off the last stage."""
    memory_bytes: Floats
    """Memory held."""
    peak_memory_bytes: Floats
    """The most memory held."""
    regions: Floats
    """Regions that the probe measured."""
    heartbeats: Mapping[int, Heartbeat]
    """Last heartbeat by rank."""
    events: tuple[tuple[float, int, str], ...]
    """(wall time, rank, name), the last ones, in time's order."""
    last_event: Mapping[int, str]
    """The last event by rank."""
    timelines: Mapping[int, Mapping[int, tuple[tuple[str, int, int, float, float], ...]]]
    """Step → rank → actions (kind, stage, microbatch, start_s, duration_s) of the last sampled steps."""
    num_steps: int
    """Steps that were seen in all."""
    bad_lines: Mapping[str, int]
    """Lines that were not used, by kind (parse.BAD_KINDS)."""
    lost_records: int
    """Records that the ranks themselves could not write."""
    skipped_bytes: int
    """Bytes that were not read because the files had grown too large."""
    restarts: int
    """How often a file began anew: what came before it is dropped."""
    duplicated_ranks: frozenset[int]
    """Ranks that more than one process claimed to be."""
    non_finite_losses: int
    """Steps whose loss was NaN or infinite."""

    @property
    def dropped_steps(self) -> int:
        """Older steps that are no longer kept."""
        return max(0, self.num_steps - len(self.steps))

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that have not said hello."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.ranks)

    @property
    def last_t(self) -> float | None:
        """Wall time of the latest sign of life of any rank."""
        times = [beat.t for beat in self.heartbeats.values()] + [t for t, _, _ in self.events[-1:]]
        if self.t.size and not np.isnan(self.t).all():
            times.append(float(np.nanmax(self.t + self.step_s)))
        return max(times, default=None)
