"""The rank grid: which degree varies fastest over the ranks, and the groups that follow from it.

A rank order such as tp-cp-ep-dp-pp lists the degrees from the fastest to the slowest. A group of some degrees holds the
ranks that differ only in those degrees. Source: Megatron-LM megatron/core/parallel_state.py, RankGenerator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.faults import Fault
from tpdpdash.fields import nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.layout.layout import Layout

ORDER_NAMES = ("tp", "cp", "ep", "dp", "pp")
ORDER_FIELD = "layout.rank_order"

DENSE_AXES: Mapping[str, str] = {"tp": "tp", "cp": "cp", "dp": "dp", "pp": "pp"}
"""The grid of dense layers: which degree of a layout stands on each axis. An axis that is not named has size 1."""
EXPERT_AXES: Mapping[str, str] = {"tp": "etp", "ep": "ep", "dp": "expert_dp", "pp": "pp"}
"""The grid of experts, over the same ranks: etp × ep × expert-dp × pp."""
DENSE_GROUPS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("dp",),
    "dp-cp": ("dp", "cp"),
    "pp": ("pp",),
    "mp(tp-pp)": ("tp", "pp"),
    "tp-cp": ("tp", "cp"),
    "tp-dp": ("tp", "dp"),
    "tp-dp-cp": ("tp", "dp", "cp"),
}
"""Groups of the grid of dense layers, by Megatron's names: the axes that their ranks differ in."""
EXPERT_GROUPS: Mapping[str, tuple[str, ...]] = {
    "ep": ("ep",),
    "expert-tp": ("tp",),
    "expert-dp": ("dp",),
    "expert-tp-ep": ("tp", "ep"),
    "expert-mp(tp-ep-pp)": ("tp", "ep", "pp"),
}
"""Groups of the grid of experts, by Megatron's names."""


def rank_order_faults(text: object, degrees: Mapping[str, int]) -> list[Fault]:
    """Everything that is wrong with an order: unknown or repeated names, and names that are missing though their degree
    exceeds 1; tp stands for etp too."""
    if not isinstance(text, str):
        return [Fault(code="not_text", field=ORDER_FIELD, value=text)]
    if not text:
        return [Fault(code="rank_order_empty", field=ORDER_FIELD, value=text, values={"names": ORDER_NAMES})]
    tokens = text.split("-")
    faults = [
        Fault(
            code="rank_order_unknown_name",
            field=ORDER_FIELD,
            value=text,
            values={"token": token, "names": ORDER_NAMES, "nearest": _nearest_name(token)},
        )
        for token in dict.fromkeys(tokens)
        if token not in ORDER_NAMES
    ]
    faults += [
        Fault(code="rank_order_repeated_name", field=ORDER_FIELD, value=text, values={"token": name})
        for name in ORDER_NAMES
        if tokens.count(name) > 1
    ]
    sizes = {**degrees, "tp": max(degrees.get("tp", 1), degrees.get("etp", 1))}
    missing = [name for name in ORDER_NAMES if name not in tokens and sizes.get(name, 1) > 1]
    return faults + [
        Fault(
            code="rank_order_missing_name",
            field=ORDER_FIELD,
            value=text,
            values={"token": name, "degree": sizes[name]},
        )
        for name in missing
    ]


def _nearest_name(token: str) -> str:
    return nearest(token, ORDER_NAMES) or ORDER_NAMES[0]


def complete_rank_order(text: str) -> tuple[str, ...]:
    """All five names of an order that was already checked, fastest first. Names of degree 1 may be left out: they take
    their place at the end, but before a last pp, so that the expert grid keeps the same pipeline groups."""
    tokens = text.split("-")
    missing = [name for name in ORDER_NAMES if name not in tokens]
    at = len(tokens) - 1 if tokens[-1] == "pp" else len(tokens)
    return (*tokens[:at], *missing, *tokens[at:])


def dense_sizes(layout: Layout) -> dict[str, int]:
    """Sizes of the axes of the dense grid; experts do not divide it."""
    return {name: getattr(layout, DENSE_AXES[name]) if name in DENSE_AXES else 1 for name in ORDER_NAMES}


def expert_sizes(layout: Layout) -> dict[str, int]:
    """Sizes of the axes of the expert grid over the same ranks."""
    return {name: getattr(layout, EXPERT_AXES[name]) if name in EXPERT_AXES else 1 for name in ORDER_NAMES}


def orthogonal_groups(order: Sequence[str], sizes: Mapping[str, int], names: Sequence[str]) -> NDArray[np.int64]:
    """Groups over the degrees `names`, shape (groups, members): ranks ascend in a group, groups follow the order."""
    slowest_first = list(reversed(order))
    shape = [sizes[name] for name in slowest_first]
    ranks = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64).reshape(shape)
    inside = [axis for axis, name in enumerate(slowest_first) if name in names]
    outside = [axis for axis in range(len(slowest_first)) if axis not in inside]
    members = int(np.prod([shape[axis] for axis in inside], dtype=np.int64))
    return ranks.transpose(outside + inside).reshape(-1, members)


def unravel(rank: int, order: Sequence[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """The coordinate of a rank along each degree of its grid."""
    coordinates = {}
    for name in order:
        rank, coordinates[name] = divmod(rank, sizes[name])
    return coordinates
