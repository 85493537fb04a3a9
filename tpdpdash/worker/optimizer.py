"""Gradient reduction, the optimizer and ZeRO 0 / 1, on flat buffers and at their call sites."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tpdpdash.telemetry.probe import Probe
from tpdpdash.training import Optimizer
from tpdpdash.worker.collectives import TensorGroup
from tpdpdash.worker.weights import FlatWeights

LEARNING_RATE: dict[Optimizer, float] = {"adamw": 1e-3, "sgd": 1e-1}
"""Constant, without warm-up: a rehearsal's loss should move within 20 steps."""
BETA_1, BETA_2 = 0.9, 0.95
"""Decay of the moments (Brown 2020, appendix B; Touvron 2023)."""
EPSILON = 1e-8
WEIGHT_DECAY = 0.01
FIRST_LOSS_SCALE = 2.0**16
GROWTH_INTERVAL = 1000
"""fp16: the loss scale halves after an overflow and doubles after this many steps without one (Micikevicius 2018)."""


class ShardedOptimizer:
    """Sums gradients over TP and DP and updates this rank's share of the weights.

    ZeRO 0: the share is everything and the gradients are all-reduced. ZeRO 1: the share is 1/dp of the flat buffer,
    gradients are reduce-scattered to it and the updated weights all-gathered (Rajbhandari 2020, section 5.1).
    """

    def __init__(
        self,
        weights: FlatWeights,
        *,
        kind: Optimizer,
        state_dtype: torch.dtype,
        zero_stage: int,
        dp_group: dist.ProcessGroup | None,
        dp: int,
        dp_rank: int,
        tp: TensorGroup,
        probe: Probe,
    ) -> None:
        self._weights, self._kind, self._tp, self._probe = weights, kind, tp, probe
        self._dp, self._dp_group = dp, dp_group
        self._is_sharded = zero_stage >= 1 and dp > 1
        size = weights.values.numel() // dp if self._is_sharded else weights.values.numel()
        start = dp_rank * size if self._is_sharded else 0
        self._own_values = weights.values[start : start + size]
        self._own_gradients = weights.gradients[start : start + size]
        self._master = self._own_values if weights.values.dtype == torch.float32 else self._own_values.float()
        self._num_steps = 0
        self._moments = [torch.zeros_like(self._master, dtype=state_dtype) for _ in range(2 if kind == "adamw" else 0)]
        self._is_scaled = weights.values.dtype == torch.float16
        self.loss_scale = FIRST_LOSS_SCALE if self._is_scaled else 1.0
        """Factor on the loss, and so on the gradients, before backward."""
        self._steps_at_scale = 0

    @torch.no_grad()
    def step(self) -> None:
        """Reduce the gradients, update, gather the weights, and empty the gradients for the next step."""
        if self._weights.num_partial:
            self._tp.all_reduce(self._weights.gradients[: self._weights.num_partial])
        gradients = self._reduce()
        is_usable = not self._is_scaled or self._is_finite(gradients)
        with self._probe.phase("optimizer"):
            if is_usable:
                self._num_steps += 1
                self._update(gradients.float() / self.loss_scale if self._is_scaled else gradients.float())
                if self._master is not self._own_values:
                    self._own_values.copy_(self._master)
            self._weights.gradients.zero_()
        self._adapt_loss_scale(is_usable)
        if self._is_sharded:
            with self._probe.phase("dp", "all_gather"):
                dist.all_gather_single(self._weights.values, self._own_values.clone(), group=self._dp_group)

    def _reduce(self) -> torch.Tensor:
        """The sum over replicas of this rank's share of the gradients."""
        if self._dp == 1:
            return self._own_gradients
        if not self._is_sharded:
            with self._probe.phase("dp", "all_reduce"):
                dist.all_reduce(self._weights.gradients, group=self._dp_group)
            return self._own_gradients
        with self._probe.phase("dp", "reduce_scatter"):
            share = torch.empty_like(self._own_gradients)
            dist.reduce_scatter_single(share, self._weights.gradients, group=self._dp_group)
        return share

    def _update(self, gradients: torch.Tensor) -> None:
        """One step on fp32 gradients and master weights."""
        rate = LEARNING_RATE[self._kind]
        if self._kind == "sgd":
            self._master.add_(gradients, alpha=-rate)
            return
        first, second = self._moments
        first.mul_(BETA_1).add_(gradients, alpha=1 - BETA_1)
        second.mul_(BETA_2).add_(gradients.square(), alpha=1 - BETA_2)
        bias_1, bias_2 = 1 - BETA_1**self._num_steps, 1 - BETA_2**self._num_steps
        denominator = second.float().div(bias_2).sqrt_().add_(EPSILON)
        self._master.mul_(1 - rate * WEIGHT_DECAY)
        self._master.addcdiv_(first.float(), denominator, value=-rate / bias_1)

    def _is_finite(self, gradients: torch.Tensor) -> bool:
        """Whether no rank of the world overflowed: all of them must skip the same step."""
        with self._probe.phase("dp", "all_reduce"):
            is_finite = gradients.isfinite().all().float()
            if dist.is_initialized():
                dist.all_reduce(is_finite, op=dist.ReduceOp.MIN)
            return bool(is_finite)

    def _adapt_loss_scale(self, was_usable: bool) -> None:
        if not self._is_scaled:
            return
        self._steps_at_scale = self._steps_at_scale + 1 if was_usable else 0
        if not was_usable:
            self.loss_scale = max(1.0, self.loss_scale / 2)
        elif self._steps_at_scale == GROWTH_INTERVAL:
            self.loss_scale *= 2
            self._steps_at_scale = 0
