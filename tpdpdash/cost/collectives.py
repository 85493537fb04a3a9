"""Seconds of collectives by the link that a group really crosses.

A group of `size` ranks has `members` of them in each scale-up domain (node or rack). Inside one domain a ring runs at
the scale-up link; across domains it is as fast as the network cards of its members in one domain together: a ring with
eight ranks in each node has eight rails, one with a single rank in each node has one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.arrays import Flags, Floats
from tpdpdash.elementwise import choose, larger, smaller, somewhere
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
    scatters_whole: bool
    """Whether a reduce-scatter runs as an all-reduce, as over gloo."""
    tree_latency_s: Floats
    """Latency from the leaves of a binary tree over the group to its root (n,)."""
    message_s: float
    """What a collective takes besides its hops and bytes (LinkSpec.message_s)."""

    @property
    def crosses(self) -> Flags:
        """Rows whose group leaves its domain."""
        return self.size > self.members


def group_link(cluster: ClusterSpec, columns: LayoutColumns, kind: str, size: Floats) -> GroupLink:
    """The link of every group of `kind` ("tp", "cp", "dp", "dp-cp", "pp", "ep", "expert-tp", "expert-dp")."""
    if not somewhere(size > 1):
        return no_link(cluster, columns)
    members = members_per_block(columns, kind, domain_block(cluster))
    return link_of(cluster, size, smaller(members, size))


def no_link(cluster: ClusterSpec, columns: LayoutColumns) -> GroupLink:
    """What `link_of` gives for groups of one rank, which send nothing."""
    one = columns.tp / columns.tp
    return GroupLink(
        size=one,
        members=one,
        bytes_per_s=one * cluster.scale_up.reached_bytes_per_s,
        ring_latency_s=one * cluster.scale_up.latency_s,
        scatters_whole=cluster.device.is_cpu,
        tree_latency_s=0.0 * one,
        message_s=cluster.scale_up.message_s,
    )


def link_of(cluster: ClusterSpec, size: Floats, members: Floats) -> GroupLink:
    """The link of a group with `members` of its `size` ranks in each domain.

    bandwidth = scale-up inside a domain, else min(scale-up, members · network); a trip around the ring takes a hop of
    the network per domain and a hop of the scale-up link for the rest; a tree log2 as many of each.
    """
    up, net = cluster.scale_up.reached_bytes_per_s, cluster.network.reached_bytes_per_s
    crosses = size > members
    domains = choose(crosses, np.ceil(size / members), 0.0)
    inside = size - domains
    ring = inside * cluster.scale_up.latency_s + domains * cluster.network.latency_s
    levels_in = np.ceil(np.log2(members)) * cluster.scale_up.latency_s
    levels_out = np.ceil(np.log2(larger(domains, 1.0))) * cluster.network.latency_s
    return GroupLink(
        size=size,
        members=members,
        bytes_per_s=choose(crosses, smaller(up, members * net), up),
        ring_latency_s=ring,
        scatters_whole=cluster.device.is_cpu,
        tree_latency_s=levels_in + levels_out,
        message_s=cluster.scale_up.message_s,
    )


RAMP_S = 60e-6
"""Moving this long at full speed, a message reaches three quarters of the bandwidth; small ones half of it. Assumed:
nccl-tests' bus bandwidth of an all-gather of 64 MiB over 8 A100 or H100 is about 0.75 of that of 1 GiB."""


def transfer_s(sent_bytes: Numeric, bytes_per_s: Numeric, messages: Numeric = 1.0) -> Numeric:
    """Seconds in which a rank sends its part of `messages` equal messages, sent_bytes in all."""
    return ramped_s(sent_bytes / bytes_per_s, messages)


def ramped_s(whole_s: Numeric, messages: Numeric = 1.0) -> Numeric:
    """Seconds of `messages` equal messages that take whole_s in all at full bandwidth: t + t · r / (t + r) each, r =
    RAMP_S. Chunks fill the ring's pipeline: small messages take twice as long, large ones r more."""
    ramp = larger(messages, 1.0) * RAMP_S
    return whole_s + whole_s * ramp / (whole_s + ramp)


