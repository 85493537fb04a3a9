"""Messages of one layer's pass over one microbatch, nothing hidden [s]: tensor, context and expert parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpdpdash.cost.activations import FULL, covered
from tpdpdash.cost.arrays import floats, of_rows
from tpdpdash.cost.case import Case
from tpdpdash.cost.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    reduce_scatter_s,
    ring_exchange_s,
    token_exchange_s,
)
from tpdpdash.cost.experts import busiest_rank
from tpdpdash.cost.operators import traffic_s
from tpdpdash.cost.parameters import kv_bytes, kv_heads_per_rank, pairs_of
from tpdpdash.elementwise import choose, larger, smaller, somewhere
from tpdpdash.layout.frameworks import cp_comm_type

if TYPE_CHECKING:
    from tpdpdash.cost.arrays import Floats
    from tpdpdash.units import Numeric


RING_MERGE_BYTES = {False: (32.0, 8.0), True: (11.5, 47.0)}
"""Read and written for each element of the queries, and of the keys (as many values besides counted), by forward and
backward of one step of torch's ring: the output to fp32 6, its difference 12, scaled 8, taken off 12 (of half of the
queries with a copy of all, every second time), keys and values laid side by side 8; backward fp32 gradients of keys and
values added up 23, laid side by side 16, keys and values 8, gradients of queries added up 11.5."""
FP8_TOKEN_BYTES = 1 + 4 / 128
"""An element of a token in 8 bits, with an fp32 scale for 128 of them: DeepSeek-V3, arXiv:2412.19437 §3.3."""


def states_messages_s(case: Case) -> tuple[Numeric, Numeric, Numeric]:
    """(all-gather, reduce-scatter, all-reduce) of one microbatch's hidden states over the TP group [s]."""
    states, link = case.states_bytes, case.links.tp
    return all_gather_s(states, link), reduce_scatter_s(states, link), all_reduce_s(states, link)


def layer_tp_s(case: Case, moe: bool, *, backward: bool) -> Numeric:
    """TP messages of one pass [s]: an all-reduce for each block, or with sequence parallelism an all-gather and a
    reduce-scatter (Korthikanti 2022 §4.2.2: the same bytes); backward gathers the inputs once more where they were not
    kept."""
    gather, scatter, whole = states_messages_s(case)
    gathers = choose(case.gathers_again, 2.0, 1.0) if backward else 1.0
    each = choose(case.columns.sequence_parallel, gathers * gather + scatter, whole)
    gather_less, scatter_less = compressed_less_s(case)
    less: Numeric = gather_less
    if backward:
        less = choose(case.gathers_again, gather_less, 0.0) + scatter_less
    return pairs_of(case.model, moe) * each - choose(case.columns.sequence_parallel, less, 0.0) + expert_tp_s(case, moe)


def compressed_frac(case: Case) -> float:
    """What is gathered for a layer's attention under sequence parallelism, of hidden states: all, or where MLA
    compresses before it gathers, its ranks over the hidden size."""
    model = case.model
    if not (model.is_mla and case.habits.compresses_shards):
        return 1.0
    width = (model.q_lora_rank or model.hidden_size) + model.kv_lora_rank + model.qk_rope_head_dim
    return width / model.hidden_size


def compressed_less_s(case: Case) -> tuple[Numeric, Numeric]:
    """(all-gather, reduce-scatter) of hidden states less those of what MLA makes of them [s]."""
    frac = compressed_frac(case)
    if frac == 1.0:
        return 0.0, 0.0
    (gather, scatter, _), sent, link = states_messages_s(case), frac * case.states_bytes, case.links.tp
    return gather - all_gather_s(sent, link), scatter - reduce_scatter_s(sent, link)


def modules_tp_s(case: Case, moe: bool) -> Numeric:
    """TP messages of the modules that selective recompute is told to recompute, nothing hidden [s]: what runs again
    gathers its input and reduces its output again (Megatron-Core checkpoints mlp, moe and shared_experts whole);
    mla_up_proj gathers the compressed vectors."""
    gather, scatter, whole = states_messages_s(case)
    split = case.columns.sequence_parallel
    block = choose(split, gather + scatter, whole)
    shared = (pairs_of(case.model, moe) - 1) * block if moe else 0.0
    expanded = choose(split, gather - compressed_less_s(case)[0], 0.0) if case.model.is_mla else 0.0
    sent = {
        "mla_up_proj": expanded,
        "mlp": 0.0 if moe else block,
        "moe": shared + expert_tp_s(case, moe),
        "shared_experts": shared,
    }
    return sum((sent.get(name, 0.0) for name in covered(case.training.recompute_modules)), 0.0 * gather)


