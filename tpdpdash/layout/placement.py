"""Where the ranks of a group sit: how many of them share a node or an NVLink domain, for any rank order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.elementwise import larger, smaller
from tpdpdash.layout.grid import (
    DENSE_AXES,
    DENSE_GROUPS,
    EXPERT_AXES,
    EXPERT_GROUPS,
    ORDER_NAMES,
    complete_rank_order,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.cluster.spec import ClusterSpec
    from tpdpdash.layout.columns import LayoutColumns

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]


BLOCKS_AT_ONCE = 256
"""Blocks whose members are counted at once."""


def domain_block(cluster: ClusterSpec) -> int:
    """Consecutive ranks that share a scale-up domain: the block that decides whether a group leaves NVLink.

    A job larger than a domain that spans machines (an NVL72 rack) takes a power of two of its devices, 64 of 72, so
    that no group straddles two racks: so are the published runs on such racks placed.
    """
    size = cluster.scale_up_domain_size
    if size <= cluster.devices_per_node or cluster.world_size <= size:
        return size
    return 1 << (size.bit_length() - 1)


def group_size(columns: LayoutColumns, kind: str) -> Floats:
    """Ranks in one group of `kind`, (n,)."""
    sizes, names = _grid(columns, kind)
    size = np.ones(len(columns))
    for name in names:
        size = size * sizes[name]
    return size


def members_per_block(columns: LayoutColumns, kind: str, block_size: int) -> Floats:
    """Ranks of one group of `kind` that share a block of `block_size` consecutive ranks (a node, an NVLink domain;
    blocks start at multiples of their size), (n,). Equal to the group's size where it never leaves a block.

    A degree has stride w, the product of the degrees before it in the order. Where every such product divides the block
    or is divided by it, each block of a group holds the same number: the product of min(size, block / w), at least 1,
    over the group's degrees. Otherwise groups straddle borders unevenly: those rows are counted rank by rank, and the
    emptiest block counts, because its links are the ones that a collective waits for. Exact for every order.
    """
    sizes, names = _grid(columns, kind)
    if len(columns) == 1 or len(columns.rank_orders) == 1:
        code = int(np.max(columns.rank_order)) if len(columns) == 1 else 0
        return _members(sizes, complete_rank_order(columns.rank_orders[code]), names, block_size)
    members = np.ones(len(columns))
    for rows, order in _by_order(columns):
        members[rows] = _members({name: size[rows] for name, size in sizes.items()}, order, names, block_size)
    return members


def _members(sizes: Mapping[str, Floats], order: Sequence[str], names: Sequence[str], block_size: int) -> Floats:
    """`members_per_block` of rows with one order."""
    last = max(order.index(name) for name in names)
    stride = inside = sizes[order[0]] / sizes[order[0]]
    for name in order[: last + 1]:
        if name in names:
            inside = inside * smaller(larger(np.floor(block_size / stride), 1.0), sizes[name])
        stride = stride * sizes[name]
    return _with_counted(inside, sizes, order, last, block_size, names)


def strides(columns: LayoutColumns, kind: str, name: str) -> Floats:
    """Distance in ranks between neighbours along the degree `name` in the grid of `kind`, (n,)."""
    sizes, _ = _grid(columns, kind)
    stride = np.ones(len(columns))
    for rows, order in _by_order(columns):
        for before in order[: order.index(name)]:
            stride[rows] *= np.ravel(sizes[before])[rows]
    return stride


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranks:
    """Consecutive ranks of one grid, in whole blocks."""

    coordinates: Mapping[str, NDArray[np.int64]]
    """Coordinate of each rank along each degree."""
    sizes: Mapping[str, int]
    """The degrees."""
    block: NDArray[np.int64]
    """Block of each rank."""

    def groups(self, names: Sequence[str]) -> NDArray[np.int64]:
        """A number for each rank's group over `names`."""
        group, weight = np.zeros_like(self.block), 1
        for name, size in self.sizes.items():
            if name not in names:
                group = group + self.coordinates[name] * weight
                weight *= size
        return group


