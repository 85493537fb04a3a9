"""Where the ranks of a group sit: the cases that people reason about by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from strategies import cluster_of, layout_of

from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.placement import BLOCKS_AT_ONCE, domain_block, group_size, members_per_block


def members(kind: str, block: int, **degrees: object) -> int:
    layout = layout_of(8, **degrees)
    return int(members_per_block(LayoutColumns.from_layouts([layout]), kind, block)[0])


def test_a_dp_ring_has_the_ranks_of_a_node_that_tp_leaves_it() -> None:
    assert members("dp", 8, dp=64) == 8
    assert members("dp", 8, tp=2, dp=32) == 4
    assert members("dp", 8, tp=8, dp=8) == 1
    assert members("tp", 8, tp=8, dp=8) == 8


def test_context_parallel_ranks_share_the_node_before_replicas_do() -> None:
    assert members("cp", 8, tp=2, cp=4, dp=4) == 4
    assert members("dp", 8, tp=2, cp=4, dp=4) == 1
    assert members("dp-cp", 8, tp=2, cp=2, dp=4) == 4


def test_the_order_decides() -> None:
    assert members("tp", 8, tp=8, dp=8, rank_order="dp-tp-cp-ep-pp") == 1
    assert members("dp", 8, tp=8, dp=8, rank_order="dp-tp-cp-ep-pp") == 8
    assert members("pp", 8, tp=2, pp=4, dp=4, rank_order="tp-pp-dp") == 4


def test_experts_sit_by_their_own_grid() -> None:
    assert members("ep", 8, tp=8, dp=4, ep=8, etp=1) == 8
    assert members("ep", 8, tp=8, dp=8, ep=8, etp=8) == 1
    assert members("expert-dp", 8, tp=2, dp=8, ep=4, etp=1) == 2


def test_b57_groups_of_three_straddle_nodes_of_seven() -> None:
    assert members("tp", 7, tp=3, dp=7) == 1
    assert members("tp", 7, tp=7, dp=3) == 7


def test_the_emptiest_block_counts_though_it_is_the_last_of_many() -> None:
    assert BLOCKS_AT_ONCE < 2402 // 8
    assert members("dp", 8, dp=2402) == 2


def test_a_wide_domain_holds_groups_of_several_nodes() -> None:
    assert members("tp", 72, tp=16, dp=4) == 16
    assert members("dp", 72, tp=8, dp=9) == 9


def test_sizes_and_unknown_groups() -> None:
    columns = LayoutColumns.from_layouts([layout_of(8, tp=2, cp=2, dp=4)])
    assert group_size(columns, "dp-cp").tolist() == [8.0]
    with pytest.raises(ValueError, match="xp"):
        group_size(columns, "xp")


def test_many_rows_equal_each_row_alone() -> None:
    layouts = [layout_of(8, tp=tp, dp=dp, pp=pp) for tp in (1, 3, 4) for dp in (2, 5) for pp in (1, 2, 8)]
    columns = LayoutColumns.from_layouts(layouts)
    for kind in ("tp", "dp", "pp", "dp-cp", "expert-dp"):
        alone = [members_per_block(LayoutColumns.from_layouts([x]), kind, 8)[0] for x in layouts]
        assert np.array_equal(members_per_block(columns, kind, 8), alone)


def test_a_job_larger_than_a_rack_takes_64_of_its_72_devices() -> None:
    rack = cluster_of(nodes=18, devices_per_node=4, scale_up_domain_size=72)
    assert domain_block(rack) == 72
    assert domain_block(replace(rack, nodes=64)) == 64
    assert domain_block(cluster_of(nodes=16)) == 8
