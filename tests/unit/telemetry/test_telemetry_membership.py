"""Who a rank is, from the process groups of a script: Megatron's, a mesh's, and those that nobody named."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tpdpdash.layout.groups import coordinates, rank_groups
from tpdpdash.layout.layout import Layout
from tpdpdash.telemetry.membership import Group, axes_by_use, axes_named, coords_of, phase_of

MEGATRON = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "dp-cp": "DATA_PARALLEL_GROUP_WITH_CP",
    "tp-pp": "MODEL_PARALLEL_GROUP",
    "tp-cp": "TENSOR_AND_CONTEXT_PARALLEL_GROUP",
    "tp-dp-cp": "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "etp": "EXPERT_TENSOR_PARALLEL_GROUP",
    "edp": "EXPERT_DATA_PARALLEL_GROUP",
    "embedding": "EMBEDDING_GROUP",
}
"""Names in Megatron-LM parallel_state.py, by ours."""


def of_rank(groups: Mapping[str, list[list[int]]], rank: int) -> list[Group]:
    """The groups that a rank is in, by their names."""
    return [
        Group(axes=axes_named(name), ranks=tuple(ranks))
        for name, lists in groups.items()
        for ranks in lists
        if rank in ranks
    ]


@pytest.mark.parametrize(
    "degrees",
    [
        {"tp": 2, "pp": 2, "dp": 4},
        {"tp": 2, "cp": 2, "pp": 2, "dp": 2},
        {"tp": 4, "dp": 2},
        {"pp": 4, "dp": 2},
        {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "etp": 1},
        {"tp": 2, "pp": 2, "dp": 4, "rank_order": "tp-cp-ep-pp-dp"},
    ],
)
def test_megatrons_groups_give_its_own_coordinates(degrees: dict[str, object]) -> None:
    layout = Layout(**{"etp": degrees.get("tp", 1), **degrees})
    sizes = {name: getattr(layout, name) for name in ("tp", "cp", "pp", "ep", "etp", "world_size")}
    groups = rank_groups(order=layout.rank_order, **sizes)
    named = {MEGATRON[name]: lists for name, lists in groups.items() if name in MEGATRON}
    for rank in range(layout.world_size):
        told = coords_of(of_rank(named, rank), rank, layout.world_size)
        own = coordinates(layout, rank).as_dict()
        kept = ("tp", "cp", "pp", "dp") + (("ep", "edp") if layout.ep > 1 else ())
        assert {axis: told[axis] for axis in kept} == {axis: own[axis] for axis in kept}


def test_a_mesh_gives_its_coordinates_with_dp_in_two_parts() -> None:
    """torchtitan's mesh: dp = replicate · shards + shard."""
    shape, names = (2, 2, 2, 2), ("pp", "dp_replicate", "dp_shard", "tp")
    ranks = np.arange(16).reshape(shape)
    for rank in range(16):
        at = np.unravel_index(rank, shape)
        groups = []
        for axis, name in enumerate(names):
            line = ranks[tuple(slice(None) if other == axis else at[other] for other in range(4))]
            groups.append(Group(axes=axes_named(name), ranks=tuple(line.tolist())))
        pp, replicate, shard, tp = map(int, at)
        assert coords_of(groups, rank, 16) == {"tp": tp, "cp": 0, "pp": pp, "dp": 2 * replicate + shard}


def test_ranks_beside_the_named_axes_are_replicas() -> None:
    tensor = [Group(axes=axes_named("tp"), ranks=(r - r % 2, r - r % 2 + 1)) for r in range(8)]
    assert [coords_of([tensor[r]], r, 8)["dp"] for r in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    outer = [Group(axes=axes_named("tp"), ranks=(r % 4, r % 4 + 4)) for r in range(8)]
    assert [coords_of([outer[r]], r, 8)["dp"] for r in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_use_that_contradicts_a_name_is_not_believed() -> None:
    """A loss that is averaged over the world makes no data parallel group of it."""
    tensor = Group(axes=axes_named("mesh_tp"), ranks=(2, 3))
    world = Group(axes=axes_by_use({"other"}), ranks=(0, 1, 2, 3), is_named=False)
    assert coords_of([world, tensor], 3, 4) == {"tp": 1, "cp": 0, "pp": 0, "dp": 1}


def test_nothing_is_said_where_nothing_is_known() -> None:
    unknown = [Group(axes=axes_named("default_pg"), ranks=(0, 1)), Group(axes=axes_named("mesh_x"), ranks=(0, 1))]
    assert coords_of(unknown, 1, 2) == {}


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        *((MEGATRON[name], name) for name in ("tp", "pp", "cp", "dp", "ep")),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("MODEL_PARALLEL_GROUP", "tp"),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "cp"),
        ("mesh_dp_shard_cp", "dp"),
        ("undefined", None),
        ("default_pg", None),
        ("temp_step", None),
    ],
)
def test_a_groups_name_tells_the_phase_of_its_collectives(name: str, phase: str | None) -> None:
    assert phase_of(axes_named(name)) == phase


@pytest.mark.parametrize(
    ("uses", "axes"),
    [
        ({"forward", "backward"}, {"tp"}),
        ({"forward"}, {"tp"}),
        ({"backward"}, {"dp"}),
        ({"optimizer", "other"}, {"dp"}),
        ({"dp", "backward"}, {"dp"}),
        ({"pp"}, {"pp"}),
        (set(), set()),
    ],
)
def test_a_group_without_a_name_is_known_by_its_use(uses: set[str], axes: set[str]) -> None:
    assert axes_by_use(uses) == axes