def _emptiest(ranks: _Ranks, names: Sequence[str]) -> int:
    """Members of the block that holds the fewest of a group, over the groups."""
    _, counts = np.unique(ranks.groups(names) * (int(ranks.block[-1]) + 1) + ranks.block, return_counts=True)
    return int(counts.min())


def _with_counted(
    even: Floats,
    sizes: Mapping[str, Floats],
    order: Sequence[str],
    last: int,
    block_size: int,
    names: Sequence[str],
) -> Floats:
    """`even` for the rows whose strides fit the block; for the others the emptiest block of each different grid."""
    stride, fits = sizes[order[0]], np.True_
    for place, name in enumerate(order[: last + 1]):
        stride = stride * sizes[name] if place else stride
        fits = fits & ((block_size % stride == 0) | (stride % block_size == 0))
    if fits.all():
        return even
    uneven = np.flatnonzero(~fits)
    degrees = np.stack([np.atleast_1d(sizes[name])[uneven] for name in order], axis=1)
    cases, which = np.unique(degrees, axis=0, return_inverse=True)
    grids = [tuple(zip(order, case, strict=True)) for case in cases.astype(int).tolist()]
    counted = [_counted(grid, last, block_size, tuple(names)) for grid in grids]
    found = np.atleast_1d(even).copy()
    found[uneven] = np.array(counted, np.float64)[which.reshape(-1)]
    return found if np.ndim(even) else found[0]


@lru_cache(maxsize=65536)
def _counted(grid: tuple[tuple[str, int], ...], last: int, block_size: int, names: tuple[str, ...]) -> int:
    """Members of the emptiest block, counted rank by rank once for each grid, until a block has one: none has fewer.

    Groups repeat after the degrees up to the group's last, blocks after their size; what follows is the same.
    """
    sizes = dict(grid)
    products = np.cumprod(np.array(list(sizes.values()), np.int64)).tolist()
    end, step = min(products[-1], math.lcm(products[last], block_size)), BLOCKS_AT_ONCE * block_size
    fewest: int = end
    for start in range(0, end, step):
        fewest = min(fewest, _emptiest(_ranks(sizes, np.arange(start, min(start + step, end)), block_size), names))
        if fewest == 1:
            break
    return fewest


def _ranks(sizes: Mapping[str, int], ranks: NDArray[np.int64], block_size: int) -> _Ranks:
    """Where whole blocks of ranks stand in the grid."""
    coordinates, rest = {}, ranks
    for name, size in sizes.items():
        rest, coordinates[name] = np.divmod(rest, size)
    return _Ranks(coordinates=coordinates, sizes=sizes, block=ranks // block_size)


def _by_order(columns: LayoutColumns) -> Iterator[tuple[NDArray[np.int64], tuple[str, ...]]]:
    if len(columns.rank_orders) == 1:
        yield np.arange(len(columns)), complete_rank_order(columns.rank_orders[0])
        return
    for code in np.unique(columns.rank_order):
        yield np.flatnonzero(columns.rank_order == code), complete_rank_order(columns.rank_orders[code])


def _grid(columns: LayoutColumns, kind: str) -> tuple[dict[str, Floats], tuple[str, ...]]:
    dense = kind in DENSE_GROUPS
    if not dense and kind not in EXPERT_GROUPS:
        raise ValueError(f"kind={kind!r} is no group; use one of {(*DENSE_GROUPS, *EXPERT_GROUPS)}")
    axes, groups = (DENSE_AXES, DENSE_GROUPS) if dense else (EXPERT_AXES, EXPERT_GROUPS)
    one = columns.tp / columns.tp
    sizes = {name: getattr(columns, axes[name]) if name in axes else one for name in ORDER_NAMES}
    return sizes, groups[kind]
