"""Who a rank is, learnt from the process groups that a script made: their names, else their use. Standard library only.

Names are those of torch's DeviceMesh dimensions ("tp", "dp_shard", …), of Megatron's group descriptions
(TENSOR_MODEL_PARALLEL_GROUP, …) and their like. A group that nobody named is known by what it is used for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

DENSE_AXES = ("tp", "cp", "dp", "pp")
_WORDS = {
    "tp": {"tp", "tensor", "mp"},
    "cp": {"cp", "context", "sp", "ring", "ulysses"},
    "pp": {"pp", "pipe", "pipeline", "stage", "stages", "embedding"},
    "dp": {"dp", "data", "ddp", "fsdp", "hsdp", "batch", "replicate", "replica", "shard"},
    "ep": {"ep"},
    "etp": {"etp"},
    "edp": {"edp", "efsdp"},
}
_EXPERTS = {"expert", "experts", "moe"}
_AMONG_EXPERTS = {"tp": "etp", "dp": "edp"}
_PHASES = {"etp": "tp", "edp": "dp"}
"""The phase of an axis that is not a phase itself."""
_WIDEST_FIRST = ("dp", "edp", "ep", "cp", "tp", "etp", "pp")
"""A group over several axes counts as the first of them: it waits for the ranks that are farthest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group that this rank is in."""

    axes: frozenset[str]
    """The axes that it runs along: tp, cp, pp, dp, ep, etp, edp; one, but for groups over several. Empty: unknown."""
    ranks: tuple[int, ...]
    """Its ranks in the world, in its own order."""
    is_named: bool = True
    """Whether its name tells the axes, or who made it; otherwise its use does, which may mislead."""


def axes_named(name: str) -> frozenset[str]:
    """The axes that a group's name tells; none where it tells nothing."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    axes = {axis for axis, known in _WORDS.items() if words & known}
    if words & _EXPERTS:
        others = {_AMONG_EXPERTS.get(axis, axis) for axis in axes}
        return frozenset(others | {"ep"} if "model" in words or not others else others)
    if not axes and {"model", "parallel"} <= words:
        return frozenset({"tp", "pp"})  # Megatron's MODEL_PARALLEL_GROUP: one replica of the model
    return frozenset(axes)


def axes_by_use(uses: Set[str]) -> frozenset[str]:
    """The axes of a group without a name, from the phases in which its collectives were called.

    Sends and receives: pp. In forward: tp (a gradient's all-reduce has no business there). Anywhere else, or by
    DDP and FSDP, which say so: dp.
    """
    for told in ("dp", "cp", "ep"):
        if told in uses:
            return frozenset({told})
    if "forward" in uses or "tp" in uses:
        return frozenset({"tp"})
    if "pp" in uses:
        return frozenset({"pp"})
    return frozenset({"dp"} if uses else ())


def phase_of(axes: Set[str]) -> str | None:
    """The phase that a group's collectives count as; None where its axes are unknown."""
    axis = next((axis for axis in _WIDEST_FIRST if axis in axes), None)
    return None if axis is None else _PHASES.get(axis, axis)


def coords_of(groups: Sequence[Group], rank: int, world_size: int) -> dict[str, int]:
    """The rank's place along each axis; {} where no axis is known.

    An axis that no group names has one place, but dp (and among experts edp): the ranks that differ in none of the
    known axes are replicas.
    """
    groups = _consistent(groups)
    along = {axis: _along(groups, axis, rank) for axis in _WORDS}
    known = {axis: found for axis, found in along.items() if found}
    if not known:
        return {}
    places = {axis: _place(found, rank) for axis, found in known.items()}
    dense = [found for axis in DENSE_AXES for found in known.get(axis, ())]
    if dense and "dp" not in known:
        places["dp"] = _rest(dense, rank, world_size)
    if "ep" in known and "edp" not in known:
        experts = [found for axis in ("ep", "etp", "pp") for found in known.get(axis, ())]
        places["edp"] = _rest(experts, rank, world_size)
    return dict.fromkeys(DENSE_AXES, 0) | places


def _consistent(groups: Sequence[Group]) -> list[Group]:
    """Without groups whose use misled: ranks along one axis differ in no other, so two groups share one rank."""
    kept: list[Group] = []
    for group in sorted(groups, key=lambda each: (not each.is_named, len(each.ranks))):
        others = [each for each in kept if len(each.axes) == 1 and each.axes != group.axes]
        if group.is_named or all(len(set(each.ranks) & set(group.ranks)) == 1 for each in others):
            kept.append(group)
    return kept


def _along(groups: Sequence[Group], axis: str, rank: int) -> list[tuple[int, ...]]:
    """The groups that together span an axis, the slowest varying first: the widest, or parts like replicate × shard."""
    found = {group.ranks for group in groups if group.axes == {axis} and len(group.ranks) > 1 and rank in group.ranks}
    if not found:
        return []
    widest = max(found, key=len)
    if all(set(ranks) <= set(widest) for ranks in found):
        return [widest]
    return sorted(found, key=_stride, reverse=True)


def _place(spanning: Sequence[tuple[int, ...]], rank: int) -> int:
    place = 0
    for ranks in spanning:
        place = place * len(ranks) + ranks.index(rank)
    return place


def _stride(ranks: Sequence[int]) -> int:
    """Distance of neighbours in a group."""
    return abs(ranks[1] - ranks[0])


def _rest(known: Sequence[tuple[int, ...]], rank: int, world_size: int) -> int:
    """A number for where the rank stands beside the known axes: its digits that they do not take.

    Ranks are written in mixed radix: an axis of n ranks at stride s is the digit (rank // s) mod n. Assumes that the
    strides nest, as meshes' and Megatron's do.
    """
    place, radix, below = 0, 1, 1
    for ranks in sorted(known, key=_stride):
        stride = _stride(ranks)
        free = max(1, stride // below)
        place += (rank // below) % free * radix
        radix *= free
        below = max(below, stride * len(ranks))
    return place + (rank // below if below < world_size else 0) * radix
