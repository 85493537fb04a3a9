"""The rank map: which nodes are drawn, which cells are lit, and that it stays small."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tpdpdash.charts.map_geometry import Bus, MapGrid, bus_rows, group_boxes, link_paths
from tpdpdash.charts.palette import phase_colors, ui_colors
from tpdpdash.charts.rank_map import MAX_RANKS, RankMap, rank_map, shown_nodes, shown_ranks

SIXTY_FOUR = RankMap(
    world_size=64,
    devices_per_node=8,
    chosen=21,
    groups={"tp": (20, 21, 22, 23), "dp": (17, 21, 25, 29), "pp": (5, 21, 37, 53)},
)
THOUSAND = RankMap(
    world_size=1024,
    devices_per_node=8,
    chosen=333,
    groups={"tp": tuple(range(328, 336)), "dp": tuple(range(261, 517, 8)), "pp": (77, 333, 589, 845)},
)


def datasets(chart: Any) -> list[list[dict[str, Any]]]:
    """The rows of every layer."""
    return list(chart.to_dict()["datasets"].values())


def cells(chart: Any) -> dict[int, dict[str, Any]]:
    """The row of each rank's cell."""
    return {row["rank"]: row for rows in datasets(chart) for row in rows if "rank" in row}


def test_the_chosen_rank_is_inverted_and_its_groups_have_their_colours() -> None:
    drawn = cells(rank_map(SIXTY_FOUR, "light"))
    colors = phase_colors("light")
    assert drawn[21]["fill"] == ui_colors("light")["text"]
    assert {drawn[rank]["fill"] for rank in (20, 22, 23)} == {colors["tp"].fill}
    assert {drawn[rank]["fill"] for rank in (17, 25, 29)} == {colors["dp"].fill}
    assert {drawn[rank]["fill"] for rank in (5, 37, 53)} == {colors["pp"].fill}
    assert drawn[0]["fill"] == ui_colors("light")["card"]


def test_every_rank_of_a_small_world_is_drawn_once() -> None:
    assert sorted(cells(rank_map(SIXTY_FOUR, "dark"))) == list(range(64))


def test_a_large_world_shows_only_nodes_of_the_chosen_ranks_groups() -> None:
    nodes = shown_nodes(THOUSAND)
    ranks = shown_ranks(THOUSAND, nodes)
    members = {rank for group in THOUSAND.groups.values() for rank in group}
    assert len(ranks) <= MAX_RANKS
    assert all(members & set(range(node * 8, node * 8 + 8)) for node in nodes)
    assert 333 in ranks
    assert set(THOUSAND.groups["tp"]) | set(THOUSAND.groups["pp"]) <= set(ranks)


def test_a_world_of_sixteen_thousand_ranks_draws_no_more_cells_than_one_of_a_thousand() -> None:
    spec = RankMap(world_size=16384, devices_per_node=8, chosen=9, groups={"dp": tuple(range(1, 16384, 8))})
    assert len(cells(rank_map(spec, "light"))) == MAX_RANKS


def test_a_rank_in_an_expert_group_inside_the_data_group_shows_both() -> None:
    spec = RankMap(world_size=8, devices_per_node=8, chosen=0, groups={"ep": (0, 1), "dp": (0, 1, 2, 3)})
    cell = cells(rank_map(spec, "light"))[1]
    colors = phase_colors("light")
    assert (cell["fill"], cell["outline"]) == (colors["ep"].fill, colors["dp"].outline)


def test_the_picture_tells_a_screen_reader_what_it_shows() -> None:
    description = rank_map(SIXTY_FOUR, "light").to_dict()["description"]
    assert "64 of 64 ranks" in description
    assert "17, 21, 25, 29" in description


def test_a_click_chooses_a_rank() -> None:
    params = rank_map(SIXTY_FOUR, "light").to_dict()["params"]
    assert params[0]["name"] == "pick"
    assert params[0]["select"]["fields"] == ["rank"]


@pytest.mark.parametrize("devices_per_node", [1, 2, 4, 6, 8, 16, 72])
@pytest.mark.parametrize("num_nodes", [1, 2, 3, 8])
def test_cells_lie_inside_their_node_and_apart_from_each_other(devices_per_node: int, num_nodes: int) -> None:
    grid = MapGrid.for_nodes(
        range(num_nodes), devices_per_node=devices_per_node, node_columns=None, has_notes=False,
        has_group_names=False, num_bus_rows=0,
    )  # fmt: skip
    boxes = [grid.cell_box(rank) for rank in range(num_nodes * devices_per_node)]
    for rank, (left, right, top, bottom) in enumerate(boxes):
        node_left, node_right, node_top, node_bottom = grid.node_box(rank // devices_per_node)
        assert node_left < left < right < node_right
        assert node_top < top < bottom < node_bottom <= grid.height
        assert right <= grid.domain[1]
    assert len({(box[0], box[2]) for box in boxes}) == len(boxes)


def test_the_height_depends_on_the_cluster_only_not_on_who_is_chosen() -> None:
    alone = RankMap(world_size=32, devices_per_node=8, chosen=0, groups={"tp": (0, 1)})
    other = RankMap(world_size=32, devices_per_node=8, chosen=30, groups={"tp": (30, 31)})
    assert rank_map(alone, "light").to_dict()["height"] == rank_map(other, "light").to_dict()["height"]


def grid_of(num_nodes: int) -> MapGrid:
    return MapGrid.for_nodes(
        range(num_nodes), devices_per_node=8, node_columns=None, has_notes=False, has_group_names=False, num_bus_rows=0
    )


def test_links_join_the_centres_of_neighbours_with_right_angles() -> None:
    links = link_paths(grid_of(8), "pp", (5, 21, 37, 53))
    paths: dict[int, list[dict[str, Any]]] = {}
    for point in links.points:
        paths.setdefault(point["path"], []).append(point)
    assert len(paths) == 3
    assert len(links.heads) == 3
    for corners in paths.values():
        for a, b in pairwise(corners):
            assert a["x"] == b["x"] or a["y"] == b["y"]


def test_a_group_that_is_no_rectangle_is_framed_run_by_run() -> None:
    grid = grid_of(8)
    assert len(group_boxes(grid, (0, 1, 2, 3), 4)) == 1
    assert len(group_boxes(grid, (0, 1, 4, 5), 4)) == 1
    assert len(group_boxes(grid, (0, 2, 4, 6), 4)) == 4
    assert len(group_boxes(grid, (3, 4), 4)) == 2


def test_buses_that_lie_beside_each_other_share_a_row() -> None:
    halves = [Bus(name="a", ranks=(0, 2)), Bus(name="b", ranks=(1, 3)), Bus(name="c", ranks=(4, 6))]
    assert bus_rows(halves) == [0, 1, 0]
