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
    """Ranks that train the same weights, each on its own part of the batch."""
    dp_shards: dist.ProcessGroup | None = None
    """The part of dp over which ZeRO shards: dp_shard_size replicas that follow each other."""
    dp_replicas: dist.ProcessGroup | None = None
    """The part of dp that holds the same shard."""

    def all(self) -> list[dist.ProcessGroup]:
        """Those that exist, each once."""
        groups = (self.tp, self.pp, self.dp, self.dp_shards, self.dp_replicas)
        return list({id(group): group for group in groups if group is not None}.values())


def make_groups(layout: Layout, rank: int, cache: GroupCache | None = None) -> Groups:
    """Create every group of the layout; all ranks call it together, since each group is made by all of them.

    `cache` holds the groups of earlier layouts in the same processes, by their ranks.
    """
    made: GroupCache = {} if cache is None else cache
    own = {name: _make(lists, rank, made) for name, lists in _rank_lists(layout).items()}
    return Groups(coordinates=coordinates(layout, rank), **own)


def stand_by(layout: Layout, cache: GroupCache) -> None:
    """What a rank does that the layout does not need, while the others make the groups."""
    for lists in _rank_lists(layout).values():
        _make(lists, -1, cache)


def _rank_lists(layout: Layout) -> dict[str, list[list[int]]]:
    """Ranks of each group of each kind, in the order in which all ranks make them."""
    lists, size = groups_of(layout), layout.dp_shard_size
    return {
        **{kind: [list(ranks) for ranks in lists[kind]] for kind in KINDS},
        "dp_shards": [
            list(ranks[first : first + size]) for ranks in lists["dp"] for first in range(0, layout.dp, size)
        ],
        "dp_replicas": [list(ranks[place::size]) for ranks in lists["dp"] for place in range(size)],
    }


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
