"""The figures of an estimate, each class once: of one layout as floats, of n layouts as arrays (n,)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from tpdpdash.cost.arrays import Floats

F = TypeVar("F", float, Floats)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds(Generic[F]):
    """Exposed seconds of one step on the critical stage."""

    compute_s: F
    """Forward and backward of all microbatches on the critical stage, host time included."""
    recompute_s: F
    """What backward computes again."""
    tp_s: F
    """Tensor parallel messages, those of recompute included."""
    cp_s: F
    """Context parallel messages."""
    ep_s: F
    """Expert parallel messages."""
    pp_s: F
    """Messages between stages, and the tied embedding's gradients."""
    bubble_s: F
    """The critical stage's idle time."""
    dp_s: F
    """Data parallel messages: gradients and weights."""
    optimizer_s: F
    """Optimizer update, and the step's host time."""

    @property
    def step_s(self) -> F:
        """The step: the sum of its parts, in their order."""
        total = self.compute_s
        for field in fields(self)[1:]:
            total = total + getattr(self, field.name)
        return total


TIME_PARTS = tuple(field.name for field in fields(StepSeconds))
"""Parts of a step, in the order that they are added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput(Generic[F]):
    """Speed."""

    tokens_per_s: F
    """Tokens a second over all devices."""
    tokens_per_s_per_device: F
    """Tokens a second and device."""
    model_flops_per_s_per_device: F
    """Model FLOP/s: three forward passes, causal attention counted half, nothing recomputed."""
    mfu: F
    """Model FLOP/s over the dense 16-bit peak (fp32 peak when training in fp32)."""
    hfu: F
    """The same with recomputed forward passes counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Generic[F]):
    """What training.tokens cost; NaN = unknown."""

    days: F
    """Days of training."""
    device_hours: F
    """Devices times hours."""
    energy_kwh: F
    """Board power times time; without hosts, network and cooling."""
    cost: F
    """Device-hours times the cluster's price, in dollars."""
    goodput_frac: F
    """Share of the time that moves training on: the rest is checkpoints, failures and restarts, at the stated rates."""
