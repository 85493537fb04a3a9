"""Building the rank's part of a training job: its stages with their start weights, and what updates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tpdpdash.layout.layout import Layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.telemetry.probe import Probe
from tpdpdash.training import Training
from tpdpdash.worker.collectives import TensorGroup
from tpdpdash.worker.groups import Groups
from tpdpdash.worker.optimizer import ShardedOptimizer, StepOptimizer
from tpdpdash.worker.parts import Part, parts_of
from tpdpdash.worker.transformer import Recomputation, Stage
from tpdpdash.worker.weights import FlatWeights, Weight, meta_parameters, stage_weights

if TYPE_CHECKING:
    from tpdpdash.worker.fully_sharded import FullyShardedWeights

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """One rank's share of the model."""

    parts: tuple[Part, ...]
    """The parts of the model, first chunk first."""
    stages: tuple[Stage, ...]
    """Their modules."""
    weights: FlatWeights | FullyShardedWeights
    """What is behind their parameters."""
    optimizer: StepOptimizer
    """Ends each step."""
    tp: TensorGroup
    """The tensor-parallel group."""


def build(model: ModelSpec, training: Training, layout: Layout, place: Place) -> Built:
    """The layout must have passed the rules of framework "builtin"."""
    at = place.groups.coordinates
    tp = TensorGroup(
        group=place.groups.tp,
        rank=at.tp,
        size=layout.tp,
        sequence_parallel=layout.sequence_parallel,
        probe=place.probe,
    )
    parts = parts_of(layout, at.pp)
    declared = [
        stage_weights(model, part.layers, part.is_first, part.is_last, layout.tp, layout.sequence_parallel)
        for part in parts
    ]
    if layout.zero_stage >= 2 and place.groups.dp_shards is not None:
        return _fully_sharded(model, training, layout, place, tp, parts, declared[0])
    together = sorted((weight for each in declared for weight in each), key=lambda weight: not weight.is_partial)
    weights = FlatWeights(
        together,
        tp=layout.tp,
        dp=layout.dp,
        dtype=DTYPES[training.precision],
        gradient_dtype=DTYPES[training.gradient_dtype],
        device=place.device,
    )
    weights.initialise(together, SEED, layout.tp, at.tp)
    optimizer = ShardedOptimizer(
        weights,
        kind=training.optimizer,
        state_dtype=DTYPES[training.optimizer_states],
        zero_stage=layout.zero_stage,
        groups=place.groups,
        tp=tp,
        probe=place.probe,
    )
    stages = tuple(
        build_stage(
            model, training, layout, place, tp, part, {weight.name: weights.parameters[weight.name] for weight in own}
        )
        for part, own in zip(parts, declared, strict=True)
    )
    return Built(parts=parts, stages=stages, weights=weights, optimizer=optimizer, tp=tp)


def _fully_sharded(
    model: ModelSpec,
    training: Training,
    layout: Layout,
    place: Place,
    tp: TensorGroup,
    parts: tuple[Part, ...],
    declared: Sequence[Weight],
) -> Built:
    """ZeRO 2 and 3: one stage, under FSDP2."""
    from tpdpdash.worker.fully_sharded import FullyShardedOptimizer, FullyShardedWeights

    parameters = meta_parameters(declared, layout.tp)
    stage = build_stage(model, training, layout, place, tp, parts[0], parameters)
    weights = FullyShardedWeights(
        stage,
        parameters,
        declared,
        zero_stage=layout.zero_stage,
        groups=place.groups,
        dtype=DTYPES[training.precision],
        gradient_dtype=DTYPES[training.gradient_dtype],
        device=place.device,
        probe=place.probe,
    )
    weights.initialise(declared, SEED, layout.tp, tp.rank)
    optimizer = FullyShardedOptimizer(
        weights,
        kind=training.optimizer,
        state_dtype=DTYPES[training.optimizer_states],
        dtype=DTYPES[training.precision],
        groups=place.groups,
        tp=tp,
        probe=place.probe,
    )
    return Built(parts=parts, stages=(stage,), weights=weights, optimizer=optimizer, tp=tp)


def build_stage(
    model: ModelSpec,
    training: Training,
    layout: Layout,
    place: Place,
    tp: TensorGroup,
    part: Part,
    parameters: Mapping[str, torch.nn.Parameter],
) -> Stage:
    """The module of one part, on given parameters."""
    recomputation = Recomputation(
        kind=layout.recompute, num_layers=layout.recompute_num_layers, method=layout.recompute_method
    )
    return Stage(
        model,
        parameters,
        part.layers,
        tp,
        seq_len=training.seq_len,
        attention=training.attention,
        recomputation=recomputation,
        device=place.device,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchShapes:
    """Meta tensors of one microbatch on this rank."""

    tokens: torch.Tensor
    """What the first stage takes."""
    activation: torch.Tensor
    """What goes from stage to stage."""
    logits: torch.Tensor
    """What the last stage makes."""

    @classmethod
    def of(cls, model: ModelSpec, training: Training, layout: Layout) -> MicrobatchShapes:
        """Of a layout's microbatches."""
        s, b = training.seq_len, layout.micro_batch_size
        dtype = DTYPES[training.precision]
        local_s = s // layout.tp if layout.sequence_parallel else s
        return cls(
            tokens=torch.empty(b, s, dtype=torch.int64, device="meta"),
            activation=torch.empty(local_s, b, model.hidden_size, dtype=dtype, device="meta", requires_grad=True),
            logits=torch.empty(s, b, model.vocab_size // layout.tp, dtype=dtype, device="meta", requires_grad=True),
        )
