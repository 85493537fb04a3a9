"""Messages by the link that a group crosses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from strategies import cluster_of, dense_model, layout_of, moe_model, training_of

from tpdpdash.cost.case import case_of
from tpdpdash.cost.collectives import (
    RAMP_S,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    group_link,
    link_of,
    point_to_point_s,
    reduce_scatter_s,
    ring_exchange_s,
    token_exchange_s,
    transfer_s,
)
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.layer_messages import layer_tp_s, modules_tp_s, states_messages_s
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


def test_a_ring_of_blocks_leaves_a_node_through_one_card():
    """Of 8 ranks in each of two nodes only the one at the edge sends out: a gather has 8 rails, the blocks one."""
    block = 1e9
    across, inside = link(16, 8), link(8, 8)
    assert ring_exchange_s(block, CLUSTER, across)[0] == pytest.approx(15 * block / NET, rel=1e-3)
    assert all_gather_s(16 * block, across)[0] < ring_exchange_s(block, CLUSTER, across)[0] / 7
    assert ring_exchange_s(block, CLUSTER, inside)[0] == all_gather_s(8 * block, inside)[0]
    assert ring_exchange_s(block, CLUSTER, link(1, 1))[0] == 0


def test_heads_that_are_dealt_out_across_nodes_take_each_ranks_own_card():
    """16 ranks in two nodes: half of what a rank sends stays in its node, half leaves by its card."""
    own = 1e9
    assert all_to_all_s(own, CLUSTER, link(16, 8))[0] == pytest.approx(0.5 * own / NET, rel=1e-2)
    assert all_to_all_s(own, CLUSTER, link(8, 8))[0] == pytest.approx(all_gather_s(own, link(8, 8))[0])
    assert all_to_all_s(own, CLUSTER, link(1, 1))[0] == 0


@pytest.mark.parametrize(("ramps", "times"), [(1e-3, 2.0), (1.0, 1.5), (1e3, 1.001)])
def test_small_messages_run_at_half_of_the_bandwidth_and_large_ones_lose_a_constant(ramps, times):
    whole = ramps * RAMP_S
    assert transfer_s(whole * 1e9, 1e9) == pytest.approx(times * whole, rel=1e-3)
    assert transfer_s(5 * whole * 1e9, 1e9, 5.0) == pytest.approx(5 * transfer_s(whole * 1e9, 1e9))


def test_the_ramp_of_a_message_is_60_microseconds():
    assert RAMP_S == 60e-6


def test_each_collective_takes_what_a_message_takes_besides_once():
    slow = replace(CLUSTER, scale_up=replace(CLUSTER.scale_up, message_s=1e-3))
    for price in (all_gather_s, all_reduce_s, reduce_scatter_s):
        plain = price(1e6, link(8, 8), 5.0)[0]
        assert price(1e6, link_of(slow, np.array([8.0]), np.array([8.0])), 5.0)[0] == pytest.approx(plain + 5e-3)


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


@pytest.mark.parametrize(
    ("framework", "recompute", "gathers"),
    [("megatron-core", "none", 2), ("fsdp2", "none", 1), ("fsdp2", "full", 1), ("fsdp2", "selective", 2)],
)
def test_backward_gathers_inputs_again_unless_they_were_kept(framework, recompute, gathers):
    """DTensor keeps gathered inputs; selective recompute of operators makes them anew; full recompute's forward pass,
    priced apart, leaves them for backward."""
    model, training = dense_model(), training_of(framework=framework)
    columns = LayoutColumns.from_layouts([layout_of(tp=4, recompute=recompute)])
    case = case_of(model, cluster_of(), training, framework_habits(framework), columns)
    gather, scatter, _ = states_messages_s(case)
    assert layer_tp_s(case, False, backward=True) == pytest.approx(2 * (gathers * gather + scatter))
    assert layer_tp_s(case, False, backward=False) == pytest.approx(2 * (gather + scatter))


MLA = {"kv_lora_rank": 128, "q_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}


def split_case(framework, model, **training):
    """TP 4 with sequence parallelism."""
    columns = LayoutColumns.from_layouts([layout_of(tp=4, etp=1, recompute="selective")])
    return case_of(
        model, cluster_of(), training_of(framework=framework, **training), framework_habits(framework), columns
    )


def test_megatron_gathers_what_mla_has_compressed():
    """(256 + 128 + 32) / 1024 of the hidden states for attention, all of them for the MLP; DTensor gathers whole."""
    case = split_case("megatron-core", dense_model(**MLA))
    gather, scatter, _ = states_messages_s(case)
    sent = 416 / 1024 * case.states_bytes
    small, back = all_gather_s(sent, case.links.tp), reduce_scatter_s(sent, case.links.tp)
    assert layer_tp_s(case, False, backward=False) == pytest.approx(small + gather + 2 * scatter)
    assert layer_tp_s(case, False, backward=True) == pytest.approx(2 * gather + small + gather + back + scatter)
    whole = split_case("fsdp2", dense_model(**MLA))
    gather, scatter, _ = states_messages_s(whole)
    assert layer_tp_s(whole, False, backward=False) == pytest.approx(2 * (gather + scatter))


@pytest.mark.parametrize(
    ("modules", "moe", "blocks"),
    [
        (("layernorm", "core_attn"), False, 0),
        (("mlp",), False, 1),
        (("mlp",), True, 0),
        (("moe",), True, 1),
        (("shared_experts",), True, 1),
        (("moe", "shared_experts"), True, 1),
    ],
)
def test_a_module_that_runs_again_sends_its_messages_again(modules, moe, blocks):
    """An MLP, or shared experts, gather their input and scatter their output; core attention and norms send nothing."""
    case = split_case("megatron-core", moe_model(shared_expert_ffn_hidden_size=512), recompute_modules=modules)
    gather, scatter, _ = states_messages_s(case)
    assert modules_tp_s(case, moe) == pytest.approx(blocks * (gather + scatter))