def crossing_s(case: Case, moe: bool, *, backward: bool) -> Floats:
    """Messages of one pass that leave the scale-up domain, hidden or not, those of a full recompute with its backward
    [s] (n,): what uses the same network cards as data parallel messages. The ring's share of them is that of keys and
    values, and in backward of their gradients too."""
    links, again = case.links, (case.columns.recompute == FULL) & backward
    sent: Numeric = 0.0
    if somewhere(links.tp.crosses):
        forward_tp = layer_tp_s(case, moe, backward=False)
        sent_tp = choose(again, forward_tp, 0.0) + (layer_tp_s(case, moe, backward=True) if backward else forward_tp)
        sent = choose(links.tp.crosses, sent_tp, 0.0)
    if somewhere(links.cp.crosses):
        once_more = choose(again, context_s(case, backward=False), 0.0)
        sent = sent + choose(links.cp.crosses, context_s(case, backward=backward) + once_more, 0.0)
    if moe and somewhere(links.ep.crosses):
        sent = sent + choose(links.ep.crosses, (1.0 + again) * expert_exchange_s(case), 0.0)
    return of_rows(sent, case.tokens)


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
    return floats(kv_bytes(case.model, case.columns.tp, case.tokens, case.rates.element_bytes))


def ring_s(case: Case) -> Numeric:
    """Keys and values of every rank reach every other, cp − 1 blocks, round a ring or gathered [s]; backward sends
    gradients besides."""
    if cp_comm_type(case.training) == "all_gather":
        return all_gather_s(kv_block_bytes(case) * case.columns.cp, case.links.cp)
    return ring_exchange_s(kv_block_bytes(case), case.cluster, case.links.cp)


def divided_heads_bytes(case: Case) -> Floats:
    """Queries, keys, values and outputs of one rank's tokens (n,), as heads are divided over cp instead of tokens:
    each rank needs a key/value head, so that fewer of them are sent in copies."""
    model, columns = case.model, case.columns
    width, queries = model.query_head_dim + model.value_head_dim, model.num_attention_heads / columns.tp
    keys = larger(kv_heads_per_rank(model, columns.tp), smaller(columns.cp, queries))
    return floats(case.rates.element_bytes * case.tokens * (queries + keys) * width)


def context_s(case: Case, *, backward: bool) -> Numeric:
    """Context parallel messages of one layer's pass, nothing hidden [s]: keys and values, and in backward their
    gradients as well; or what is sent to divide heads instead, and back."""
    if cp_comm_type(case.training) == "a2a":
        return all_to_all_s(divided_heads_bytes(case), case.cluster, case.links.cp)
    return (2 if backward else 1) * ring_s(case)


def ring_merge_s(case: Case, *, backward: bool) -> Numeric:
    """Adding up the parts of a ring's attention, cp − 1 times a pass, beside which nothing runs [s]; 0 where the
    attention's own kernels do so. Keys and values have been repeated for every head by then."""
    if not case.habits.merges_rings or cp_comm_type(case.training) != "p2p":
        return 0.0
    of_queries, of_keys = RING_MERGE_BYTES[backward]
    model, columns = case.model, case.columns
    heads = case.tokens * model.num_attention_heads / columns.tp
    keys = heads * (model.query_head_dim + model.value_head_dim) / 2
    moved = of_queries * heads * model.value_head_dim + of_keys * keys
    return traffic_s((columns.cp - 1) * moved, case.rates)


def expert_exchange_s(case: Case) -> Numeric:
    """Dispatch and combine of one pass: two all-to-alls of the copies, as long as the busiest rank's take [s]; of an
    8-bit dispatch the first one sends FP8_TOKEN_BYTES an element."""
    copies = case.model.num_experts_per_token
    once = case.habits.dispatches_once(case.training)
    busiest = busiest_rank(case.model.num_experts, case.columns.ep, case.training.expert_load_cv)
    own = busiest * case.states_bytes / case.columns.tp
    back = token_exchange_s(own, copies, case.cluster, case.links.ep, once_per_domain=once)
    if not case.training.fp8_dispatch:
        return 2 * back
    sent = own * FP8_TOKEN_BYTES / case.rates.element_bytes
    return back + token_exchange_s(sent, copies, case.cluster, case.links.ep, once_per_domain=once)
