"""What the ranks of a run have told, at one moment: the reader fills it, analysis and screens take it apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tpdpdash.telemetry.grid import RankGrid
from tpdpdash.telemetry.rows import SCALARS

Floats = NDArray[np.float64]


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
class ProfileNote:
    """What a rank said last of the deep profile of a step."""

    rank: int
    """Rank."""
    step: int
    """The profiled step."""
    t: float
    """Wall time."""
    event: str
    """One of profiling.PROFILE_EVENTS."""
    reason: str
    """Why there is none, where it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What the ranks have told so far. Arrays are rank × step (× phase); NaN where a rank has said nothing."""

    world_size: int
    """Ranks of the run."""
    ranks: RankGrid
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
    profiles: tuple[ProfileNote, ...] = ()
    """Deep profiles, by step and rank."""

    @property
    def disturbed_steps(self) -> frozenset[int]:
        """Steps that a deep profile made longer: its own, and the next: the others wait for the writing in it."""
        return frozenset(step + after for step in {note.step for note in self.profiles} for after in (0, 1))

    def undisturbed(self) -> Telemetry:
        """The same without the disturbed steps: what verdicts, medians and calibrations look at."""
        disturbed = self.disturbed_steps
        is_kept = ~np.isin(self.steps, list(disturbed))
        if is_kept.all():
            return self
        arrays = {name: getattr(self, name)[:, is_kept] for name in (*SCALARS, "phase_s")}
        timelines = {step: by_rank for step, by_rank in self.timelines.items() if step not in disturbed}
        num_steps = self.num_steps - int((~is_kept).sum())
        return replace(self, steps=self.steps[is_kept], num_steps=num_steps, timelines=timelines, **arrays)

    def last(self, num_steps: int | None) -> Telemetry:
        """The same with its last steps only (all, if None), without copying: figures of a window cost what it holds."""
        if num_steps is None or num_steps >= len(self.steps):
            return self
        cut = slice(len(self.steps) - num_steps, None)
        arrays = {name: getattr(self, name)[:, cut] for name in (*SCALARS, "phase_s")}
        return replace(self, steps=self.steps[cut], **arrays)

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
