"""Who the ranks are, and the groups that their places make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_DENSE_GRID = ("tp", "cp", "dp", "pp")
_EXPERT_GRID = ("etp", "ep", "edp", "pp")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """Who a rank is."""

    rank: int
    """Rank."""
    pid: int
    """Process id on its host."""
    host: str
    """Machine."""
    local_rank: int
    """Place among the ranks of its machine."""
    coords: Mapping[str, int]
    """Place in each group kind: {"tp": 0, "pp": 1, "dp": 1}."""
    backend: str
    """gloo or nccl."""
    device: str
    """cpu, cuda:0."""


class RankGrid(Mapping[int, RankInfo]):
    """The ranks that said hello, by rank. Their groups are asked for after every step and change with a hello only, so
    they are found once."""

    def __init__(self, ranks: Mapping[int, RankInfo]) -> None:
        self._ranks = dict(sorted(ranks.items()))
        self._groups: dict[str, list[list[int]]] = {}
        self._arrays: dict[str, list[NDArray[np.int64]]] = {}

    def __getitem__(self, rank: int) -> RankInfo:
        return self._ranks[rank]

    def __contains__(self, rank: object) -> bool:
        return rank in self._ranks

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def __repr__(self) -> str:
        return f"RankGrid({self._ranks!r})"

    @cached_property
    def stages(self) -> Mapping[int, list[int]]:
        """The ranks of each pipeline stage."""
        return self._by_place("pp")

    @cached_property
    def replicas(self) -> Mapping[int, list[int]]:
        """The ranks that compute the same sequences."""
        return self._by_place("dp")

    def _by_place(self, kind: str) -> Mapping[int, list[int]]:
        found: dict[int, list[int]] = {}
        for rank, info in self._ranks.items():
            found.setdefault(info.coords.get(kind, 0), []).append(rank)
        return found

    def groups(self, kind: str) -> list[list[int]]:
        """Ranks that differ in `kind` only.

        Experts have a grid of their own (etp × ep × edp × pp): a place in it says nothing about a dense group.
        """
        if kind not in self._groups:
            self._groups[kind] = self._found_groups(kind)
        return self._groups[kind]

    def _found_groups(self, kind: str) -> list[list[int]]:
        if not any(info.coords.get(kind) for info in self._ranks.values()):
            return [[rank] for rank in self._ranks]
        grid = [name for name in (_EXPERT_GRID if kind in ("ep", "etp", "edp") else _DENSE_GRID) if name != kind]
        members: dict[tuple[int | None, ...], list[int]] = {}
        for rank, info in self._ranks.items():
            members.setdefault(tuple(info.coords.get(name) for name in grid), []).append(rank)
        return list(members.values())

    def group_arrays(self, kind: str) -> list[NDArray[np.int64]]:
        """Groups of more than one rank as (G, n) arrays, one for each n."""
        if kind not in self._arrays:
            by_size: dict[int, list[list[int]]] = {}
            for group in self.groups(kind):
                by_size.setdefault(len(group), []).append(group)
            self._arrays[kind] = [np.array(alike) for size, alike in by_size.items() if size > 1]
        return self._arrays[kind]
