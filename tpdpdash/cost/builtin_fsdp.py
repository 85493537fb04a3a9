"""What FSDP2 holds in the built-in worker under ZeRO 2 and 3: shards, gathered weights, messages of one group.

One group a layer, and one of embedding, final norm and head. ZeRO 3 frees a layer after its forward and gathers it
again in backward; ZeRO 2 gathers once a step. Source: torch.distributed.fsdp._fully_shard; the oracle in
tests/differential counts the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tpdpdash.cost.arrays import Flags, Floats, column
from tpdpdash.cost.builtin_layer import FP32
from tpdpdash.cost.stages import StageKinds
from tpdpdash.cost.states import DTYPE_BYTES, compute_bytes
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training
from tpdpdash.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FullySharded:
    """Elements on one rank, and bytes at the moments of a step; each (n, stages) unless said."""

    is_used: Flags
    """Rows under FSDP (n, 1)."""
    shards: Floats
    """Elements of this rank's shards; a weight's first dimension is rounded up to the ranks."""
    layer_shard: Floats
    """The gradients of a layer's shards (n, 1) [bytes]."""
    largest_shard: Floats
    """Elements of the largest of them (n, 1)."""
    while_kept: Floats
    """Gathered weights from a microbatch's first layer to its last gradient [bytes]."""
    layer: Floats
    """A gathered layer, or the message that it comes in; 0 where ZeRO 2 keeps them [bytes]."""
    layer_gradients: Floats
    """A layer's gradients before they are reduced [bytes]."""
    layer_message: Floats
    """The message that they are reduced in, until the next layer's [bytes]."""
    ends_reduced: Floats
    """When the gradients of embedding, final norm and head are reduced: they and their message, less their shards'
    gradients where this is the first microbatch [bytes]."""


def is_sharded(columns: LayoutColumns) -> Flags:
    """Rows under FSDP (n, 1)."""
    return column((columns.zero_stage >= 2) & (columns.dp_shard_size > 1))


def weight_shapes(model: ModelSpec, tp: Floats) -> tuple[list[tuple[Floats, Floats]], list[tuple[Floats, Floats]]]:
    """(first dimension, the others together) of a rank's weights before FSDP: of one layer; of the embedding, the final
    norm and the head, which a tied one is not."""
    one, h = np.ones_like(tp), model.hidden_size * np.ones_like(tp)
    d, f = model.head_dim * one, model.ffn_hidden_size / tp
    q, kv = model.num_attention_heads * model.head_dim / tp, model.num_kv_heads * model.head_dim / tp
    layer = [(h, one), (h, one), (q, h), (kv, h), (kv, h), (h, q), (f, h), (f, h), (h, f)]
    if model.qk_norm != "none":
        layer += [(d, one), (d, one)]
    if model.qkv_bias:
        layer += [(q, one), (kv, one), (kv, one)]
    table = (model.vocab_size / tp, h)
    return layer, [table, (h, one)] if model.tied_embeddings else [table, (h, one), table]


def fully_sharded(
    model: ModelSpec, training: Training, columns: LayoutColumns, kinds: StageKinds, table_bytes: Floats
) -> FullySharded:
    """table_bytes: the embedding's gradient, or the head's (n, 1). The worker runs FSDP without a pipeline only."""
    e, reduced = compute_bytes(training), DTYPE_BYTES[training.gradient_dtype]
    size = columns.dp_shard_size
    layer_shapes, end_shapes = weight_shapes(model, columns.tp)
    shard: Callable[[tuple[Floats, Floats]], Floats] = lambda shape: ceil_div(shape[0], size) * shape[1]  # noqa: E731
    layer, ends = (np.add.reduce([shard(shape) for shape in shapes]) for shapes in (layer_shapes, end_shapes))
    keeps = column(columns.zero_stage == 2)
    whole_layer, whole_ends = column(layer * size), column(ends * size)
    runs_on = column(columns.num_microbatches(training.global_batch_size) > 1)
    all_layers = np.where(keeps, e * kinds.layers * whole_layer, 0.0)
    first = np.where(runs_on, 0.0, FP32 * column(ends))
    tables = (1 if model.tied_embeddings else 2) * table_bytes
    still = np.where(keeps & runs_on, all_layers + e * whole_ends, 0.0)
    return FullySharded(
        is_used=is_sharded(columns),
        shards=kinds.layers * column(layer) + column(ends),
        layer_shard=FP32 * column(layer),
        largest_shard=column(np.maximum.reduce([shard(shape) for shape in (*layer_shapes, *end_shapes)])),
        while_kept=all_layers + e * whole_ends,
        layer=np.where(keeps, 0.0, e * whole_layer),
        layer_gradients=e * whole_layer,
        layer_message=reduced * whole_layer,
        ends_reduced=still - first + tables + reduced * whole_ends,
    )
