"""Rank groups against Megatron's and torch's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from strategies import layout_of

from tpdpdash.faults import InvalidInputError
from tpdpdash.layout.grid import complete_rank_order
from tpdpdash.layout.groups import coordinates, group_of, groups_of, nodes_of, rank_groups
from tpdpdash.layout.mesh import MESH_NAMES, mesh_coordinates, mesh_groups
from tpdpdash.text import fault_lines

GOLDEN = Path(__file__).parents[2] / "golden" / "layout" / "rank_groups.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
MEGATRON = [pytest.param(row, id=row["id"]) for row in ROWS if row["kind"] == "megatron"]
MESHES = [pytest.param(row, id=row["id"]) for row in ROWS if row["kind"] == "device_mesh"]
REFUSED = {
    "err-w16-tp3": ("world_not_divisible", "layout.tp", (2, 4)),
    "err-w1-tp2": ("world_not_divisible", "layout.tp", (1,)),
    "err-w8-ep3": ("expert_grid_not_divisible", "layout.ep", (2, 4)),
    "err-w16-tp4-pp2-ep8": ("expert_grid_not_divisible", "layout.ep", (2,)),
    "err-w16-tp-pp-dp-ep-mismatch": ("rank_order_pp_not_last", "layout.rank_order", "tp-cp-ep-dp-pp"),
    "err-order-misses-cp": ("rank_order_missing_name", "layout.rank_order", None),
    "mesh-err-product": ("mesh_product", "mesh.world_size", 32),
    "mesh-err-ep3": ("mesh_ep_not_divisor", "mesh.ep", (2, 4)),
}


def _megatron(row: dict[str, Any]) -> dict[str, list[list[int]]]:
    degrees = {name: row[name] for name in ("tp", "cp", "pp", "ep", "etp")}
    return rank_groups(world_size=row["world"], order=row["order"], **degrees)


def _mesh(row: dict[str, Any]) -> dict[str, list[list[int]]]:
    return mesh_groups(world_size=row["world"], ep=row["ep"], **{name: row[name] for name in MESH_NAMES})


def test_every_golden_row_is_read() -> None:
    assert len(MEGATRON) + len(MESHES) == 45
    assert {row["id"] for row in ROWS if row["expect"] == "error"} == set(REFUSED)


@pytest.mark.parametrize("row", [p for p in MEGATRON if p.values[0]["expect"] == "ok"])
def test_groups_equal_megatron(row: dict[str, Any]) -> None:
    assert _megatron(row) == row["groups"]


@pytest.mark.parametrize("row", [p for p in MESHES if p.values[0]["expect"] == "ok"])
def test_groups_equal_the_device_mesh(row: dict[str, Any]) -> None:
    assert _mesh(row) == row["groups"]
    for rank, place in row["rank_coords_sample"].items():
        assert mesh_coordinates(int(rank), **{name: row[name] for name in MESH_NAMES}) == place


@pytest.mark.parametrize("row", [p for p in (*MEGATRON, *MESHES) if p.values[0]["expect"] == "error"])
def test_what_megatron_and_torch_refuse_is_refused_with_its_condition(row: dict[str, Any]) -> None:
    code, field, nearest = REFUSED[row["id"]]
    with pytest.raises(InvalidInputError) as refused:
        _megatron(row) if row["kind"] == "megatron" else _mesh(row)
    (fault,) = refused.value.faults
    assert (fault.code, fault.field) == (code, field)
    assert fault.values.get("nearest") == nearest
    numbers = [word for word in row["error"].replace("(", " ").replace(")", " ").split() if word.isdigit()]
    (line,) = fault_lines([fault])
    assert all(number in line for number in numbers)


@pytest.mark.parametrize(
    ("order", "tokens"),
    [
        pytest.param("tp-tp-cp-ep-dp-pp", {"tp"}, id="b62-twice"),
        pytest.param("tp-xx-dp-pp", {"xx"}, id="b62-unknown"),
        pytest.param("", set(), id="b62-empty"),
        pytest.param("pp-dp", {"tp"}, id="b62-missing"),
        pytest.param("tp--dp-pp", {""}, id="empty-name"),
        pytest.param("TP-dp-pp", {"TP", "tp"}, id="upper-case"),
    ],
)
def test_a_hostile_order_is_refused_by_its_token(order: str, tokens: set[str]) -> None:
    with pytest.raises(InvalidInputError) as refused:
        rank_groups(world_size=8, tp=2, order=order)
    assert {f.field for f in refused.value.faults} == {"layout.rank_order"}
    assert {f.values["token"] for f in refused.value.faults if "token" in f.values} == tokens
    assert fault_lines(refused.value.faults)


def test_all_faults_of_an_order_and_of_the_degrees_come_at_once() -> None:
    with pytest.raises(InvalidInputError) as refused:
        rank_groups(world_size=16, tp=2, pp=3, order="tp-tp-yy")
    codes = [fault.code for fault in refused.value.faults]
    assert codes == [
        "world_not_divisible",
        "rank_order_unknown_name",
        "rank_order_repeated_name",
        "rank_order_missing_name",
    ]


def test_an_order_may_leave_out_names_of_degree_one() -> None:
    assert complete_rank_order("dp") == ("dp", "tp", "cp", "ep", "pp")
    assert complete_rank_order("tp-pp") == ("tp", "cp", "ep", "dp", "pp")
    assert rank_groups(world_size=4, tp=2, pp=2, order="tp-pp")["pp"] == [[0, 2], [1, 3]]


def test_r014_the_smallest_world_of_tp_2_and_pp_8_is_16() -> None:
    with pytest.raises(InvalidInputError) as refused:
        rank_groups(world_size=8, tp=2, pp=8)
    assert refused.value.faults[0].values["min_world_size"] == 16
    assert len(rank_groups(world_size=16, tp=2, pp=8)["dp"]) == 16


def test_r078_etp_1_keeps_the_expert_groups_of_one_node_inside_it() -> None:
    layout = layout_of(32, tp=8, pp=4, dp=4, ep=8, etp=1)
    nodes = {kind: nodes_of(group_of(layout, kind, 0), 8) for kind in ("tp", "ep", "dp", "pp")}
    assert nodes == {"tp": (0,), "ep": (0,), "dp": (0, 1, 2, 3), "pp": (0, 4, 8, 12)}


def test_r079_with_dp_innermost_every_tp_group_crosses_eight_nodes() -> None:
    layout = layout_of(8, tp=8, dp=8, rank_order="dp-tp-cp-ep-pp")
    assert nodes_of(group_of(layout, "tp", 0), 8) == tuple(range(8))


def test_r083_with_tp_innermost_context_groups_stride_over_it() -> None:
    groups = rank_groups(world_size=8, tp=4, cp=2)
    assert groups["cp"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    inverted = rank_groups(world_size=8, tp=4, cp=2, order="cp-tp-ep-dp-pp")
    assert inverted["cp"] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_r084_a_mesh_axis_of_one_divides_nothing() -> None:
    groups = mesh_groups(world_size=8, dp_replicate=1, dp_shard=8)
    assert groups["dp_shard"] == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert len(groups["dp_replicate"]) == 8


@pytest.mark.parametrize("value", [0, -1, 1.5, "two", None, True])
def test_a_degree_that_is_no_whole_number_above_zero_is_refused(value: object) -> None:
    with pytest.raises(InvalidInputError) as refused:
        rank_groups(world_size=8, tp=value)  # type: ignore[arg-type]
    assert {fault.field for fault in refused.value.faults} >= {"layout.tp"}


def test_a_rank_outside_the_world_is_refused() -> None:
    layout = layout_of(8, tp=2, dp=2)
    with pytest.raises(InvalidInputError):
        coordinates(layout, 4)
    with pytest.raises(InvalidInputError):
        group_of(layout, "tp", -1)


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(ValueError, match="xp"):
        group_of(layout_of(8, tp=2), "xp", 0)


def test_embedding_groups_hold_the_first_and_last_stage_only() -> None:
    layout = layout_of(8, tp=2, pp=4)
    assert groups_of(layout)["embedding"] == [[0, 6], [1, 7]]
    assert group_of(layout, "embedding", 6) == (0, 6)
    assert group_of(layout, "embedding", 2) == ()
    assert group_of(layout, "position_embedding", 1) == (1,)
