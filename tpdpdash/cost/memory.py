"""Memory of each pipeline stage: every part of docs/cost-model.md, as arrays (n layouts, stages)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec, DeviceSpec
from tpdpdash.cost.arrays import Floats, column, floats, of_rows
from tpdpdash.cost.buffers import communicators, fp32_gradients, sequence_bytes, stage_buffers, steady_buffers
from tpdpdash.cost.builtin_memory import builtin_memory, is_built
from tpdpdash.cost.distinct import column_runs
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.parameters import vocab_rows
from tpdpdash.cost.stage_activations import stage_activations, stage_logits
from tpdpdash.cost.stage_parameters import StageParameters, shard_sizes, stage_parameters
from tpdpdash.cost.stages import StageKinds
from tpdpdash.cost.states import StateBytes, compute_bytes, sharded, state_bytes
from tpdpdash.elementwise import choose, larger, smaller, somewhere
from tpdpdash.layout.columns import SHARDING, LayoutColumns
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

CONTEXT_FRAC = 0.5
"""Half of a device's overhead is its context; the other half is slack of the allocator, which gives way."""

ROUNDING_BYTES = 1.0
"""What the allocator leaves of the room that it fills, so that no sum of parts exceeds it by rounding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageMemory:
    """Bytes on one rank of each stage, every array (n, stages); 0 where a row has fewer stages."""

    weights_bytes: Floats
    """Weights of the stage, sharded by ZeRO-3."""
    gradients_bytes: Floats
    """Gradients that stay allocated, sharded from ZeRO-2."""
    optimizer_bytes: Floats
    """Masters and moments, sharded from ZeRO-1; without what lives in host memory."""
    activations_bytes: Floats
    """Kept for backward, over all microbatches in flight, with the working set of recompute."""
    logits_bytes: Floats
    """Logits, their softmax and gradient on the last stage."""
    buffers_bytes: Floats
    """Gathered weights (ZeRO-3), gradient buckets, messages of stages, sequences and contexts, workspaces."""
    overhead_bytes: Floats
    """Context, communication buffers and allocator slack of the device."""

    @property
    def total_bytes(self) -> Floats:
        """All parts (n, stages)."""
        states = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return states + self.activations_bytes + self.logits_bytes + self.buffers_bytes + self.overhead_bytes

    @property
    def peak_bytes(self) -> Floats:
        """The fullest stage of each row (n,)."""
        return floats(self.total_bytes.max(axis=1))


def stage_memory(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
) -> StageMemory:
    """Memory of each stage kind of n layouts.

    Left out: fragmentation beyond the device's overhead and the framework's share, temporary tensors of single
    operators, host memory.
    """
    if habits.counts_operators and is_built(model, training):
        return _of_builtin(model, cluster, training, habits, columns, kinds)
    runs = column_runs(columns, ignoring=SHARDING)
    few, few_kinds = runs.firsts(columns), runs.firsts(kinds)
    parameters = runs.spread(stage_parameters(model, habits, few, few_kinds, training))
    weights, gradients, optimizer = _states_on_device(model, training, habits, columns, kinds, parameters)
    exists = kinds.exists
    few_logits = stage_logits(model, training, habits, few, few_kinds)
    few_activations = stage_activations(model, cluster.device, training, habits, few, few_kinds, few_logits)
    logits, activations = runs.spread((few_logits, few_activations))
    passing, copy = activations + logits, fp32_gradients(training, habits, columns, parameters)
    update = larger(copy - passing, 0.0)
    buffers = stage_buffers(model, cluster.device, training, habits, columns, kinds, parameters, update)
    held = weights + gradients + optimizer + activations + logits + buffers
    scattered: Floats | float = 0.0
    if habits.allocator_frac:
        scattered = choose(column(columns.zero_stage) >= 1, smaller(copy, passing), 0.0)
    return StageMemory(
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        activations_bytes=activations,
        logits_bytes=logits,
        buffers_bytes=choose(exists, buffers, 0.0),
        overhead_bytes=choose(exists, _overhead(cluster, habits, columns, held, scattered), 0.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BetweenSteps:
    """What is allocated beside the states when a step has ended, every array (n, stages)."""

    buffers_bytes: Floats
    """Buffers that stay: workspaces, tensors at stage boundaries; part of StageMemory's buffers."""
    update_bytes: Floats
    """The fp32 copy of 16-bit gradients, which the next step frees."""


def between_steps(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
) -> BetweenSteps:
    """What a counter reads between two steps beside weights, gradients and optimizer states."""
    held = stage_parameters(model, habits, columns, kinds, training)
    steady = steady_buffers(model, cluster.device, training, habits, columns, kinds)
    if habits.keeps_gathered_sequence:
        steady = steady + kinds.is_last * column(sequence_bytes(model, training, columns))
    return BetweenSteps(
        buffers_bytes=kinds.exists * steady,
        update_bytes=kinds.exists * np.asarray(fp32_gradients(training, habits, columns, held)),
    )


