"""Parameters that one rank of each pipeline stage holds, and the ranks over which ZeRO shards them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tpdpdash.cost.adapters import adapted_matrices, adapter_parameters
from tpdpdash.cost.arrays import Flags, Floats, column, floats, of_rows
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.parameters import LayerShard, embedding_shard, head_shard, layer_shard, prediction_shard
from tpdpdash.cost.stages import StageKinds
from tpdpdash.elementwise import choose, larger
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.schedules import MIRRORED, ends_meet, is_among
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageParameters:
    """Parameters on one rank of each stage, (n, stages)."""

    dense: Floats
    """All but routed experts."""
    experts: Floats
    """Routed experts; the number 0 for a dense model."""
    largest_unit: Floats
    """The largest unit that ZeRO-3 gathers at once: a layer (n, 1)."""
    ends: Floats
    """Embedding and head, with what prediction modules add to them, part of `dense`."""
    adapters: Floats
    """Low-rank adapters, no part of the others; the number 0 without LoRA."""
    is_frozen: bool
    """LoRA: only the adapters have gradients and optimizer states."""

    @property
    def trained(self) -> tuple[Floats, Floats]:
        """Parameters that are trained: (reduced over dp·cp, over expert-dp). Adapters of experts count as dense."""
        if self.is_frozen:
            return self.adapters, 0.0 * self.experts
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
    dense, none = np.zeros_like(kinds.count), floats(0.0)
    experts, adapters = none, none
    for moe, layers in ((False, kinds.dense_layers), (True, kinds.moe_layers)):
        if training is not None and training.trainable == "lora" and layers.any():
            matrices = adapted_matrices(model, training, moe, tp=columns.tp, ep=columns.ep, etp=columns.etp)
            adapters = adapters + layers * column(of_rows(adapter_parameters(matrices, training.lora_rank), columns.tp))
    for layers, shard in shards:
        dense = dense + layers * column(of_rows(shard.dense, columns.tp))
        if model.is_moe:
            experts = experts + layers * column(of_rows(shard.experts, columns.tp))
    embedding = embedding_shard(model, tp=columns.tp, framework=habits.name)
    # Where both ends are on one rank a tied head is the embedding itself.
    apart = choose(ends_meet(columns.schedule), 1.0, columns.pp)
    head = head_shard(model, tp=columns.tp, pp=apart, framework=habits.name)
    last = head + prediction_shard(model, tp=columns.tp, pp=apart, framework=habits.name)
    ends = kinds.is_first * column(of_rows(embedding, columns.tp)) + kinds.is_last * column(of_rows(last, columns.tp))
    largest = np.zeros(len(columns))
    for _, shard in shards:
        largest = larger(largest, shard.dense + shard.experts)
    return StageParameters(
        dense=dense + ends,
        experts=experts,
        largest_unit=column(largest),
        ends=ends,
        adapters=adapters,
        is_frozen=training is not None and training.trainable == "lora",
    )


def holds_whole(habits: FrameworkHabits, columns: LayoutColumns) -> Flags:
    """Rows whose stages hold weights and gradients whole between the first and the last microbatch of a step (n,)."""
    return (columns.zero_stage >= 2) & (columns.pp > 1) & habits.holds_stages_whole


def shard_sizes(columns: LayoutColumns) -> tuple[Floats, Floats]:
    """Ranks over which ZeRO shards (dense parameters, experts), each (n,).

    Dense parameters: dp_shard_size · cp, since context parallel ranks hold the same weights; experts: the same share of
    expert-dp = tp · cp · dp / (etp · ep). DualPipe's two copies of each stage are replicas like any others: twice as
    many ranks hold it.
    """
    copies = choose(is_among(columns.schedule, MIRRORED), 2.0, 1.0)
    dense = copies * columns.dp_shard_size * columns.cp
    experts = larger(copies * columns.expert_dp * columns.dp_shard_size / columns.dp, 1.0)
    return dense, experts
