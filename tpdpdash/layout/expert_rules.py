"""Rules about experts: how they are divided over EP and their own TP, and the grid of ranks that they live in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.grid import complete_rank_order, dense_sizes, expert_sizes
from tpdpdash.layout.placement import strides
from tpdpdash.layout.rule import Explained, Facts, Rule, flags
from tpdpdash.layout.world import expert_grid_faults, nearest_of, pipeline_faults
from tpdpdash.units import divisors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.layout.columns import LayoutColumns
    from tpdpdash.layout.layout import Layout

    Flags = NDArray[np.bool_]


def _experts(facts: Facts, c: LayoutColumns) -> Flags:
    return flags((facts.model.num_experts % c.ep != 0) if facts.model.is_moe else np.zeros(len(c), np.bool_))


def _explain_experts(facts: Facts, layout: Layout) -> Explained:
    experts = facts.model.num_experts
    values = {"experts": experts, "nearest": nearest_of(divisors(max(experts, 1)), layout.ep)}
    return Explained(value=layout.ep, values=values)


def _no_experts(facts: Facts, c: LayoutColumns) -> Flags:
    return flags((c.ep > 1) & (not facts.model.is_moe))


def _expert_ffn(facts: Facts, c: LayoutColumns) -> Flags:
    return flags((facts.model.moe_ffn_hidden_size % c.etp != 0) & facts.model.is_moe)


def _explain_expert_ffn(facts: Facts, layout: Layout) -> Explained:
    size = facts.model.moe_ffn_hidden_size
    values = {"moe_ffn_hidden_size": size, "nearest": nearest_of(divisors(max(size, 1)), layout.etp)}
    return Explained(value=layout.etp, values=values)


def _etp_grid(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags((c.tp * c.cp * c.dp) % c.etp != 0)


def _ep_grid(_facts: Facts, c: LayoutColumns) -> Flags:
    ranks = c.tp * c.cp * c.dp
    return flags((ranks % c.etp == 0) & (ranks % (c.etp * c.ep) != 0))


def _explain_grid(_facts: Facts, layout: Layout) -> Explained:
    (fault,) = expert_grid_faults(layout.world_size, pp=layout.pp, ep=layout.ep, etp=layout.etp)
    return Explained(value=fault.value, values=fault.values)


def _pp_inside(c: LayoutColumns) -> Flags:
    """Pipelines that do not come last in the order of an expert grid that divides; the others are told by its rules."""
    return flags((c.pp > 1) & (c.expert_dp == np.floor(c.expert_dp)) & ~_ends_with_pp(c))


def _pp_not_last(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(_pp_inside(c) & (c.expert_dp != c.dp))


def _splits_pipelines(_facts: Facts, c: LayoutColumns) -> Flags:
    inside = _pp_inside(c) & (c.expert_dp == c.dp)
    return flags(inside & (strides(c, "tp", "pp") != strides(c, "ep", "pp"))) if inside.any() else inside


def _ends_with_pp(c: LayoutColumns) -> Flags:
    ends = np.array([complete_rank_order(order)[-1] == "pp" for order in c.rank_orders], np.bool_)
    return flags(ends[c.rank_order])


def _explain_order(_facts: Facts, layout: Layout) -> Explained:
    order = "-".join(complete_rank_order(layout.rank_order))
    (fault,) = pipeline_faults(order, dense_sizes(layout), expert_sizes(layout))
    return Explained(value=layout.rank_order, values=fault.values)


def _needs_sequence_parallel(facts: Facts, c: LayoutColumns) -> Flags:
    return flags((c.ep > 1) & (c.tp > 1) & ~c.sequence_parallel & facts.model.is_moe)


EXPERT_RULES: tuple[Rule, ...] = (
    Rule(
        code="no_experts",
        of_degrees=True,
        field="layout.ep",
        violated=_no_experts,
        explain=lambda _facts, layout: Explained(value=layout.ep, values={"nearest": 1}),
    ),
    Rule(code="experts_not_divisible", of_degrees=True, field="layout.ep", violated=_experts, explain=_explain_experts),
    Rule(
        code="expert_ffn_not_divisible",
        of_degrees=True,
        field="layout.etp",
        violated=_expert_ffn,
        explain=_explain_expert_ffn,
    ),
    Rule(
        code="expert_grid_not_divisible", of_degrees=True, field="layout.etp", violated=_etp_grid, explain=_explain_grid
    ),
    Rule(
        code="expert_grid_not_divisible", of_degrees=True, field="layout.ep", violated=_ep_grid, explain=_explain_grid
    ),
    Rule(
        code="rank_order_pp_not_last",
        field="layout.rank_order",
        violated=_pp_not_last,
        explain=_explain_order,
        source="Megatron-LM parallel_state.py: pp-last, or the same data parallel size for dense and expert layers",
    ),
    Rule(
        code="rank_order_splits_pipelines",
        field="layout.rank_order",
        violated=_splits_pipelines,
        explain=_explain_order,
        source="Megatron-LM parallel_state.py: the same pipeline groups for dense and expert layers",
    ),
    Rule(
        code="experts_need_sequence_parallel",
        field="layout.sequence_parallel",
        violated=_needs_sequence_parallel,
        explain=lambda _facts, layout: Explained(
            value=layout.sequence_parallel, values={"tp": layout.tp, "ep": layout.ep, "nearest": True}
        ),
        frameworks=frozenset({"megatron-core"}),
        source="Megatron-LM arguments.py: MoE with tensor parallelism needs --sequence-parallel",
    ),
)
