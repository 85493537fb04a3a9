"""Building the rank's part of a training job, and its steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tpdpdash.layout.layout import Layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.telemetry.probe import Probe
from tpdpdash.training import Training
from tpdpdash.worker.accumulate import Accumulation, Batch, LossFunction, Runner
from tpdpdash.worker.collectives import TensorGroup, vocab_parallel_cross_entropy
from tpdpdash.worker.data import Tokens, replica_batch
from tpdpdash.worker.groups import Groups
from tpdpdash.worker.optimizer import ShardedOptimizer
from tpdpdash.worker.transformer import Recomputation, Stage
from tpdpdash.worker.weights import FlatWeights, stage_weights

SEED = 1234
"""Of the start weights and the synthetic tokens; a run repeats exactly."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this rank computes, and with whom."""

    groups: Groups
    """Coordinates and process groups."""
    device: torch.device
    """CPU or this rank's GPU."""
    probe: Probe
    """Measures the regions of each step."""


class Trainer:
    """One rank's part of a job: its stage, its share of the optimizer, its part of the batch."""

    def __init__(self, model: ModelSpec, training: Training, layout: Layout, place: Place, tokens: Tokens) -> None:
        """The layout must have passed the rules of framework "builtin"."""
        at = place.groups.coordinates
        self._training, self._layout, self._place, self._tokens = training, layout, place, tokens
        self._num_microbatches = layout.num_microbatches(training.global_batch_size)
        self._is_first, self._is_last = at.pp == 0, at.pp == layout.pp - 1
        self._tp = TensorGroup(
            group=place.groups.tp,
            rank=at.tp,
            size=layout.tp,
            sequence_parallel=layout.sequence_parallel,
            probe=place.probe,
        )
        stage, self.weights = build_stage(model, training, layout, place, self._tp)
        self.optimizer = ShardedOptimizer(
            self.weights,
            kind=training.optimizer,
            state_dtype=DTYPES[training.optimizer_states],
            zero_stage=layout.zero_stage,
            dp_group=place.groups.dp,
            dp=layout.dp,
            dp_rank=at.dp,
            tp=self._tp,
            probe=place.probe,
        )
        self._runner = self._make_runner(stage, model)

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
                loss = torch.stack(losses).sum() * (self._layout.dp / self.optimizer.loss_scale)
        self.optimizer.step()
        return loss

    def _batch(self, number: int) -> Batch | None:
        """Inputs and targets where the stage needs them."""
        if not (self._is_first or self._is_last):
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
                return vocab_parallel_cross_entropy(logits, targets.t(), tp) * (optimizer.loss_scale / num_averaged)

        return loss

    def _make_runner(self, stage: Stage, model: ModelSpec) -> Runner:
        place, layout, loss_function = self._place, self._layout, self._loss_function()
        if layout.pp == 1:
            return Accumulation(
                stage, num_microbatches=self._num_microbatches, loss_function=loss_function, probe=place.probe
            )
        from tpdpdash.worker.pipeline import Pipeline

        tokens, activation, logits = microbatch_shapes(model, self._training, layout)
        return Pipeline(
            stage,
            schedule=layout.schedule,
            stage_index=place.groups.coordinates.pp,
            num_stages=layout.pp,
            num_microbatches=self._num_microbatches,
            example_input=tokens if self._is_first else activation,
            example_output=logits if self._is_last else activation,
            device=place.device,
            group=place.groups.pp,
            loss_function=loss_function,
            probe=place.probe,
        )


def build_stage(
    model: ModelSpec, training: Training, layout: Layout, place: Place, tp: TensorGroup
) -> tuple[Stage, FlatWeights]:
    """This rank's stage with its start weights, and the flat buffers behind them."""
    at = place.groups.coordinates
    first = sum(layout.layers_per_stage[: at.pp])
    layers = range(first, first + layout.layers_per_stage[at.pp])
    is_first, is_last = at.pp == 0, at.pp == layout.pp - 1
    declared = stage_weights(model, layers, is_first, is_last, layout.tp, layout.sequence_parallel)
    weights = FlatWeights(
        declared,
        tp=layout.tp,
        dp=layout.dp,
        dtype=DTYPES[training.precision],
        gradient_dtype=DTYPES[training.gradient_dtype],
        device=place.device,
    )
    weights.initialise(declared, SEED, layout.tp, at.tp)
    stage = Stage(
        model,
        weights.parameters,
        layers,
        tp,
        seq_len=training.seq_len,
        attention=training.attention,
        recomputation=Recomputation(
            kind=layout.recompute, num_layers=layout.recompute_num_layers, method=layout.recompute_method
        ),
        device=place.device,
    )
    return stage, weights


def microbatch_shapes(
    model: ModelSpec, training: Training, layout: Layout
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Meta tensors of one microbatch: tokens, the activation between stages, this rank's logits."""
    s, b = training.seq_len, layout.micro_batch_size
    dtype = DTYPES[training.precision]
    local_s = s // layout.tp if layout.sequence_parallel else s
    return (
        torch.empty(b, s, dtype=torch.int64, device="meta"),
        torch.empty(local_s, b, model.hidden_size, dtype=dtype, device="meta", requires_grad=True),
        torch.empty(s, b, model.vocab_size // layout.tp, dtype=dtype, device="meta", requires_grad=True),
    )
