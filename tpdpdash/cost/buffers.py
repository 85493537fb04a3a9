"""Buffers beside states and activations: gathered weights, messages, gradient buckets, workspaces."""

from __future__ import annotations

import functools
import operator

import numpy as np

from tpdpdash.cluster.spec import DeviceSpec
from tpdpdash.cost.arrays import Floats, column, floats, of_rows
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.parameters import kv_bytes, layer_shard, sequence_split
from tpdpdash.cost.stage_activations import tokens_per_microbatch
from tpdpdash.cost.stage_parameters import StageParameters, holds_whole, shard_sizes
from tpdpdash.cost.stages import StageKinds, layer_types
from tpdpdash.cost.states import DTYPE_BYTES, compute_bytes, sharded, state_bytes
from tpdpdash.elementwise import choose, larger, smaller, somewhere
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.frameworks import cp_comm_type
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

GATHERED_LAYERS = 2.0
"""Under ZeRO-3 the layer in use and the one that is prefetched are whole."""
BOUNDARY_TENSORS = 2.0
"""A chunk's received input and the gradient of it, which Megatron keeps until the next microbatch replaces them."""
CUBLAS_HANDLES = 2.0
"""torch has one cuBLAS handle for each thread that launches products: forward, and autograd's backward."""
GROUPED_STREAMS = 4.0
"""Transformer Engine's grouped products run on this many streams, with a workspace each."""


def stage_buffers(
    model: ModelSpec,
    device: DeviceSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
    held: StageParameters,
    update: Floats | float,
) -> Floats:
    """Communication buffers and workspaces, (n, stages). update: what it makes beyond the room of activations."""
    whole = holds_whole(habits, columns)
    gathers = (columns.zero_stage >= 3) & (columns.dp_shard_size * columns.cp > 1) & ~whole
    sequence = sequence_bytes(model, training, columns)
    context = context_bytes(model, training, habits, columns)
    buckets = choose((columns.zero_stage >= 1) & (columns.dp > 1), habits.gradient_bucket_bytes, 0.0)
    steady = steady_buffers(model, device, training, habits, columns, kinds)
    gathered = choose(column(gathers), _gathered(training, habits, held), 0.0) if somewhere(gathers) else 0.0
    if somewhere(whole):
        gathered = choose(column(whole), _held_whole(training, habits, columns, held), gathered)
    replicated = habits.replicates_by_ddp & ((columns.zero_stage < 2) | (columns.dp * columns.cp == 1))
    if somewhere(replicated):
        gathered = gathered + choose(column(replicated), _replicated(training, habits, columns, held), 0.0)
    return floats(gathered + update + steady + column(sequence + context + buckets))


def steady_buffers(
    model: ModelSpec,
    device: DeviceSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
) -> Floats:
    """Buffers that stay allocated between two steps whatever the sequence's split: workspaces and the tensors at stage
    boundaries, (n, stages)."""
    unread = column(dummy_gradient_bytes(model, training, habits, columns)) * kinds.exists
    return workspace_bytes(model, device, habits) + boundary_bytes(model, training, habits, columns, kinds) + unread


def sequence_bytes(model: ModelSpec, training: Training, columns: LayoutColumns) -> Floats:
    """The whole input of a block, gathered under sequence parallelism: e b s h / cp (n,)."""
    whole = compute_bytes(training) * tokens_per_microbatch(training, columns) * model.hidden_size
    return floats(choose(columns.sequence_parallel & (columns.tp > 1), whole, 0.0))


def context_bytes(model: ModelSpec, training: Training, habits: FrameworkHabits, columns: LayoutColumns) -> Floats:
    """Keys and values beside a rank's own in context parallel attention (n,): of a ring the block in use and the one
    that arrives; where all are gathered those of every rank, and in backward as many gradients.

    Source: Transformer Engine context_parallel.py, AttnFuncWithCPAndKVAllGather (k_ag, v_ag, dk, dv of the whole
    sequence); torch's ring passes the gradients on block by block.
    """
    block = kv_bytes(model, columns.tp, tokens_per_microbatch(training, columns), compute_bytes(training))
    blocks: Floats | float = 2.0
    if cp_comm_type(training) == "all_gather":
        blocks = columns.cp + 2.0 if habits.merges_rings else 2.0 * columns.cp
    return floats(choose(columns.cp > 1, blocks * block, 0.0))


def workspace_bytes(model: ModelSpec, device: DeviceSpec, habits: FrameworkHabits) -> float:
    """Workspaces of GEMM libraries: torch's cuBLAS handles, and Transformer Engine's stream, or streams for grouped
    products. Megatron-LM's golden runs: 68 MiB on A100 and 96 MiB on H100 with torch's fixed to 32 MiB a handle."""
    streams = 1.0 + (GROUPED_STREAMS if model.is_moe else 0.0)
    own = device.te_workspace_bytes * streams if habits.uses_transformer_engine else 0.0
    return CUBLAS_HANDLES * device.cublas_workspace_bytes + own


def communicators(columns: LayoutColumns) -> Floats:
    """NCCL communicators of one rank (n,): one for each group of more than one rank, with a pipeline that of first and
    last stage too, and the world's where no group is the world. None on a single device."""
    sizes = (columns.tp, columns.cp, columns.dp * columns.cp, columns.ep, columns.pp)
    groups = sum((size > 1).astype(np.float64) for size in sizes)
    world = columns.world_size
    is_world = functools.reduce(operator.or_, (size == world for size in sizes))
    return floats(groups + (columns.pp > 1) + ~is_world)


