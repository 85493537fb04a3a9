"""Memory of each pipeline stage: every part of docs/cost-model.md, as arrays (n layouts, stages)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.activations import FULL, KeptBytes, kept_bytes
from tpdpdash.cost.adapters import adapted_matrices, adapter_parameters
from tpdpdash.cost.arrays import Floats, column, of_rows
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.parameters import LayerShard, embedding_shard, head_shard, layer_shard, vocab_rows
from tpdpdash.cost.stages import StageKinds
from tpdpdash.cost.states import DTYPE_BYTES, StateBytes, compute_bytes, sharded, state_bytes
from tpdpdash.layout.columns import RECOMPUTE_METHODS, LayoutColumns
from tpdpdash.model.spec import ModelSpec
from tpdpdash.schedule.closed_form import microbatches_in_flight
from tpdpdash.training import Training
from tpdpdash.units import ceil_div

BLOCK = RECOMPUTE_METHODS.index("block")
GATHERED_LAYERS = 2.0
"""Under ZeRO-3 the layer in use and the one that is prefetched are whole."""
MESSAGE_BUFFERS = 2.0
"""Stage boundaries: one tensor received and one being sent."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageMemory:
    """Bytes on one rank of each stage, every array (n, stages); 0 where a row has fewer stages."""

    weights_bytes: Floats
    """Weights of the stage, sharded by ZeRO-3."""
    gradients_bytes: Floats
    """Gradients that stay allocated, sharded from ZeRO-2."""
    optimizer_bytes: Floats
    """Masters and moments, sharded from ZeRO-1; 0 where they live in host memory."""
    activations_bytes: Floats
    """Kept for backward, over all microbatches in flight, with the working set of recompute."""
    logits_bytes: Floats
    """Logits, their softmax and gradient on the last stage."""
    buffers_bytes: Floats
    """Gathered weights (ZeRO-3), gradient buckets, stage and sequence messages, context parallel blocks."""
    overhead_bytes: Floats
    """Context, workspace and allocator slack of the device."""

    @property
    def total_bytes(self) -> Floats:
        """All parts (n, stages)."""
        states = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return states + self.activations_bytes + self.logits_bytes + self.buffers_bytes + self.overhead_bytes

    @property
    def peak_bytes(self) -> Floats:
        """The fullest stage of each row (n,)."""
        return np.asarray(self.total_bytes.max(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageParameters:
    """Parameters on one rank of each stage, (n, stages)."""

    dense: Floats
    """All but routed experts."""
    experts: Floats
    """Routed experts."""
    largest_unit: Floats
    """The largest unit that ZeRO-3 gathers at once: a layer (n, 1)."""
    ends: Floats
    """Embedding and head, part of `dense`."""
    adapters: Floats
    """Low-rank adapters, no part of the others; zeros without LoRA."""
    is_frozen: bool
    """LoRA: only the adapters have gradients and optimizer states."""

    @property
    def trained(self) -> tuple[Floats, Floats]:
        """Parameters that are trained: (reduced over dp·cp, over expert-dp). Adapters of experts count as dense."""
        if self.is_frozen:
            return self.adapters, np.zeros_like(self.experts)
        return self.dense, self.experts

    @property
    def trained_ends(self) -> Floats:
        """Embedding and head as far as they are trained."""
        return np.zeros_like(self.ends) if self.is_frozen else self.ends


def stage_parameters(
    model: ModelSpec,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
    training: Training | None = None,
) -> StageParameters:
    """Parameters that one rank of each stage holds, before ZeRO. training: what is trained; None = all of them."""
    shards: list[tuple[Floats, LayerShard]] = []
    for moe, layers in ((False, kinds.dense_layers), (True, kinds.moe_layers)):
        if layers.any():
            shards.append((layers, layer_shard(model, moe, tp=columns.tp, ep=columns.ep, etp=columns.etp)))
    dense, experts, adapters = (np.zeros_like(kinds.count) for _ in range(3))
    for moe, layers in ((False, kinds.dense_layers), (True, kinds.moe_layers)):
        if training is not None and training.trainable == "lora" and layers.any():
            matrices = adapted_matrices(model, training, moe, tp=columns.tp, ep=columns.ep, etp=columns.etp)
            adapters = adapters + layers * column(of_rows(adapter_parameters(matrices, training.lora_rank), columns.tp))
    for layers, shard in shards:
        dense = dense + layers * column(of_rows(shard.dense, columns.tp))
        experts = experts + layers * column(of_rows(shard.experts, columns.tp))
    embedding = embedding_shard(model, tp=columns.tp, framework=habits.name)
    head = head_shard(model, tp=columns.tp, pp=columns.pp, framework=habits.name)
    ends = kinds.is_first * column(of_rows(embedding, columns.tp)) + kinds.is_last * column(of_rows(head, columns.tp))
    largest = np.zeros(len(columns))
    for _, shard in shards:
        largest = np.maximum(largest, shard.dense + shard.experts)
    return StageParameters(
        dense=dense + ends,
        experts=experts,
        largest_unit=column(largest),
        ends=ends,
        adapters=adapters,
        is_frozen=training is not None and training.trainable == "lora",
    )


def shard_sizes(columns: LayoutColumns) -> tuple[Floats, Floats]:
    """Ranks over which ZeRO shards (dense parameters, experts), each (n,).

    Dense parameters: dp_shard_size · cp, since context parallel ranks hold the same weights; experts: the same share of
    expert-dp = tp · cp · dp / (etp · ep).
    """
    dense = columns.dp_shard_size * columns.cp
    experts = np.maximum(columns.expert_dp * columns.dp_shard_size / columns.dp, 1.0)
    return dense, experts


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
    parameters = stage_parameters(model, habits, columns, kinds, training)
    states = _states(state_bytes(training, habits), training, columns, parameters)
    weights, gradients, optimizer = (part * kinds.exists for part in states)
    logits = _logits(model, training, habits, columns, kinds)
    activations = _activations(model, training, habits, columns, kinds, logits)
    buffers = _buffers(model, training, habits, columns, parameters)
    exists = kinds.exists
    optimizer = np.where(column(columns.offload_optimizer), 0.0, optimizer)
    held = weights + gradients + optimizer + activations + logits + buffers
    return StageMemory(
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        activations_bytes=np.where(exists, activations, 0.0),
        logits_bytes=logits,
        buffers_bytes=np.where(exists, buffers, 0.0),
        overhead_bytes=np.where(exists, _overhead(cluster, habits, held), 0.0),
    )


def _overhead(cluster: ClusterSpec, habits: FrameworkHabits, held: Floats) -> Floats:
    """Context, workspace, and what the allocator reserves beyond what tensors hold: as much as there is room for, since
    it gives reserved blocks back before it fails, (n, stages)."""
    device = cluster.device
    room = device.usable_bytes if math.isfinite(device.usable_bytes) else math.inf
    reserved = np.minimum(habits.allocator_frac * held, np.maximum(room - device.overhead_bytes - held, 0.0))
    return np.asarray(device.overhead_bytes + reserved)


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
        parts.append(np.asarray(own + sharded(per_parameter, experts, zero >= stage, expert_size)))
    gathered = np.where((zero == 2) & (dense_size > 1), each.gathered_weights, 0.0)
    parts[0] = parts[0] + gathered * (dense + experts)
    if held.is_frozen:
        frozen = compute_bytes(training)
        whole = sharded(frozen, held.dense, zero >= 3, dense_size)
        parts[0] = parts[0] + whole + sharded(frozen, held.experts, zero >= 3, expert_size)
    ends = sharded(each.end_optimizer, held.trained_ends, zero >= 1, dense_size)
    return parts[0], parts[1], np.asarray(parts[2] + ends)


def tokens_per_microbatch(training: Training, columns: LayoutColumns) -> Floats:
    """Tokens of one microbatch on one rank: b · s / cp (n,)."""
    return columns.micro_batch_size * training.seq_len / columns.cp


def _activations(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
    logits_bytes: Floats,
) -> Floats:
    """Kept activations over the microbatches in flight, the working set of one recompute, and the gradients inside one
    layer as far as they exceed the logits, which are gone by then, (n, stages)."""
    tokens = column(tokens_per_microbatch(training, columns))
    kept, working, gradients = kept_activations(model, training, habits, columns, kinds)
    in_flight = microbatches_in_flight(
        column(columns.schedule),
        column(columns.pp),
        column(columns.num_microbatches(training.global_batch_size)),
        column(columns.num_model_chunks),
        kinds.index,
        column(columns.microbatch_group_size_per_vp_stage),
    )
    offloaded = np.where(column(columns.offload_activations), np.minimum(in_flight, 1.0), in_flight)
    inside = np.maximum(tokens * gradients - logits_bytes, 0.0)
    return np.asarray(tokens * (kept * offloaded + working) + inside)


def kept_activations(
    model: ModelSpec, training: Training, habits: FrameworkHabits, columns: LayoutColumns, kinds: StageKinds
) -> tuple[Floats, Floats, Floats]:
    """(kept through one microbatch, working set of one recompute, gradients inside one layer), bytes per token, each
    (n, stages)."""
    split = np.where(columns.sequence_parallel, columns.tp, 1.0)
    kept, working, gradients = (np.zeros_like(kinds.count) for _ in range(3))
    for moe, layers in ((False, kinds.dense_layers), (True, kinds.moe_layers)):
        if not layers.any():
            continue
        each = kept_bytes(
            model, training, habits, moe, tp=columns.tp, etp=columns.etp, sequence_parallel=columns.sequence_parallel
        )
        kept = kept + _kept_by_layers(each, columns, layers, kinds.layers)
        working = np.maximum(working, np.where(layers > 0, _working_set(each, columns), 0.0))
        inner = column(of_rows(each.gradients, columns.tp))
        gradients = np.maximum(gradients, np.where(layers > 0, inner, 0.0))
    residual = compute_bytes(training) * model.hidden_size / split
    kept = kept + kinds.is_last * column(2 * residual)
    if training.dropout > 0:
        kept = kept + kinds.is_first * column(model.hidden_size / split)
    return kept, working, gradients


def recomputed_layers(columns: LayoutColumns, layers: Floats) -> Floats:
    """Layers of each stage that recompute, (n, stages): all, or with method block the first recompute_num_layers."""
    asked = column(np.where(np.isnan(columns.recompute_num_layers), np.inf, columns.recompute_num_layers))
    blocked = np.where(column(columns.recompute_method == BLOCK), np.minimum(layers, asked), layers)
    return np.where(column(columns.recompute > 0), blocked, 0.0)


def _block_size(columns: LayoutColumns) -> Floats:
    """Layers between two kept inputs under full uniform recompute, (n, 1)."""
    uniform = (columns.recompute == FULL) & (columns.recompute_method != BLOCK)
    asked = np.where(np.isnan(columns.recompute_num_layers), 1.0, columns.recompute_num_layers)
    return column(np.where(uniform, asked, 1.0))


def _kept_by_layers(each: KeptBytes, columns: LayoutColumns, layers: Floats, all_layers: Floats) -> Floats:
    """Bytes per token that layers of one type keep on each stage, (n, stages)."""
    share = recomputed_layers(columns, all_layers) / np.maximum(all_layers, 1.0)
    recomputed = layers * share
    inputs = ceil_div(recomputed, _block_size(columns))
    kept = np.where(column(columns.recompute == FULL), inputs, recomputed) * column(
        of_rows(each.of(columns.recompute), columns.tp)
    )
    return kept + (layers - recomputed) * column(of_rows(each.everything, columns.tp))


def _working_set(each: KeptBytes, columns: LayoutColumns) -> Floats:
    """Activations of the layers that are being recomputed, beyond what they keep, per token (n, 1)."""
    more = np.maximum(each.everything - each.of(columns.recompute), 0.0)
    return np.where(column(columns.recompute > 0), column(of_rows(more, columns.tp)) * _block_size(columns), 0.0)


def _logits(
    model: ModelSpec, training: Training, habits: FrameworkHabits, columns: LayoutColumns, kinds: StageKinds
) -> Floats:
    """Logits of the last stage: tokens · padded V / tp elements; GPipe holds every microbatch's until its backward."""
    rows = vocab_rows(model, columns.tp, habits.name)
    held = np.where(columns.is_schedule("gpipe"), columns.num_microbatches(training.global_batch_size), 1.0)
    element = habits.logit_kept_bytes * tokens_per_microbatch(training, columns) * rows * held
    return kinds.is_last * column(element)


def _buffers(
    model: ModelSpec, training: Training, habits: FrameworkHabits, columns: LayoutColumns, held: StageParameters
) -> Floats:
    """Communication buffers, (n, stages)."""
    element, h = compute_bytes(training), model.hidden_size
    tokens = tokens_per_microbatch(training, columns)
    split = np.where(columns.sequence_parallel, columns.tp, 1.0)
    gathers = (columns.zero_stage >= 3) & (columns.dp_shard_size * columns.cp > 1)
    gradient = 0.0 if held.is_frozen else element + state_bytes(training, habits).gradients
    unit = held.largest_unit * (GATHERED_LAYERS * element + gradient) + held.ends * element
    messages = np.where(columns.pp > 1, MESSAGE_BUFFERS * element * tokens * h / split, 0.0)
    sequence = np.where(columns.sequence_parallel & (columns.tp > 1), element * tokens * h, 0.0)
    kv = model.num_kv_heads * (model.query_head_dim + model.value_head_dim) / columns.tp
    ring = np.where(columns.cp > 1, 2 * element * tokens * kv, 0.0)
    buckets = np.where((columns.zero_stage >= 1) & (columns.dp > 1), habits.gradient_bucket_bytes, 0.0)
    copy = _fp32_gradients(state_bytes(training, habits), habits, columns, held)
    return np.asarray(np.where(column(gathers), unit, 0.0) + copy + column(messages + sequence + ring + buckets))


def _fp32_gradients(
    each: StateBytes, habits: FrameworkHabits, columns: LayoutColumns, held: StageParameters
) -> Floats | float:
    """The fp32 copy of a rank's own 16-bit gradients under ZeRO, for frameworks whose update makes one, (n, stages). It
    is made when activations are gone, but a block of its size finds no place among theirs."""
    if not (habits.updates_from_fp32_gradients and each.gradients == DTYPE_BYTES["fp16"]):
        return 0.0
    dense, experts = held.trained
    dense_size, expert_size = (column(size) for size in shard_sizes(columns))
    own = DTYPE_BYTES["fp32"] * (dense / dense_size + experts / expert_size)
    return np.asarray(np.where(column(columns.zero_stage) >= 1, own, 0.0))