def _of_builtin(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
) -> StageMemory:
    """The built-in worker's, whose tensors are counted operator by operator."""
    held = builtin_memory(model, training, habits, columns, kinds, is_cpu=cluster.device.is_cpu)
    parts = {f"{field.name}_bytes": getattr(held, field.name) * kinds.exists for field in fields(held)}
    overhead = _overhead(cluster, habits, columns, np.add.reduce(list(parts.values())))
    return StageMemory(**parts, overhead_bytes=choose(kinds.exists, overhead, 0.0))


def outside_bytes(device: DeviceSpec, columns: LayoutColumns) -> Floats:
    """What the framework's counters do not show: the device's context and communicators (n,)."""
    return floats(CONTEXT_FRAC * device.overhead_bytes + device.communicator_bytes * communicators(columns))


def _overhead(
    cluster: ClusterSpec, habits: FrameworkHabits, columns: LayoutColumns, held: Floats, scattered: Floats | float = 0.0
) -> Floats:
    """Context, communicators, and what the allocator reserves beyond what tensors hold: as much as there is room for,
    since it gives reserved blocks back before it fails, (n, stages). scattered: tensors that would fit into freed
    blocks, were they not cut up."""
    device = cluster.device
    own = column(outside_bytes(device, columns))
    room = device.usable_bytes - ROUNDING_BYTES if math.isfinite(device.usable_bytes) else math.inf
    slack = (1 - CONTEXT_FRAC) * device.overhead_bytes + habits.allocator_frac * held + scattered
    return floats(own + smaller(slack, larger(room - own - held, 0.0)))


def _states_on_device(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
    held: StageParameters,
) -> tuple[Floats, Floats, Floats]:
    """(weights, gradients, optimizer) bytes of the fullest rank without what lives in host memory, each (n, stages)."""
    weights, gradients, optimizer = _states(state_bytes(training, habits), training, columns, held)
    if habits.distributes_whole_matrices and training.optimizer == "muon":
        optimizer = larger(optimizer, _with_a_table(model, training, habits, columns, kinds, held))
    if somewhere(columns.offload_optimizer):
        kept = 1 - training.optimizer_offload_fraction
        optimizer = choose(column(columns.offload_optimizer), kept * optimizer, optimizer)
        if habits.offloads_gradients:
            moved = columns.offload_optimizer & (columns.zero_stage >= 2)
            gradients = choose(column(moved), kept * gradients, gradients)
    return weights, gradients, optimizer


def _states(
    each: StateBytes, training: Training, columns: LayoutColumns, held: StageParameters
) -> tuple[Floats, Floats, Floats]:
    """(weights, gradients, optimizer) bytes, each (n, stages).

    Frozen weights are held in the compute precision, whatever the framework does with weights that it updates.
    """
    dense_size, expert_size = (column(size) for size in shard_sizes(columns))
    zero = column(columns.zero_stage)
    parts = []
    dense, experts = held.trained
    weights_from = 2 if each.gathered_weights else 3
    for per_parameter, stage in ((each.weights, weights_from), (each.gradients, 2), (each.optimizer, 1)):
        own = sharded(per_parameter, dense, zero >= stage, dense_size)
        parts.append(floats(own + sharded(per_parameter, experts, zero >= stage, expert_size)))
    if each.gathered_weights:
        gathered = choose(zero == 2, each.gathered_weights, 0.0)
        parts[0] = parts[0] + gathered * ((dense_size > 1) * dense + (expert_size > 1) * experts)
    if held.is_frozen:
        frozen = compute_bytes(training)
        whole = sharded(frozen, held.dense, zero >= 3, dense_size)
        parts[0] = parts[0] + whole + sharded(frozen, held.experts, zero >= 3, expert_size)
    if each.end_optimizer:
        parts[2] = floats(parts[2] + sharded(each.end_optimizer, held.trained_ends, zero >= 1, dense_size))
    return parts[0], parts[1], parts[2]


def _with_a_table(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
    held: StageParameters,
) -> Floats:
    """Optimizer bytes of the rank that embedding or head was dealt to whole, beside its share of experts, (n, stages).
    It holds nothing else that is dense: the other ranks have less."""
    each, (_, experts) = state_bytes(training, habits), held.trained
    table = 0.0 if held.is_frozen else vocab_rows(model, columns.tp, habits.name) * model.hidden_size
    whole = larger(kinds.is_first, kinds.is_last) * column(of_rows(table, columns.tp))
    rest = sharded(each.optimizer, experts, column(columns.zero_stage) >= 1, column(shard_sizes(columns)[1]))
    return floats((each.optimizer + each.end_optimizer) * whole + rest)
