"""Rank groups: which ranks share a tensor, data, pipeline, context or expert group, for any rank order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from tpdpdash.faults import InvalidInputError, out_of_range
from tpdpdash.layout.grid import (
    DENSE_GROUPS,
    EXPERT_GROUPS,
    complete_rank_order,
    dense_sizes,
    expert_sizes,
    orthogonal_groups,
    rank_order_faults,
    unravel,
)
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER, Layout
from tpdpdash.layout.world import expert_grid_faults, pipeline_faults, range_faults, world_faults

EMBEDDING_GROUPS = ("embedding", "position_embedding")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where one rank sits: its place in each of its groups."""

    tp: int
    """Place in its tensor parallel group."""
    cp: int
    """Place in its context parallel group."""
    pp: int
    """Its pipeline rank."""
    dp: int
    """Its replica."""
    ep: int
    """Place in its expert parallel group."""
    etp: int
    """Place in its expert tensor parallel group."""
    edp: int
    """Place in its expert data parallel group."""

    def as_dict(self) -> dict[str, int]:
        """By name, as telemetry records carry it."""
        return asdict(self)


def rank_groups(
    *,
    world_size: int,
    tp: int,
    cp: int = 1,
    pp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    order: str = DEFAULT_RANK_ORDER,
) -> dict[str, list[list[int]]]:
    """Every group of every kind, by Megatron's names. Raises InvalidInputError with all that Megatron refuses.

    Source: Megatron-LM parallel_state.initialize_model_parallel; golden: rank_groups.jsonl.
    """
    given = {"tp": tp, "cp": cp, "pp": pp, "ep": ep, **({} if etp is None else {"etp": etp})}
    faults = range_faults({"world_size": world_size}, prefix="") + range_faults(given)
    if faults:
        raise InvalidInputError(faults)
    etp = tp if etp is None else etp
    faults = world_faults(world_size, tp=tp, cp=cp, pp=pp)
    dp = 1 if faults else world_size // (tp * cp * pp)
    if not faults:  # a world that tp·cp·pp does not divide would only be told twice
        faults = expert_grid_faults(world_size, pp=pp, ep=ep, etp=etp)
    layout = Layout(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, etp=etp)
    dense, expert = dense_sizes(layout), expert_sizes(layout)
    order_faults = rank_order_faults(order, {**dense, "ep": ep, "etp": etp})
    if not faults and not order_faults:
        faults = pipeline_faults("-".join(complete_rank_order(order)), dense, expert)
    if faults or order_faults:
        raise InvalidInputError([*faults, *order_faults])
    return _all_groups(complete_rank_order(order), dense, expert)


def _all_groups(
    order: Sequence[str], dense: Mapping[str, int], expert: Mapping[str, int]
) -> dict[str, list[list[int]]]:
    groups: dict[str, list[list[int]]] = {
        kind: orthogonal_groups(order, dense, names).tolist() for kind, names in DENSE_GROUPS.items()
    }
    for kind, names in EXPERT_GROUPS.items():
        groups[kind] = orthogonal_groups(order, expert, names).tolist()
    pipelines = groups["pp"]
    groups["embedding"] = [list(dict.fromkeys((p[0], p[-1]))) for p in pipelines]
    groups["position_embedding"] = [[p[0]] for p in pipelines]
    return groups


def groups_of(layout: Layout) -> dict[str, list[list[int]]]:
    """Every group of a layout, by Megatron's names."""
    return rank_groups(
        world_size=layout.world_size,
        tp=layout.tp,
        cp=layout.cp,
        pp=layout.pp,
        ep=layout.ep,
        etp=layout.etp,
        order=layout.rank_order,
    )


def coordinates(layout: Layout, rank: int) -> Coordinates:
    """The coordinates of one rank of a legal layout."""
    _refuse_rank(layout, rank)
    order = complete_rank_order(layout.rank_order)
    dense = unravel(rank, order, dense_sizes(layout))
    expert = unravel(rank, order, expert_sizes(layout))
    return Coordinates(
        tp=dense["tp"],
        cp=dense["cp"],
        pp=dense["pp"],
        dp=dense["dp"],
        ep=expert["ep"],
        etp=expert["tp"],
        edp=expert["dp"],
    )


def group_of(layout: Layout, kind: str, rank: int) -> tuple[int, ...]:
    """The ranks of the group of `kind` (a name of DENSE_GROUPS, EXPERT_GROUPS or EMBEDDING_GROUPS) that holds `rank`;
    empty when no such group holds it (an embedding group holds the first and last stage only)."""
    _refuse_rank(layout, rank)
    order = complete_rank_order(layout.rank_order)
    if kind in EMBEDDING_GROUPS:
        pipeline = group_of(layout, "pp", rank)
        members = (pipeline[0],) if kind == "position_embedding" else tuple(dict.fromkeys((pipeline[0], pipeline[-1])))
        return members if rank in members else ()
    if kind in DENSE_GROUPS:
        sizes, names = dense_sizes(layout), DENSE_GROUPS[kind]
    elif kind in EXPERT_GROUPS:
        sizes, names = expert_sizes(layout), EXPERT_GROUPS[kind]
    else:
        known = (*DENSE_GROUPS, *EXPERT_GROUPS, *EMBEDDING_GROUPS)
        raise ValueError(f"kind={kind!r} is no group; use one of {known}")
    groups = orthogonal_groups(order, sizes, names)
    row = int((groups == rank).any(axis=1).argmax())
    return tuple(groups[row].tolist())


def _refuse_rank(layout: Layout, rank: int) -> None:
    if not 0 <= rank < layout.world_size:
        raise InvalidInputError([out_of_range("rank", rank, 0, layout.world_size - 1)])


def nodes_of(ranks: Iterable[int], devices_per_node: int) -> tuple[int, ...]:
    """The nodes that hold these ranks, ascending: ranks fill node after node."""
    return tuple(sorted({rank // devices_per_node for rank in ranks}))
