"""One tensor's optimizer step in fp32, and the loss scale of fp16."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from tpdpdash.telemetry.probe import Probe
from tpdpdash.training import Optimizer

LEARNING_RATE: dict[Optimizer, float] = {"adamw": 1e-3, "sgd": 1e-1}
"""Constant, without warm-up: a rehearsal's loss should move within 20 steps."""
BETA_1, BETA_2 = 0.9, 0.95
"""Decay of the moments (Brown 2020, appendix B; Touvron 2023)."""
EPSILON = 1e-8
WEIGHT_DECAY = 0.01
FIRST_LOSS_SCALE = 2.0**16
GROWTH_INTERVAL = 1000
"""fp16: the loss scale halves after an overflow and doubles after this many steps without one (Micikevicius 2018)."""


class Update:
    """AdamW or SGD on the weights in `values`, with a master copy where they are not fp32 themselves."""

    __slots__ = ("_kind", "_master", "_moments", "_num_steps", "_values")

    def __init__(self, values: torch.Tensor, *, kind: Optimizer, state_dtype: torch.dtype) -> None:
        self._values, self._kind, self._num_steps = values, kind, 0
        self._master = values if values.dtype == torch.float32 else values.float()
        self._moments = [torch.zeros_like(self._master, dtype=state_dtype) for _ in range(2 if kind == "adamw" else 0)]

    @property
    def states(self) -> list[torch.Tensor]:
        """What is kept beside the weights: moments, and the master copy."""
        return self._moments if self._master is self._values else [self._master, *self._moments]

    def __call__(self, gradients: torch.Tensor) -> None:
        """One step on fp32 gradients of the same shape."""
        self._num_steps += 1
        rate = LEARNING_RATE[self._kind]
        if self._kind == "sgd":
            self._master.add_(gradients, alpha=-rate)
        else:
            self._adamw(gradients, rate)
        if self._master is not self._values:
            self._values.copy_(self._master)

    def _adamw(self, gradients: torch.Tensor, rate: float) -> None:
        first, second = self._moments
        first.mul_(BETA_1).add_(gradients, alpha=1 - BETA_1)
        second.mul_(BETA_2).add_(gradients.square(), alpha=1 - BETA_2)
        bias_1, bias_2 = 1 - BETA_1**self._num_steps, 1 - BETA_2**self._num_steps
        denominator = second.float().div(bias_2).sqrt_().add_(EPSILON)
        self._master.mul_(1 - rate * WEIGHT_DECAY)
        self._master.addcdiv_(first.float(), denominator, value=-rate / bias_1)


class LossScale:
    """The factor on the loss, and so on the gradients, before backward: 1 but for fp16."""

    __slots__ = ("_is_scaled", "_num_good_steps", "_probe", "value")

    def __init__(self, dtype: torch.dtype, probe: Probe) -> None:
        """`dtype` of the GEMMs."""
        self._probe, self._is_scaled, self._num_good_steps = probe, dtype == torch.float16, 0
        self.value = FIRST_LOSS_SCALE if self._is_scaled else 1.0
        """The factor of the step that is running."""

    def is_usable(self, gradients: Sequence[torch.Tensor]) -> bool:
        """Whether no rank of the world overflowed: all of them must skip the same step."""
        if not self._is_scaled:
            return True
        with self._probe.phase("dp", "all_reduce"):
            is_finite = torch.stack([each.isfinite().all() for each in gradients]).all().float()
            if dist.is_initialized():
                dist.all_reduce(is_finite, op=dist.ReduceOp.MIN)
            return bool(is_finite)

    def unscaled(self, gradients: torch.Tensor) -> torch.Tensor:
        """The gradients of the loss itself, in fp32."""
        return gradients.float() / self.value if self._is_scaled else gradients.float()

    def adapt(self, was_usable: bool) -> None:
        """Halve it after an overflow, double it after many steps without one."""
        if not self._is_scaled:
            return
        self._num_good_steps = self._num_good_steps + 1 if was_usable else 0
        if not was_usable:
            self.value = max(1.0, self.value / 2)
        elif self._num_good_steps == GROWTH_INTERVAL:
            self.value *= 2
            self._num_good_steps = 0
