"""What the time formulas of one set of layouts share, bound once: facts, rates, links, tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.activations import SELECTIVE
from tpdpdash.cost.arrays import Flag, Flags, Floats, of_rows, rows_of
from tpdpdash.cost.collectives import GroupLink, group_link, link_of, no_link
from tpdpdash.cost.distinct import PASSES, PIPELINE, column_runs
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.operators import DeviceRates, device_rates
from tpdpdash.cost.parameters import vocab_rows
from tpdpdash.cost.stage_activations import tokens_per_microbatch
from tpdpdash.cost.stage_parameters import shard_sizes
from tpdpdash.elementwise import larger, smaller, somewhere
from tpdpdash.layout.columns import SHARDING, LayoutColumns
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

if TYPE_CHECKING:
    from numpy.typing import NDArray


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

    @property
    def gathers_again(self) -> Flag:
        """Whether backward gathers the inputs of a layer's products once more: by habit, or because selective recompute
        of operators makes them anew (torchtitan keeps every second product, but no gathered input)."""
        if self.habits.gathers_again or self.habits.selective_kind != "operators":
            return self.habits.gathers_again
        recomputed: Flag = self.columns.recompute == SELECTIVE
        return recomputed

    def take(self, index: NDArray[np.intp] | Flags) -> Case:
        """The rows of an index or a mask."""
        rows = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _OF_ALL_ROWS}
        return replace(self, **rows_of(rows, index))


_OF_ALL_ROWS = ("model", "cluster", "training", "habits", "rates")


def case_of(
    model: ModelSpec, cluster: ClusterSpec, training: Training, habits: FrameworkHabits, columns: LayoutColumns
) -> Case:
    """Bind what the time formulas need."""
    if training.launch_blocking:
        habits = habits.without_overlap()
    return Case(
        model=model,
        cluster=cluster,
        training=training,
        habits=habits,
        rates=device_rates(
            cluster.device,
            training,
            habits.gemm_frac,
            habits.attention_frac,
            habits.native_attention,
            habits.runs_tf32(training),
        ),
        columns=columns,
        links=layout_links(cluster, columns, model.is_moe),
        tokens=tokens_per_microbatch(training, columns),
        vocab_rows=of_rows(vocab_rows(model, columns.tp, habits.name), columns.tp),
    )


def layout_links(cluster: ClusterSpec, columns: LayoutColumns, moe: bool) -> Links:
    """The link of every group of n layouts; without experts theirs have nothing to send. Where ranks sit is asked once
    for each run of rows with the same degrees and order."""
    runs = column_runs(columns, ignoring=SHARDING | PIPELINE | PASSES)
    placed = runs.spread(_placed_links(cluster, runs.firsts(columns), moe))
    dense_size, expert_size = shard_sizes(columns)
    data, experts, none = placed["data"], placed["experts"], no_link(cluster, columns)
    return Links(
        **{name: placed[name] for name in ("tp", "cp", "pp", "ep", "expert_tp")},
        shard=link_of(cluster, dense_size, smaller(data.members, dense_size)),
        replica=_replica_link(cluster, columns, data.members / dense_size, none),
        expert_shard=link_of(cluster, expert_size, smaller(experts.members, expert_size)) if moe else none,
    )


def _placed_links(cluster: ClusterSpec, columns: LayoutColumns, moe: bool) -> dict[str, GroupLink]:
    """Links of the groups that do not depend on how states are sharded; data and experts: of all their replicas."""
    none = no_link(cluster, columns)
    return {
        "tp": group_link(cluster, columns, "tp", columns.tp),
        "cp": group_link(cluster, columns, "cp", columns.cp),
        "pp": group_link(cluster, columns, "pp", columns.pp),
        "ep": group_link(cluster, columns, "ep", columns.ep) if moe else none,
        "expert_tp": group_link(cluster, columns, "expert-tp", columns.etp) if moe else none,
        "data": group_link(cluster, columns, "dp-cp", columns.dp * columns.cp),
        "experts": group_link(cluster, columns, "expert-dp", columns.expert_dp) if moe else none,
    }


def _replica_link(cluster: ClusterSpec, columns: LayoutColumns, shards_inside: Floats, none: GroupLink) -> GroupLink:
    """Replicas of a shard; shards_inside: whole shard groups in one domain."""
    replicas = columns.dp / columns.dp_shard_size
    if not somewhere(replicas > 1):
        return none
    return link_of(cluster, replicas, smaller(larger(shards_inside, 1.0), replicas))
