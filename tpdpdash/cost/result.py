"""Estimate: one layout's figures as plain numbers, and the JSON of `tpdpdash estimate`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tpdpdash.cost.error_bar import ErrorBar
from tpdpdash.cost.figures import Budget, StepSeconds, Throughput
from tpdpdash.layout.layout import Layout

MEMORY_PARTS = (
    "weights_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "activations_bytes",
    "logits_bytes",
    "buffers_bytes",
    "overhead_bytes",
)
"""Parts of a stage's memory, in the order that charts stack them."""
OUT_OF_MEMORY = "out_of_memory"
"""The reason of a layout that is legal and does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """One pipeline stage."""

    stage: int
    """Stage, from 0."""
    layers: int
    """Layers on it, all chunks together."""
    weights_bytes: float
    """Weights."""
    gradients_bytes: float
    """Gradients."""
    optimizer_bytes: float
    """Optimizer states."""
    activations_bytes: float
    """Activations kept for backward."""
    logits_bytes: float
    """Logits and loss."""
    buffers_bytes: float
    """Communication and gather buffers."""
    overhead_bytes: float
    """Context, workspace, allocator."""
    forward_s: float
    """Forward of one microbatch [s]."""
    backward_s: float
    """Backward of one microbatch, recompute included [s]."""
    weight_gradient_s: float
    """The part of it that the schedule can put off; 0 where it runs backwards whole [s]."""
    data_per_microbatch_s: float
    """Exposed data parallel messages of one microbatch, part of forward_s and backward_s [s]."""
    data_per_step_s: float
    """Exposed data parallel messages once a step [s]."""
    tied_embedding_s: float
    """Adding up a tied embedding's gradients, once a step on the first and the last stage [s]."""

    @property
    def total_bytes(self) -> float:
        """All parts."""
        total = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return total + self.activations_bytes + self.logits_bytes + self.buffers_bytes + self.overhead_bytes

    def to_json(self) -> dict[str, Any]:
        """One entry of memory.stages."""
        return {"stage": self.stage, **{p: getattr(self, p) for p in MEMORY_PARTS}, "total_bytes": self.total_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Memory, time and cost of one layout."""

    layout: Layout
    """The full layout."""
    capacity_bytes: float
    """Memory that a device can hand out."""
    peak_bytes: float
    """Memory of the fullest stage."""
    stages: tuple[StageEstimate, ...]
    """Every pipeline stage."""
    time: StepSeconds[float]
    """Exposed seconds of a step by part."""
    throughput: Throughput[float]
    """Tokens a second, MFU, HFU."""
    budget: Budget[float]
    """Days, device-hours, energy, cost."""
    num_microbatches: int
    """Microbatches of one step on one replica."""
    time_error: ErrorBar | None
    """How far step_s may be off, and with it every figure that follows from it; None = not known."""
    memory_error: ErrorBar | None
    """How far peak_bytes may be off; None = not known."""

    @property
    def step_s(self) -> float:
        """Seconds of one step: the sum of the parts, in their order."""
        return self.time.step_s

    @property
    def error_frac(self) -> float | None:
        """Half-width of the error bar of step_s, as a fraction; None = not known."""
        return None if self.time_error is None else self.time_error.frac

    @property
    def memory_error_frac(self) -> float | None:
        """Half-width of the error bar of peak_bytes, as a fraction; None = not known."""
        return None if self.memory_error is None else self.memory_error.frac

    @property
    def is_tight(self) -> bool:
        """Whether the capacity lies inside the error bar of the peak: it may fit or not, whatever `fits` says."""
        half_bytes = self.peak_bytes * (self.memory_error_frac or 0.0)
        return abs(self.spare_bytes) < half_bytes

    @property
    def bubble_frac(self) -> float:
        """Share of the step that the schedule leaves idle on the critical stage."""
        return self.time.bubble_s / self.step_s

    @property
    def held_frac(self) -> float:
        """Share of the capacity that the fullest stage holds."""
        return self.peak_bytes / self.capacity_bytes

    @property
    def spare_bytes(self) -> float:
        """Memory that the fullest stage leaves; negative where it does not fit."""
        return self.capacity_bytes - self.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether every stage fits."""
        return self.peak_bytes <= self.capacity_bytes

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it cannot run, as codes."""
        return () if self.fits else (OUT_OF_MEMORY,)

    def to_json(self) -> dict[str, Any]:
        """`tpdpdash estimate --json`. Unknown figures are null."""
        return {
            "layout": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self.layout).items()},
            "fits": self.fits,
            "reasons": list(self.reasons),
            "memory": {
                "capacity_bytes": _known(self.capacity_bytes),
                "peak_bytes": _known(self.peak_bytes),
                "error_frac": self.memory_error_frac,
                "error_from": _bar_json(self.memory_error),
                "tight": self.is_tight,
                "stages": [stage.to_json() for stage in self.stages],
            },
            "time": {
                "step_s": _known(self.step_s),
                "error_frac": self.error_frac,
                "error_from": _bar_json(self.time_error),
                "parts": _known_figures(self.time),
            },
            "throughput": _known_figures(self.throughput),
            "budget": _known_figures(self.budget),
        }


def _bar_json(bar: ErrorBar | None) -> dict[str, Any] | None:
    """What a bar is known from: the measured runs, what they have in common with the estimate, and how much wider."""
    if bar is None:
        return None
    shared = {name: value for name, value in asdict(bar.kind).items() if value is not None}
    return {"shared": shared, "rows": bar.rows, "sources": bar.sources, "wider": bar.wider}


def _known(value: float) -> float | None:
    """NaN and infinity are unknown: null in JSON."""
    return value if math.isfinite(value) else None


def _known_figures(part: StepSeconds[float] | Throughput[float] | Budget[float]) -> dict[str, float | None]:
    """Every figure of a part by its name."""
    return {name: _known(value) for name, value in asdict(part).items()}
