"""Memory of the built-in worker's stages: its own buffers to the byte, and the fullest moment of its step.

The worker is code of this package, so nothing is fitted: flat buffers as worker.weights lays them out, tensors that
autograd keeps (builtin_layer), and the temporaries of the moment at which most is alive (builtin_step). The oracle in
tests/differential runs the worker under fake tensors and counts the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tpdpdash.cost.arrays import Flags, Floats, column
from tpdpdash.cost.builtin_fsdp import fully_sharded, weight_shapes
from tpdpdash.cost.builtin_layer import FP32
from tpdpdash.cost.builtin_step import BuiltinStep
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.stages import StageKinds
from tpdpdash.cost.states import DTYPE_BYTES, MOMENTS, state_bytes
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.flat_buffers import aligned, buffer_length
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BuiltinMemory:
    """Bytes of tensors on one rank of each stage, each (n, stages)."""

    weights: Floats
    """Weights in the precision of the GEMMs."""
    gradients: Floats
    """The buffer of gradients, also under fp32 in the precision that was asked."""
    optimizer: Floats
    """Masters and moments of the rank's share."""
    activations: Floats
    """Kept for backward through the microbatches in flight."""
    logits: Floats
    """Logits and their fp32 softmax."""
    buffers: Floats
    """What stays allocated besides, and the temporaries of the fullest moment as far as they exceed what is freed by
    then."""


def is_built(model: ModelSpec, training: Training) -> bool:
    """Whether the worker has the model's modules; the formulas of fused implementations stand in for the others."""
    return not (model.is_moe or model.is_mla) and model.gated_mlp and training.trainable == "all"


def builtin_memory(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
    *,
    is_cpu: bool,
) -> BuiltinMemory:
    """All parts. The fullest moment is in the loss, in the backward of head, norm, last layer or embedding, or
    in the optimizer's step, when nothing is kept."""
    each, gradient = state_bytes(training, habits), DTYPE_BYTES[training.gradient_dtype]
    length = flat_length(model, columns, kinds)
    share = np.where(column(columns.zero_stage) >= 1, length / column(columns.dp_shard_size), length)
    step = BuiltinStep(model, training, columns, kinds, is_cpu=is_cpu)
    groups = fully_sharded(model, training, columns, kinds, step.table)
    fullest = np.where(groups.is_used, step.grouped(groups), step.plain())
    updated = np.where(groups.is_used, groups.largest_shard, share)
    update = _update_bytes(training, groups.is_used, columns) * updated - step.kept() - step.logits()
    return BuiltinMemory(
        weights=np.where(groups.is_used, FP32 * groups.shards, each.weights * length),
        gradients=np.where(groups.is_used, FP32 * groups.shards, gradient * length),
        optimizer=np.where(groups.is_used, _moment_bytes(training) * groups.shards, each.optimizer * share),
        activations=step.kept(),
        logits=step.logits(),
        buffers=step.lasting() + np.maximum.reduce([np.zeros_like(length), fullest, update]),
    )


def flat_length(model: ModelSpec, columns: LayoutColumns, kinds: StageKinds) -> Floats:
    """Elements of a rank's flat buffer of weights, (n, stages)."""
    layer, (table, *head) = (
        [aligned(first * others) for first, others in shapes] for shapes in weight_shapes(model, columns.tp)
    )
    ends = kinds.is_first * column(table) + kinds.is_last * column(np.add.reduce(head))
    return np.asarray(buffer_length(kinds.layers * column(np.add.reduce(layer)) + ends, column(columns.dp)))


def _moment_bytes(training: Training) -> float:
    """Moments of fp32 shards, which need no masters."""
    return MOMENTS[training.optimizer] * DTYPE_BYTES[training.optimizer_states]


def _update_bytes(training: Training, in_groups: Flags, columns: LayoutColumns) -> Floats:
    """Temporaries of the optimizer's step, per element that is updated at once (n, 1): with ZeRO 1 the reduced
    gradients; 16-bit ones in fp32, which FSDP's are; Adam's denominator, with 16-bit moments beside one of them in
    fp32."""
    gradient = DTYPE_BYTES[training.gradient_dtype]
    reduced = np.where((columns.zero_stage >= 1) & (columns.dp_shard_size > 1), gradient, 0.0)
    cast = FP32 if gradient < FP32 else 0.0
    adam = 0.0 if training.optimizer == "sgd" else FP32 * (2 if training.optimizer_states == "bf16" else 1)
    return np.where(in_groups, 0.0, column(reduced + cast)) + adam
