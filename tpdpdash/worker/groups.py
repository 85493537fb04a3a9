"""Process groups from a layout: which ranks this one talks to, in any rank order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from tpdpdash.layout.groups import Coordinates, coordinates, groups_of
from tpdpdash.layout.layout import Layout

KINDS = ("tp", "pp", "dp")
GroupCache = dict[tuple[int, ...], dist.ProcessGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """This rank's place in the layout and its process groups; None where a degree is 1: nothing is sent."""

    coordinates: Coordinates
    """Place in each dimension."""
    tp: dist.ProcessGroup | None
    """Ranks that hold the shards of the same layers."""
    pp: dist.ProcessGroup | None
    """Ranks that hold the stages of one replica's shard, first stage first."""
    dp: dist.ProcessGroup | None
    """Ranks that hold the same weights."""


def make_groups(layout: Layout, rank: int, cache: GroupCache | None = None) -> Groups:
    """Create every group of the layout; all ranks call it together, since each group is made by all of them.

    `cache` holds the groups of earlier layouts in the same processes, by their ranks.
    """
    made: GroupCache = {} if cache is None else cache
    lists = groups_of(layout)
    own = {kind: _make(lists[kind], rank, made) for kind in KINDS}
    return Groups(coordinates=coordinates(layout, rank), **own)


def _make(lists: Sequence[Sequence[int]], rank: int, made: GroupCache) -> dist.ProcessGroup | None:
    own = None
    for ranks in map(tuple, lists):
        if len(ranks) == 1:
            continue
        if ranks not in made:
            made[ranks] = dist.new_group(list(ranks), sort_ranks=False)
        if rank in ranks:
            own = made[ranks]
    return own
