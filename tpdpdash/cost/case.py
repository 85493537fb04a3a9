"""What the time formulas of one set of layouts share, bound once: facts, rates, links, tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.arrays import Floats, of_rows
from tpdpdash.cost.collectives import GroupLink, group_link, link_of
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.memory import shard_sizes, tokens_per_microbatch
from tpdpdash.cost.operators import DeviceRates, device_rates
from tpdpdash.cost.parameters import vocab_rows
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """The links of the groups that one rank belongs to, a row a layout."""

    tp: GroupLink
    """Tensor parallel."""
    cp: GroupLink
    """Context parallel."""
    pp: GroupLink
    """Pipeline."""
    ep: GroupLink
    """Expert parallel."""
    expert_tp: GroupLink
    """Tensor parallel inside experts."""
    shard: GroupLink
    """Ranks over which dense weights and states are sharded or reduced: dp_shard_size · cp."""
    replica: GroupLink
    """Shards' replicas under HSDP: dp / dp_shard_size."""
    expert_shard: GroupLink
    """The same for experts, within expert-dp."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """n layouts of one model on one cluster."""

    model: ModelSpec
    """What is trained."""
    cluster: ClusterSpec
    """What it is trained on."""
    training: Training
    """What a step is."""
    habits: FrameworkHabits
    """The framework's conventions and constants."""
    rates: DeviceRates
    """What one device does."""
    columns: LayoutColumns
    """The layouts."""
    links: Links
    """The links of their groups."""
    tokens: Floats
    """Tokens of one microbatch on one rank: b · s / cp (n,)."""
    vocab_rows: Floats
    """Rows of the embedding and of the head on one rank (n,)."""

    @property
    def states_bytes(self) -> Floats:
        """Hidden states of one microbatch on one context parallel rank: e · s · b · h (n,)."""
        return self.rates.element_bytes * self.tokens * self.model.hidden_size


def case_of(
    model: ModelSpec, cluster: ClusterSpec, training: Training, habits: FrameworkHabits, columns: LayoutColumns
) -> Case:
    """Bind what the time formulas need."""
    return Case(
        model=model,
        cluster=cluster,
        training=training,
        habits=habits,
        rates=device_rates(cluster.device, training, habits.gemm_frac, habits.attention_frac),
        columns=columns,
        links=layout_links(cluster, columns),
        tokens=tokens_per_microbatch(training, columns),
        vocab_rows=of_rows(vocab_rows(model, columns.tp, habits.name), columns.tp),
    )


def layout_links(cluster: ClusterSpec, columns: LayoutColumns) -> Links:
    """The link of every group of n layouts."""
    dense_size, expert_size = shard_sizes(columns)
    data = group_link(cluster, columns, "dp-cp", columns.dp * columns.cp)
    experts = group_link(cluster, columns, "expert-dp", columns.expert_dp)
    members = np.minimum(data.members, dense_size)
    replicas = columns.dp / columns.dp_shard_size
    return Links(
        tp=group_link(cluster, columns, "tp", columns.tp),
        cp=group_link(cluster, columns, "cp", columns.cp),
        pp=group_link(cluster, columns, "pp", columns.pp),
        ep=group_link(cluster, columns, "ep", columns.ep),
        expert_tp=group_link(cluster, columns, "expert-tp", columns.etp),
        shard=link_of(cluster, dense_size, members),
        replica=link_of(cluster, replicas, np.minimum(np.maximum(data.members / dense_size, 1.0), replicas)),
        expert_shard=link_of(cluster, expert_size, np.minimum(experts.members, expert_size)),
    )
