"""Tensor-parallel collectives at their call sites: each is one measured region, in forward and in backward.

The pairs f/f̄ and g/ḡ of Megatron-LM (Shoeybi 2019, figure 3; Korthikanti 2022, figure 5) as autograd functions on
plain tensors. Activations have shape (sequence, batch, hidden), so that a sequence shard is contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from tpdpdash.telemetry.probe import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """The tensor-parallel group of this rank, and how its collectives are measured."""

    group: dist.ProcessGroup | None
    """None where tp = 1: nothing is sent."""
    rank: int
    """This rank's place in the group: which shard it holds."""
    size: int
    """Tensor parallel degree."""
    sequence_parallel: bool
    """Between the parallel regions activations are split along the sequence."""
    probe: Probe
    """Measures each collective as phase "tp"."""

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
        """Reduce in place over the group."""
        if self.size > 1:
            with self.probe.phase("tp", "all_reduce"):
                dist.all_reduce(tensor, op=op, group=self.group)
        return tensor

    def all_gather(self, shard: torch.Tensor) -> torch.Tensor:
        """Concatenate the shards of all ranks along the first dimension."""
        with self.probe.phase("tp", "all_gather"):
            whole = shard.new_empty((shard.shape[0] * self.size, *shard.shape[1:]))
            dist.all_gather_single(whole, shard.contiguous(), group=self.group)
        return whole

    def reduce_scatter(self, whole: torch.Tensor) -> torch.Tensor:
        """Sum over ranks; each keeps its part of the first dimension. Gloo runs it as an all-reduce."""
        with self.probe.phase("tp", "reduce_scatter"):
            shard = whole.new_empty((whole.shape[0] // self.size, *whole.shape[1:]))
            dist.reduce_scatter_single(shard, whole.contiguous(), group=self.group)
        return shard


class _Copy(torch.autograd.Function):
    """Identity forward, all-reduce backward (f)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorGroup) -> torch.Tensor:
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.tp.all_reduce(grad.contiguous()), None


class _Reduce(torch.autograd.Function):
    """All-reduce forward, identity backward (f̄)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorGroup) -> torch.Tensor:
        ctx.mark_dirty(x)
        return tp.all_reduce(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004 - autograd's signature
        return grad, None


class _Gather(torch.autograd.Function):
    """All-gather along the sequence forward, reduce-scatter backward (g)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorGroup) -> torch.Tensor:
        ctx.tp = tp
        return tp.all_gather(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.tp.reduce_scatter(grad), None


class _Scatter(torch.autograd.Function):
    """Reduce-scatter along the sequence forward, all-gather backward (ḡ)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorGroup) -> torch.Tensor:
        ctx.tp = tp
        return tp.reduce_scatter(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.tp.all_gather(grad), None


def enter_parallel(x: torch.Tensor, tp: TensorGroup) -> torch.Tensor:
    """Into a tensor-parallel region: the whole sequence on every rank."""
    if tp.size == 1:
        return x
    return _Gather.apply(x, tp) if tp.sequence_parallel else _Copy.apply(x, tp)


def leave_parallel(partial: torch.Tensor, tp: TensorGroup) -> torch.Tensor:
    """Out of a tensor-parallel region: partial sums become the sum, or this rank's sequence shard of it."""
    if tp.size == 1:
        return partial
    return _Scatter.apply(partial, tp) if tp.sequence_parallel else _Reduce.apply(partial, tp)


class _VocabParallelCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of logits whose vocabulary is split over the group.

    Exchanged are the maximum, the sum of exponentials and the target's logit: 3 numbers a token instead of V.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, tp: TensorGroup) -> torch.Tensor:
        num_local = logits.shape[-1]
        scores = logits.float()
        largest = tp.all_reduce(scores.amax(dim=-1), op=dist.ReduceOp.MAX)
        scores = scores - largest.unsqueeze(-1)
        local = targets - tp.rank * num_local
        is_here = (local >= 0) & (local < num_local)
        local = local.clamp(0, num_local - 1).unsqueeze(-1)
        target_score = scores.gather(-1, local).squeeze(-1) * is_here
        scores.exp_()
        denominator, target_score = tp.all_reduce(torch.stack((scores.sum(dim=-1), target_score)))
        scores.div_(denominator.unsqueeze(-1))
        ctx.save_for_backward(scores, local, is_here)
        ctx.logits_dtype = logits.dtype
        return (denominator.log() - target_score).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        softmax, local, is_here = ctx.saved_tensors
        softmax.scatter_add_(-1, local, -is_here.unsqueeze(-1).to(softmax.dtype))
        softmax.mul_(grad / is_here.numel())
        return softmax.to(ctx.logits_dtype), None, None


def vocab_parallel_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, tp: TensorGroup) -> torch.Tensor:
    """Mean cross-entropy: logits (sequence, batch, vocabulary / tp), targets (sequence, batch)."""
    return _VocabParallelCrossEntropy.apply(logits, targets, tp)
