"""The steps of one rank of a training job."""

from __future__ import annotations

import torch

from tpdpdash.layout.layout import Layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training
from tpdpdash.worker.accumulate import Accumulation, Batch, LossFunction, Runner
from tpdpdash.worker.build import Built, MicrobatchShapes, Place, build
from tpdpdash.worker.collectives import vocab_parallel_cross_entropy
from tpdpdash.worker.data import Tokens, replica_batch


class Trainer:
    """One rank's part of a job: its stage, its share of the optimizer, its part of the batch."""

    def __init__(self, model: ModelSpec, training: Training, layout: Layout, place: Place, tokens: Tokens) -> None:
        """The layout must have passed the rules of framework "builtin"."""
        self._training, self._layout, self._place, self._tokens = training, layout, place, tokens
        self._num_microbatches = layout.num_microbatches(training.global_batch_size)
        built = build(model, training, layout, place)
        self._parts, self._tp = built.parts, built.tp
        self.weights, self.optimizer = built.weights, built.optimizer
        self._runner = self._make_runner(built, model)

    @property
    def tokens_per_step(self) -> float:
        """Tokens of this rank's replica in one step: equal on its tp and pp ranks."""
        return self._training.tokens_per_step / self._layout.dp

    def step(self, number: int) -> torch.Tensor | None:
        """Train one step (from 1); this replica's mean loss on the last stage, else None.

        The mean over replicas is left to the reader of the records: it would cost a collective of its own.
        """
        probe = self._place.probe
        with probe.phase("data"):
            batch = self._batch(number)
        losses = self._runner(batch)
        loss = None
        if losses:
            with probe.phase("loss"):
                loss = torch.stack(losses).sum() * (self._layout.dp / self.optimizer.loss_scale.value)
        self.optimizer.step()
        return loss

    def _batch(self, number: int) -> Batch | None:
        """Inputs and targets where the stage needs them."""
        if not any(part.is_first or part.is_last for part in self._parts):
            return None
        inputs, targets = replica_batch(
            self._tokens,
            step=number,
            global_batch_size=self._training.global_batch_size,
            dp=self._layout.dp,
            dp_rank=self._place.groups.coordinates.dp,
        )
        device = self._place.device
        return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)

    def _loss_function(self) -> LossFunction:
        probe, tp, optimizer = self._place.probe, self._tp, self.optimizer
        num_averaged = self._num_microbatches * self._layout.dp

        def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            with probe.phase("loss"):
                return vocab_parallel_cross_entropy(logits, targets.t(), tp) * (
                    optimizer.loss_scale.value / num_averaged
                )

        return loss

    def _make_runner(self, built: Built, model: ModelSpec) -> Runner:
        place, layout, loss_function = self._place, self._layout, self._loss_function()
        if layout.pp == 1:
            return Accumulation(
                built.stages[0],
                num_microbatches=self._num_microbatches,
                loss_function=loss_function,
                before_microbatch=self.weights.before_microbatch,
                probe=place.probe,
            )
        from tpdpdash.worker.pipeline import Pipeline

        return Pipeline(
            built.stages,
            built.parts,
            schedule=layout.schedule,
            num_stages=layout.pp * len(built.parts),
            num_microbatches=self._num_microbatches,
            shapes=MicrobatchShapes.of(model, self._training, layout),
            device=place.device,
            group=place.groups.pp,
            loss_function=loss_function,
            after_weight_gradients=self.weights.collect_gradients,
            probe=place.probe,
        )
