"""One layout as plain tables: the rank map, the groups of a rank, and how they lie on nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tpdpdash.charts.rank_map import RankMap, shown_nodes
from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.groups import coordinates, groups_of, nodes_of
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.placement import domain_block, group_size, members_per_block
from tpdpdash.text import t
from tpdpdash.ui import parts
from tpdpdash.ui.estimate_view import cluster_name, product, shown_degrees, variant
from tpdpdash.units import format_count

KINDS = ("tp", "cp", "ep", "dp", "pp")
GROUPS_SHOWN = 12
"""Members of one group that are written out; longer ones are cut in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """The group of one kind that holds the chosen rank."""

    kind: str
    """tp, cp, ep, dp, pp."""
    index: int
    """Which group of its kind, from 0."""
    count: int
    """Groups of this kind."""
    ranks: tuple[int, ...]
    """Members."""
    nodes: tuple[int, ...]
    """Nodes that they sit in."""


def layout_groups(layout: Layout) -> dict[str, list[list[int]]]:
    """Every group of the kinds whose degree is above 1; TP, DP and PP always."""
    groups = groups_of(layout)
    return {kind: groups[kind] for kind in KINDS if kind in shown_degrees(layout)}


def rank_groups_of(groups: dict[str, list[list[int]]], rank: int, devices_per_node: int) -> list[RankGroup]:
    """The chosen rank's group of each kind."""
    found = []
    for kind, lists in groups.items():
        index = next(i for i, members in enumerate(lists) if rank in members)
        ranks = tuple(lists[index])
        nodes = nodes_of(ranks, devices_per_node)
        found.append(RankGroup(kind=kind, index=index, count=len(lists), ranks=ranks, nodes=nodes))
    return found


def map_of(layout: Layout, cluster: ClusterSpec, rank: int, groups: Sequence[RankGroup]) -> RankMap:
    """The rank map of a layout, with the stages of each node that is drawn."""
    spec = RankMap(
        world_size=layout.world_size,
        devices_per_node=cluster.devices_per_node,
        chosen=rank,
        groups={group.kind: group.ranks for group in groups if len(group.ranks) > 1},
    )
    notes = {node: _stages_of(layout, node, cluster.devices_per_node) for node in shown_nodes(spec)}
    return RankMap(
        world_size=spec.world_size,
        devices_per_node=spec.devices_per_node,
        chosen=spec.chosen,
        groups=spec.groups,
        node_notes=notes if layout.pp > 1 else {},
    )


def _stages_of(layout: Layout, node: int, devices_per_node: int) -> str:
    ranks = range(node * devices_per_node, min(layout.world_size, (node + 1) * devices_per_node))
    stages = sorted({coordinates(layout, rank).pp for rank in ranks})
    if len(stages) == 1:
        return t("stage {stage}", stage=stages[0])
    is_run = stages[-1] - stages[0] + 1 == len(stages)
    shown = f"{stages[0]}–{stages[-1]}" if is_run else ", ".join(map(str, stages))
    return t("stages {stages}", stages=shown)


def group_texts(layout: Layout, groups: Sequence[RankGroup], cluster: ClusterSpec) -> list[tuple[str, str, str]]:
    """(kind, "group 5 of 16 · NVLink", members) of the groups with more than one member."""
    texts = []
    for group in groups:
        if len(group.ranks) == 1:
            continue
        place = t("node {node}", node=group.nodes[0]) if len(group.nodes) == 1 else _node_list(group.nodes)
        title = t("group {index} of {count}", index=group.index, count=group.count)
        texts.append(
            (group.kind, f"{title} · {place} · {link_name(layout, group.kind, cluster)}", members(group.ranks))
        )
    return texts


def link_name(layout: Layout, kind: str, cluster: ClusterSpec) -> str:
    """The link that groups of this kind cross, by the rule that prices them: the network where any leaves a domain."""
    columns = LayoutColumns.from_layouts([layout])
    inside = members_per_block(columns, kind, domain_block(cluster))
    return (cluster.network if inside[0] < group_size(columns, kind)[0] else cluster.scale_up).name


def _node_list(nodes: Sequence[int]) -> str:
    shown = [str(node) for node in nodes]
    if len(shown) > 6:
        shown = [*shown[:3], "…", shown[-1]]
    return t("nodes {nodes}", nodes=", ".join(shown))


def members(ranks: Sequence[int]) -> str:
    """[20, 21, 22, 23]; long groups are cut in the middle and say how many they are."""
    if len(ranks) <= GROUPS_SHOWN:
        return str(list(ranks))
    start = ", ".join(map(str, ranks[:4]))
    return t("[{start}, …, {last}] ({count} ranks)", start=start, last=ranks[-1], count=format_count(len(ranks)))


def copyable(groups: dict[str, list[list[int]]], form: str) -> str:
    """Every group as JSON, or as Python by the names tp_groups, dp_groups …"""
    if form == "JSON":
        rows = [f'  "{kind}": {json.dumps(lists)}' for kind, lists in groups.items()]
        return "{\n" + ",\n".join(rows) + "\n}"
    return "\n".join(f"{kind}_groups = {lists}" for kind, lists in groups.items())


def placement_sentence(groups: Sequence[RankGroup]) -> str:
    """Which groups stay inside a node and which cross nodes, for the chosen rank."""
    sentences = []
    for group in groups:
        if len(group.ranks) == 1:
            continue
        kind, count = group.kind.upper(), len(group.nodes)
        if count == 1:
            sentences.append(t("{kind} stays inside a node.", kind=kind))
        elif group.kind == "pp":
            sentences.append(t("PP hands over between nodes."))
        else:
            per_node = len(group.ranks) // count
            sentences.append(
                t("{kind} joins {count} nodes, {ranks} in each.", kind=kind, count=count, ranks=_ranks(per_node))
            )
    return " ".join(sentences)


def _ranks(count: int) -> str:
    return t("one rank") if count == 1 else t("{count} ranks", count=count)


def headline(job: Job, layout: Layout) -> str:
    """llama-3-8b on 8 × 8 H100-SXM5-80GB · TP 4 × PP 4 × DP 4 = 64 devices."""
    return f"{parts.literal(job.model.name)} {t('on')} {cluster_name(job)} · {product(layout)} · {variant(layout)}"


def map_caption(shown: int, world_size: int, rank: int) -> str:
    """How many ranks the map shows, and which when it is cut."""
    if shown == world_size:
        return t("{shown} of {total} ranks", shown=format_count(shown), total=format_count(world_size))
    return t(
        "showing {shown} of {total} ranks: nodes of rank {rank}'s groups",
        shown=format_count(shown), total=format_count(world_size), rank=rank,
    )  # fmt: skip


def rank_caption(layout: Layout, cluster: ClusterSpec, rank: int) -> str:
    """node 2, GPU 5 · tp 1, dp 1, pp 1."""
    at = coordinates(layout, rank).as_dict()
    places = ", ".join(f"{kind} {at[kind]}" for kind in KINDS if kind in shown_degrees(layout))
    node, slot = divmod(rank, cluster.devices_per_node)
    word = t("rank") if cluster.device.is_cpu else "GPU"
    return t("node {node}, {word} {slot} · {places}", node=node, word=word, slot=slot, places=places)
