"""Gradient reduction, the optimizer and ZeRO 0 / 1, on flat buffers and at their call sites."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist

from tpdpdash.telemetry.probe import Probe
from tpdpdash.training import Optimizer
from tpdpdash.worker.collectives import TensorGroup
from tpdpdash.worker.groups import Groups
from tpdpdash.worker.update import LossScale, Update
from tpdpdash.worker.weights import FlatWeights


class StepOptimizer(Protocol):
    """Ends a step: gradients are reduced, weights updated, and the gradients emptied for the next step."""

    loss_scale: LossScale
    """Its value is a factor on the loss before backward."""
    updates: list[Update]
    """Of the tensors that this rank updates."""

    def step(self) -> None:
        """All ranks call it together."""


class ShardedOptimizer:
    """Sums gradients over TP and DP and updates this rank's share of the weights.

    ZeRO 0: the share is everything and the gradients are all-reduced. ZeRO 1: the share is 1/dp_shard_size of the flat
    buffer, gradients are reduce-scattered to it and the updated weights all-gathered (Rajbhandari 2020, section 5.1);
    where there are several such groups, the shares are summed over them in between.
    """

    def __init__(
        self,
        weights: FlatWeights,
        *,
        kind: Optimizer,
        state_dtype: torch.dtype,
        zero_stage: int,
        groups: Groups,
        tp: TensorGroup,
        probe: Probe,
    ) -> None:
        self._weights, self._tp, self._probe = weights, tp, probe
        is_sharded = zero_stage >= 1
        self._shards = groups.dp_shards if is_sharded else None
        self._replicas = groups.dp_replicas if is_sharded else groups.dp
        num_shares = dist.get_world_size(self._shards) if self._shards is not None else 1
        size = weights.values.numel() // num_shares
        start = dist.get_rank(self._shards) * size if self._shards is not None else 0
        self._own_values = weights.values[start : start + size]
        self._own_gradients = weights.gradients[start : start + size]
        self.updates = [Update(self._own_values, kind=kind, state_dtype=state_dtype)]
        self.loss_scale = LossScale(weights.values.dtype, probe)

    @torch.no_grad()
    def step(self) -> None:
        """Reduce the gradients, update, gather the weights, and empty the gradients for the next step."""
        if self._weights.num_partial:
            self._tp.all_reduce(self._weights.gradients[: self._weights.num_partial])
        gradients = self._reduce()
        is_usable = self.loss_scale.is_usable([gradients])
        with self._probe.phase("optimizer"):
            if is_usable:
                self.updates[0](self.loss_scale.unscaled(gradients))
            self._weights.gradients.zero_()
        self.loss_scale.adapt(is_usable)
        if self._shards is not None:
            with self._probe.phase("dp", "all_gather"):
                dist.all_gather_single(self._weights.values, self._own_values.clone(), group=self._shards)

    def _reduce(self) -> torch.Tensor:
        """The sum over replicas of this rank's share of the gradients."""
        share = self._own_gradients
        if self._shards is not None:
            with self._probe.phase("dp", "reduce_scatter"):
                share = torch.empty_like(self._own_gradients)
                dist.reduce_scatter_single(share, self._weights.gradients, group=self._shards)
        if self._replicas is not None:
            with self._probe.phase("dp", "all_reduce"):
                dist.all_reduce(share, group=self._replicas)
        return share
