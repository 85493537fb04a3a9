"""Messages by the link that a group crosses."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import cluster_of, layout_of

from tpdpdash.cost.collectives import (
    all_gather_s,
    all_reduce_s,
    group_link,
    link_of,
    point_to_point_s,
    token_exchange_s,
)
from tpdpdash.layout.columns import LayoutColumns

CLUSTER = cluster_of(nodes=16)
UP, NET = 0.8 * 3e11, 0.8 * 2.5e10
"""Bandwidths of the test cluster as collectives reach them."""


def link(size: float, members: float):
    """A group with `members` of its ranks in each node."""
    return link_of(CLUSTER, np.array([size]), np.array([members]))


def test_a_group_inside_a_node_runs_at_the_scale_up_link():
    assert link(8, 8).bytes_per_s[0] == UP
    assert not link(8, 8).crosses[0]


@pytest.mark.parametrize(("members", "rails"), [(1, 1), (2, 2), (8, 8)])
def test_a_ring_across_nodes_has_as_many_rails_as_ranks_in_a_node(members, rails):
    assert link(16, members).bytes_per_s[0] == pytest.approx(rails * NET)


def test_rails_never_exceed_the_scale_up_link():
    assert link_of(CLUSTER, np.array([256.0]), np.array([64.0])).bytes_per_s[0] == UP


def test_the_members_of_a_dp_group_follow_from_tp():
    """TP 4 leaves two ranks of each DP group in a node of eight: two rails; TP 8 leaves one."""
    for tp, rails in ((1, 8), (2, 4), (4, 2), (8, 1)):
        columns = LayoutColumns.from_layouts([layout_of(tp=tp, dp=128 // tp)])
        found = group_link(CLUSTER, columns, "dp-cp", columns.dp)
        assert found.bytes_per_s[0] == pytest.approx(min(UP, rails * NET))


def test_a_group_of_one_sends_nothing():
    alone = link(1, 1)
    exchanged = token_exchange_s(1e9, 1, CLUSTER, alone, once_per_domain=False)
    for seconds in (all_gather_s(1e9, alone), all_reduce_s(1e9, alone), exchanged):
        assert seconds[0] == 0
    assert point_to_point_s(1e9, CLUSTER, alone)[0] == 0


def test_a_large_all_reduce_takes_twice_an_all_gather():
    group = link(8, 8)
    assert all_gather_s(8e9, group)[0] == pytest.approx(7 / 8 * 8e9 / UP, rel=0.01)
    assert all_reduce_s(8e9, group)[0] == pytest.approx(2 * all_gather_s(8e9, group)[0], rel=0.01)


def test_a_small_all_reduce_over_many_ranks_takes_the_trees_latency():
    wide = link_of(CLUSTER, np.array([128.0]), np.array([8.0]))
    expected = 2 * (3 * CLUSTER.scale_up.latency_s + 4 * CLUSTER.network.latency_s)
    assert all_reduce_s(8.0, wide)[0] == pytest.approx(expected, rel=0.01)


def test_an_all_to_all_across_nodes_waits_for_the_part_that_leaves():
    wide, near = (token_exchange_s(8e6, 2, CLUSTER, of, once_per_domain=False)[0] for of in (link(16, 8), link(8, 8)))
    assert wide == pytest.approx(8e6 / NET, rel=0.05)
    assert near == pytest.approx(14e6 / UP, rel=0.06)


def test_a_token_crosses_to_each_domain_once_where_the_dispatcher_says_so():
    """DeepEP: of 8 copies over 2 nodes half would cross, and one crossing is nearly all that is needed; over 64 nodes
    next to nothing is saved. Inside one node nothing changes."""
    for nodes, low, high in ((2, 0.24, 0.26), (8, 0.6, 0.7), (64, 0.93, 1.0)):
        plain, once = (
            token_exchange_s(1e8, 8, CLUSTER, link(8 * nodes, 8), once_per_domain=o)[0] for o in (False, True)
        )
        assert low < once / plain < high
    inside = [token_exchange_s(1e8, 8, CLUSTER, link(8, 8), once_per_domain=o)[0] for o in (False, True)]
    assert inside[0] == inside[1]
