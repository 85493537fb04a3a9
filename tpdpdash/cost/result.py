"""Estimate: one layout's figures as plain numbers, and the JSON of `tpdpdash estimate`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

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
TIME_PARTS = ("compute_s", "recompute_s", "tp_s", "cp_s", "ep_s", "pp_s", "bubble_s", "dp_s", "optimizer_s")
"""Parts of a step, in the order that they are added."""
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
    parts: Mapping[str, float]
    """Exposed seconds of a step by TIME_PARTS."""
    throughput: Mapping[str, float]
    """tokens_per_s, tokens_per_s_per_device, model_flops_per_s_per_device, mfu, hfu."""
    budget: Mapping[str, float]
    """days, device_hours, energy_kwh, cost; NaN = unknown."""
    num_microbatches: int
    """Microbatches of one step on one replica."""
    error_frac: float | None = None
    """Half-width of the error bar of step_s, as a fraction; None = not known."""

    @property
    def step_s(self) -> float:
        """Seconds of one step: the sum of the parts, in their order."""
        total = self.parts[TIME_PARTS[0]]
        for name in TIME_PARTS[1:]:
            total += self.parts[name]
        return total

    @property
    def bubble_frac(self) -> float:
        """Share of the step that the schedule leaves idle on the critical stage."""
        return self.parts["bubble_s"] / self.step_s

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
                "stages": [stage.to_json() for stage in self.stages],
            },
            "time": {
                "step_s": _known(self.step_s),
                "error_frac": self.error_frac,
                "parts": {name: _known(self.parts[name]) for name in TIME_PARTS},
            },
            "throughput": {name: _known(value) for name, value in self.throughput.items()},
            "budget": {name: _known(value) for name, value in self.budget.items()},
        }


def _known(value: float) -> float | None:
    """NaN and infinity are unknown: null in JSON."""
    return value if math.isfinite(value) else None