def all_gather_s(whole_bytes: Numeric, link: GroupLink, messages: Numeric = 1.0) -> Numeric:
    """Ring all-gather (or reduce-scatter) of `whole_bytes` in all, in `messages` pieces: (g − 1)/g · bytes / bandwidth
    (as `transfer_s` has it) + (g − 1) hops and what a message takes besides, each; 0 alone.

    Source: Thakur, Rabenseifner, Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    g = link.size
    share = (g - 1) / g
    sent = transfer_s(share * whole_bytes, link.bytes_per_s, messages)
    return choose(g > 1, sent + messages * (share * link.ring_latency_s + link.message_s), 0.0)


def all_reduce_s(whole_bytes: Numeric, link: GroupLink, messages: Numeric = 1.0) -> Numeric:
    """All-reduce of `whole_bytes` in `messages` pieces: 2 (g − 1)/g · bytes / bandwidth, with the latency of the
    quicker of ring and double binary tree each.

    NCCL chooses between both by size:
    https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4.
    """
    g = link.size
    share = (g - 1) / g
    latency = smaller(2 * share * link.ring_latency_s, 2 * link.tree_latency_s)
    sent = transfer_s(2 * share * whole_bytes, link.bytes_per_s, messages)
    return choose(g > 1, sent + messages * (latency + link.message_s), 0.0)


def reduce_scatter_s(whole_bytes: Numeric, link: GroupLink, messages: Numeric = 1.0) -> Numeric:
    """A ring reduce-scatter sends what an all-gather sends; gloo has none and runs an all-reduce (torch 2.13,
    ProcessGroupGloo)."""
    price = all_reduce_s if link.scatters_whole else all_gather_s
    return price(whole_bytes, link, messages)


def token_exchange_s(
    token_bytes: Numeric, copies: int, cluster: ClusterSpec, link: GroupLink, *, once_per_domain: bool
) -> Numeric:
    """All-to-all that brings `copies` copies of a rank's tokens (token_bytes for one copy of all) to their experts.

    Copies for ranks of the same domain take the scale-up link, the rest the rank's own network card; both run at once.
    once_per_domain: a token crosses to each other domain at most once, however many of its experts are there, and is
    handed on over the scale-up link (DeepEP, HybridEP): (D − 1) (1 − (1 − 1/D)^k) crossings instead of k (D − 1) / D,
    with experts drawn evenly over D domains. Left out: uneven loads.
    """
    up, net = cluster.scale_up.reached_bytes_per_s, cluster.network.reached_bytes_per_s
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
    latency = choose(link.crosses, cluster.network.latency_s, cluster.scale_up.latency_s)
    return choose(link.size > 1, larger(inside, outside) + latency, 0.0)


def ring_exchange_s(block_bytes: Numeric, cluster: ClusterSpec, link: GroupLink) -> Numeric:
    """Every rank's block passes every other: g − 1 times each rank sends one to its neighbour.

    As an all-gather inside a domain. Where the ring leaves it, the rank at the edge sends its block through its own
    network card while the cards of the others rest, so that every turn takes as long as that: unlike a collective's
    ring, which NCCL lays through each card in turn, these are sends of whole blocks.
    """
    up, net = cluster.scale_up.reached_bytes_per_s, cluster.network.reached_bytes_per_s
    own_card = replace(link, bytes_per_s=choose(link.crosses, min(up, net), link.bytes_per_s))
    return all_gather_s(link.size * block_bytes, own_card)


def all_to_all_s(own_bytes: Numeric, cluster: ClusterSpec, link: GroupLink) -> Numeric:
    """Every rank deals out its `own_bytes` evenly to all: 1 / g of them to each.

    What stays in the domain takes the scale-up link, the rest, 1 − members / g, the rank's own network card; both run
    at once.
    """
    up, net = cluster.scale_up.reached_bytes_per_s, cluster.network.reached_bytes_per_s
    g = link.size
    outside = choose(link.crosses, (1 - link.members / g) * own_bytes / net, 0.0)
    inside = choose(link.crosses, link.members / g - 1 / g, (g - 1) / g) * own_bytes / up
    latency = (g - 1) / g * link.ring_latency_s + link.message_s
    return choose(g > 1, ramped_s(larger(inside, outside)) + latency, 0.0)


def point_to_point_s(sent_bytes: Numeric, cluster: ClusterSpec, link: GroupLink) -> Numeric:
    """One message to the neighbour in the group: bytes / bandwidth + one hop, by the slowest boundary of the group.

    Where the group leaves its domain, some stage boundary crosses the network with one card.
    """
    up, net = cluster.scale_up, cluster.network
    inside = sent_bytes / up.reached_bytes_per_s + up.latency_s
    outside = sent_bytes / net.reached_bytes_per_s + net.latency_s
    return choose(link.size > 1, choose(link.crosses, outside, inside), 0.0)
