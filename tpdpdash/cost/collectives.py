"""Seconds of collectives by the link that a group really crosses.

A group of `size` ranks has `members` of them in each scale-up domain (node or rack). Inside one domain a ring runs at
the scale-up link; across domains it is as fast as the network cards of its members in one domain together: a ring with
eight ranks in each node has eight rails, one with a single rank in each node has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.arrays import Flags, Floats
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.placement import domain_block, members_per_block

if TYPE_CHECKING:
    from tpdpdash.units import Numeric


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupLink:
    """What the groups of one kind have to send with, a row a layout."""

    size: Floats
    """Ranks of the group (n,)."""
    members: Floats
    """Ranks of the group in one scale-up domain (n,)."""
    bytes_per_s: Floats
    """Bandwidth of a ring over the group, per rank and direction (n,)."""
    ring_latency_s: Floats
    """Latency of one trip around the ring (n,)."""
    tree_latency_s: Floats
    """Latency from the leaves of a binary tree over the group to its root (n,)."""

    @property
    def crosses(self) -> Flags:
        """Rows whose group leaves its domain."""
        return self.size > self.members


def group_link(cluster: ClusterSpec, columns: LayoutColumns, kind: str, size: Floats) -> GroupLink:
    """The link of every group of `kind` ("tp", "cp", "dp", "dp-cp", "pp", "ep", "expert-tp", "expert-dp")."""
    members = members_per_block(columns, kind, domain_block(cluster))
    return link_of(cluster, size, np.minimum(members, size))


def link_of(cluster: ClusterSpec, size: Floats, members: Floats) -> GroupLink:
    """The link of a group with `members` of its `size` ranks in each domain.

    bandwidth = scale-up inside a domain, else min(scale-up, members · network); a trip around the ring takes a hop of
    the network per domain and a hop of the scale-up link for the rest; a tree log2 as many of each.
    """
    up = cluster.scale_up.bytes_per_s * cluster.scale_up.efficiency
    net = cluster.network.bytes_per_s * cluster.network.efficiency
    crosses = size > members
    domains = np.where(crosses, np.ceil(size / members), 0.0)
    inside = size - domains
    ring = inside * cluster.scale_up.latency_s + domains * cluster.network.latency_s
    levels_in = np.ceil(np.log2(members)) * cluster.scale_up.latency_s
    levels_out = np.ceil(np.log2(np.maximum(domains, 1.0))) * cluster.network.latency_s
    return GroupLink(
        size=size,
        members=members,
        bytes_per_s=np.where(crosses, np.minimum(up, members * net), up),
        ring_latency_s=ring,
        tree_latency_s=levels_in + levels_out,
    )


def all_gather_s(whole_bytes: Numeric, link: GroupLink, messages: Numeric = 1.0) -> Numeric:
    """Ring all-gather (or reduce-scatter) of `whole_bytes` in all, in `messages` pieces: (g − 1)/g · bytes / bandwidth
    + (g − 1) hops each; 0 alone.

    Source: Thakur, Rabenseifner, Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    g = link.size
    share = (g - 1) / g
    return np.where(g > 1, share * whole_bytes / link.bytes_per_s + messages * share * link.ring_latency_s, 0.0)


reduce_scatter_s = all_gather_s
"""A ring reduce-scatter sends what an all-gather sends."""


def all_reduce_s(whole_bytes: Numeric, link: GroupLink, messages: Numeric = 1.0) -> Numeric:
    """All-reduce of `whole_bytes` in `messages` pieces: 2 (g − 1)/g · bytes / bandwidth, with the latency of the
    quicker of ring and double binary tree each.

    NCCL chooses between both by size:
    https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4.
    """
    g = link.size
    share = (g - 1) / g
    latency = np.minimum(2 * share * link.ring_latency_s, 2 * link.tree_latency_s)
    return np.where(g > 1, 2 * share * whole_bytes / link.bytes_per_s + messages * latency, 0.0)


def token_exchange_s(
    token_bytes: Numeric, copies: int, cluster: ClusterSpec, link: GroupLink, *, once_per_domain: bool
) -> Numeric:
    """All-to-all that brings `copies` copies of a rank's tokens (token_bytes for one copy of all) to their experts.

    Copies for ranks of the same domain take the scale-up link, the rest the rank's own network card; both run at once.
    once_per_domain: a token crosses to each other domain at most once, however many of its experts are there, and is
    handed on over the scale-up link (DeepEP, HybridEP): (D − 1) (1 − (1 − 1/D)^k) crossings instead of k (D − 1) / D,
    with experts drawn evenly over D domains. Left out: uneven loads.
    """
    up = cluster.scale_up.bytes_per_s * cluster.scale_up.efficiency
    net = cluster.network.bytes_per_s * cluster.network.efficiency
    domains = link.size / link.members
    spread = copies * (domains - 1) / domains
    crossings = spread
    inside = copies * (link.members - 1) / link.size
    if once_per_domain:
        missed = np.ones_like(domains)
        for _ in range(copies):
            missed = missed * (1 - 1 / domains)
        crossings = (domains - 1) * (1 - missed)
        inside = copies * (link.size - 1) / link.size
    inside, outside = inside * token_bytes / up, crossings * token_bytes / net
    latency = np.where(link.crosses, cluster.network.latency_s, cluster.scale_up.latency_s)
    return np.where(link.size > 1, np.maximum(inside, outside) + latency, 0.0)


def point_to_point_s(sent_bytes: Numeric, cluster: ClusterSpec, link: GroupLink) -> Numeric:
    """One message to the neighbour in the group: bytes / bandwidth + one hop, by the slowest boundary of the group.

    Where the group leaves its domain, some stage boundary crosses the network with one card.
    """
    up, net = cluster.scale_up, cluster.network
    inside = sent_bytes / (up.bytes_per_s * up.efficiency) + up.latency_s
    outside = sent_bytes / (net.bytes_per_s * net.efficiency) + net.latency_s
    return np.where(link.size > 1, np.where(link.crosses, outside, inside), 0.0)
