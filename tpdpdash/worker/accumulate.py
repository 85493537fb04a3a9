"""One step without a pipeline: forward and backward of each microbatch in turn, gradients summed.

Losses are divided by what they are averaged over before backward, here and in worker.pipeline, so that gradients are
only ever summed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from tpdpdash.telemetry.probe import Probe
from tpdpdash.worker.transformer import Stage

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(logits, targets) → the microbatch's share of the loss."""
Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets of one replica's step, each (sequences, tokens)."""


class Runner(Protocol):
    """Runs all microbatches of one step on this rank's stage."""

    def __call__(self, batch: Batch | None) -> list[torch.Tensor]:
        """The loss shares on the last stage, else none. `batch` is needed on the first and the last stage."""


class Accumulation:
    """pp = 1."""

    def __init__(
        self,
        stage: Stage,
        *,
        num_microbatches: int,
        loss_function: LossFunction,
        before_microbatch: Callable[[bool], None],
        probe: Probe,
    ) -> None:
        """`before_microbatch` is told whether the microbatch is the step's last."""
        self._stage, self._num_microbatches = stage, num_microbatches
        self._loss_function, self._probe = loss_function, probe
        self._before_microbatch = before_microbatch

    def __call__(self, batch: Batch | None) -> list[torch.Tensor]:
        """The loss share of each microbatch."""
        if batch is None:
            raise ValueError("batch is None; the only stage needs one")
        probe, losses = self._probe, []
        inputs, targets = (part.chunk(self._num_microbatches) for part in batch)
        for microbatch, (tokens, target) in enumerate(zip(inputs, targets, strict=True)):
            self._before_microbatch(microbatch == self._num_microbatches - 1)
            with probe.action("F", 0, microbatch):
                with probe.phase("forward"):
                    logits = self._stage(tokens)
                loss = self._loss_function(logits, target)
            with probe.action("B", 0, microbatch), probe.phase("backward"):
                loss.backward()
                losses.append(loss.detach())
                del logits, loss  # here, so that freeing the graph counts as backward and not as the next region
        return losses
