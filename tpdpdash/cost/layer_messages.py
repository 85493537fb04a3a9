"""Messages of one layer's pass over one microbatch, nothing hidden [s]: tensor, context and expert parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cost.case import Case
from tpdpdash.cost.collectives import all_gather_s, all_reduce_s, reduce_scatter_s, token_exchange_s
from tpdpdash.cost.parameters import kv_heads_per_rank, pairs_of

if TYPE_CHECKING:
    from tpdpdash.cost.arrays import Floats
    from tpdpdash.units import Numeric


def states_messages_s(case: Case) -> tuple[Numeric, Numeric, Numeric]:
    """(all-gather, reduce-scatter, all-reduce) of one microbatch's hidden states over the TP group [s]."""
    states, link = case.states_bytes, case.links.tp
    return all_gather_s(states, link), reduce_scatter_s(states, link), all_reduce_s(states, link)


def layer_tp_s(case: Case, moe: bool, *, backward: bool) -> Numeric:
    """TP messages of one pass [s]: an all-reduce for each block, or with sequence parallelism an all-gather and a
    reduce-scatter (Korthikanti 2022 §4.2.2: the same bytes); backward then gathers the inputs once more."""
    gather, scatter, whole = states_messages_s(case)
    gathers = 2 if backward else 1
    each = np.where(case.columns.sequence_parallel, gathers * gather + scatter, whole)
    return pairs_of(case.model, moe) * each + expert_tp_s(case, moe)


def copies_bytes(case: Case) -> Floats:
    """Hidden states of the top-k copies of a rank's own tokens / tp (n,)."""
    return case.states_bytes * case.model.num_experts_per_token / case.columns.tp


def expert_tp_s(case: Case, moe: bool) -> Numeric:
    """Dispatched tokens are gathered and reduce-scattered over the TP ranks of their expert [s]."""
    if not moe:
        return 0.0
    copies = copies_bytes(case) * case.columns.etp
    return all_gather_s(copies, case.links.expert_tp) + reduce_scatter_s(copies, case.links.expert_tp)


def kv_block_bytes(case: Case) -> Floats:
    """Keys and values of one rank's tokens (n,)."""
    model, tp = case.model, case.columns.tp
    heads = model.num_attention_heads / tp if model.is_mla else kv_heads_per_rank(model.num_kv_heads, tp)
    width = model.query_head_dim + model.value_head_dim
    return np.asarray(case.rates.element_bytes * case.tokens * heads * width)


def ring_s(case: Case) -> Numeric:
    """Keys and values of every rank pass every other: cp − 1 blocks [s]; backward sends gradients besides."""
    return all_gather_s(kv_block_bytes(case) * case.columns.cp, case.links.cp)


def expert_exchange_s(case: Case) -> Numeric:
    """Dispatch and combine of one pass: two all-to-alls of the copies [s]."""
    copies = case.model.num_experts_per_token
    once = case.habits.dispatches_once_per_domain
    own = case.states_bytes / case.columns.tp
    return 2 * token_exchange_s(own, copies, case.cluster, case.links.ep, once_per_domain=once)
