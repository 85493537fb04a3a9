"""Rank groups of a torch DeviceMesh (pp, dp_replicate, dp_shard, cp, tp), row-major.

Public API for scripts that build a mesh; no room of the package calls it. Held to torch's and torchtitan's own groups
by golden rows.
"""

from __future__ import annotations

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.layout.grid import orthogonal_groups, unravel
from tpdpdash.layout.world import nearest_of, range_faults
from tpdpdash.units import divisors

MESH_NAMES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
EXPERT_MESH_NAMES = ("pp", "dp_replicate", "efsdp", "ep")
MESH_GROUPS = {
    **{name: (name,) for name in MESH_NAMES},
    "batch(dp_replicate,dp_shard)": ("dp_replicate", "dp_shard"),
    "fsdp(dp_shard,cp)": ("dp_shard", "cp"),
    "loss(dp_replicate,dp_shard,cp)": ("dp_replicate", "dp_shard", "cp"),
}


def mesh_groups(
    *, world_size: int, pp: int = 1, dp_replicate: int = 1, dp_shard: int = 1, cp: int = 1, tp: int = 1, ep: int = 1
) -> dict[str, list[list[int]]]:
    """Every group of the mesh by torchtitan's names; `ep` and `efsdp` only where ep > 1. Positions decide, not names:
    (replicate 1, shard 8) shards over all 8. Raises InvalidInputError.

    Source: torch init_device_mesh (row-major, last name fastest); torchtitan parallel_dims.py for the expert mesh
    (pp, dp_replicate, efsdp = dp_shard·cp·tp / ep, ep).
    """
    sizes = {"pp": pp, "dp_replicate": dp_replicate, "dp_shard": dp_shard, "cp": cp, "tp": tp}
    faults = range_faults({"world_size": world_size, **sizes, "ep": ep}, prefix="mesh.")
    faults = faults or _mesh_faults(world_size, sizes, ep)
    if faults:
        raise InvalidInputError(faults)
    order = tuple(reversed(MESH_NAMES))
    groups: dict[str, list[list[int]]] = {
        kind: orthogonal_groups(order, sizes, names).tolist() for kind, names in MESH_GROUPS.items()
    }
    if ep > 1:
        expert = {"pp": pp, "dp_replicate": dp_replicate, "efsdp": dp_shard * cp * tp // ep, "ep": ep}
        expert_order = tuple(reversed(EXPERT_MESH_NAMES))
        groups["ep"] = orthogonal_groups(expert_order, expert, ("ep",)).tolist()
        groups["efsdp"] = orthogonal_groups(expert_order, expert, ("efsdp",)).tolist()
    return groups


def mesh_coordinates(
    rank: int, *, pp: int = 1, dp_replicate: int = 1, dp_shard: int = 1, cp: int = 1, tp: int = 1
) -> dict[str, int]:
    """The coordinate of a rank along each name of the mesh."""
    sizes = {"pp": pp, "dp_replicate": dp_replicate, "dp_shard": dp_shard, "cp": cp, "tp": tp}
    return unravel(rank, tuple(reversed(MESH_NAMES)), sizes)


def _mesh_faults(world_size: int, sizes: dict[str, int], ep: int) -> list[Fault]:
    faults = []
    product = 1
    for size in sizes.values():
        product *= size
    if product != world_size:
        written = " · ".join(f"{name}({size})" for name, size in sizes.items())
        values = {"product": product, "degrees": written, "nearest": product}
        faults.append(Fault(code="mesh_product", field="mesh.world_size", value=world_size, values=values))
    inside = sizes["dp_shard"] * sizes["cp"] * sizes["tp"]
    if inside % ep:
        values = {"product": inside, "nearest": nearest_of(divisors(inside), ep)}
        faults.append(Fault(code="mesh_ep_not_divisor", field="mesh.ep", value=ep, values=values))
    return faults