def dummy_gradient_bytes(
    model: ModelSpec, training: Training, habits: FrameworkHabits, columns: LayoutColumns
) -> Floats:
    """16-bit tensors that Transformer Engine hands to autograd in the place of gradients which its GEMMs have already
    added to the main ones: one for each shape of a layer's matrices, kept for good (n,).

    Source: Transformer Engine module/base.py, get_dummy_wgrad. A layer of the larger kind stands for all; experts share
    a shape. None with adapters, nor where weights are sharded.
    """
    if not habits.uses_transformer_engine or training.trainable == "lora":
        return np.zeros(len(columns))
    shards = [layer_shard(model, moe, tp=columns.tp, ep=columns.ep, etp=columns.etp) for moe in layer_types(model)]
    one = larger(model.num_experts / columns.ep, 1.0)
    matrices = functools.reduce(larger, (of_rows(shard.dense + shard.experts / one, columns.tp) for shard in shards))
    return choose(columns.zero_stage < 3, compute_bytes(training) * matrices, 0.0)


def boundary_bytes(
    model: ModelSpec, training: Training, habits: FrameworkHabits, columns: LayoutColumns, kinds: StageKinds
) -> Floats:
    """Tensors at stage boundaries, (n, stages).

    Megatron keeps each chunk's last input and its gradient: 2 e b s h / (cp · t) a chunk, to the MiB in its golden runs
    with 1 to 8 chunks; the first stage's first chunk receives nothing, but its output's gradient does.
    torch.distributed.pipelining allocates a receive buffer for every microbatch when a stage is built.
    """
    split = sequence_split(columns.sequence_parallel, columns.tp)
    tensor = compute_bytes(training) * tokens_per_microbatch(training, columns) * model.hidden_size / split
    if habits.preallocates_messages:
        held = column(columns.num_microbatches(training.global_batch_size))
    else:
        held = larger(column(columns.num_model_chunks) - kinds.is_first, 1.0)
    return floats(choose(column(columns.pp > 1) & kinds.exists, BOUNDARY_TENSORS * held * column(tensor), 0.0))


def _gathered(training: Training, habits: FrameworkHabits, held: StageParameters) -> Floats:
    """Whole weights under ZeRO-3, and the gradients of the unit that backward is in.

    FSDP gathers layers whole. DeepSpeed gathers matrix by matrix, as long as fewer parameters than its limit are live,
    and puts gradients straight into its buckets.
    """
    element = compute_bytes(training)
    if habits.max_live_parameters:
        live = GATHERED_LAYERS * held.largest_unit + held.ends
        return floats(element * smaller(live, habits.max_live_parameters))
    gradient = 0.0 if held.is_frozen else element + state_bytes(training, habits).gradients
    return floats(held.largest_unit * (GATHERED_LAYERS * element + gradient) + held.ends * element)


def _held_whole(training: Training, habits: FrameworkHabits, columns: LayoutColumns, held: StageParameters) -> Floats:
    """What a pipeline's stage holds whole between its first and last microbatch, beyond its own shards: gradients, and
    under ZeRO-3 the weights as compute reads them (under ZeRO-2 they are part of the weights anyway), (n, stages)."""
    weights = column(choose(columns.zero_stage >= 3, compute_bytes(training), 0.0))
    gradient = state_bytes(training, habits).gradients
    total: Floats | float = 0.0
    of_all = (held.dense + held.adapters, held.experts)
    for all_held, trained, size in zip(of_all, held.trained, shard_sizes(columns), strict=True):
        shards = column(size)
        total = total + choose(shards > 1, weights * all_held, 0.0) + gradient * (1 - 1 / shards) * trained
    return floats(total)


def _replicated(training: Training, habits: FrameworkHabits, columns: LayoutColumns, held: StageParameters) -> Floats:
    """What torch holds besides where every replica (or the only one) has all weights and gradients, (n, stages).

    The 16-bit casts of fp32 weights, which autograd keeps from a layer's forward to its backward, and the buckets into
    which DDP copies gradients. With a single microbatch the gradients themselves, which are counted, come only as
    activations go: the buckets take their place.
    """
    each, element = state_bytes(training, habits), compute_bytes(training)
    casts = element if each.weights > element else 0.0
    accumulates = columns.num_microbatches(training.global_batch_size) > 1
    copies = choose(column(accumulates & (columns.dp * columns.cp > 1)), each.gradients, 0.0)
    return floats((casts + copies) * np.add(*held.trained))


def fp32_gradients(
    training: Training, habits: FrameworkHabits, columns: LayoutColumns, held: StageParameters
) -> Floats | float:
    """The fp32 copy of a rank's own 16-bit gradients, which the update of some frameworks makes, (n, stages).

    It is made when activations are gone and takes their room; a fragmenting allocator reserves more for it, as far as
    there is more.
    DeepSpeed makes it under ZeRO; Megatron always, and keeps it until the next step's first gradient.
    """
    each = state_bytes(training, habits)
    if not (habits.updates_from_fp32_gradients and each.gradients == DTYPE_BYTES["fp16"]):
        return 0.0
    dense, experts = held.trained
    dense_size, expert_size = (column(size) for size in shard_sizes(columns))
    shards = column(columns.zero_stage) >= 1
    return floats(
        sharded(DTYPE_BYTES["fp32"], dense, shards, dense_size)
        + sharded(DTYPE_BYTES["fp32"], experts, shards, expert_size)
    )
