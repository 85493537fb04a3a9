"""Rules about how a layer is divided: heads and MLP over TP, heads over CP too under all-to-all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.frameworks import ALL, MEGATRON, cp_comm_type
from tpdpdash.layout.rule import Explained, Facts, Rule, all_rows, flags
from tpdpdash.layout.world import nearest_of
from tpdpdash.model.counts import num_moe_layers
from tpdpdash.units import divisors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.layout.columns import LayoutColumns
    from tpdpdash.layout.layout import Layout
    from tpdpdash.model.spec import ModelSpec
    from tpdpdash.units import Numeric

    Flags = NDArray[np.bool_]

REPLICATES_KV = MEGATRON | {"jax"}
"""Frameworks that give each rank a copy of a KV head where tp exceeds the KV heads."""
MOST_LEGAL_SHOWN = 16


def kv_heads_legal(num_kv_heads: int, tp: Numeric, framework: str) -> Flags:
    """Whether tp ranks can share the KV heads: each holds whole heads, or (where the framework copies them) a whole
    number of ranks holds each head. Source: Megatron-LM attention.py; torchtitan parallelize.py."""
    kv = max(num_kv_heads, 1)
    divides = flags(kv % np.asarray(tp) == 0)
    return divides | flags(np.asarray(tp) % kv == 0) if framework in REPLICATES_KV else divides


def has_dense_mlp(model: ModelSpec) -> bool:
    """Whether any layer has a dense MLP."""
    return num_moe_layers(model) < model.num_layers


def legal_tp(facts: Facts) -> list[int]:
    """Tensor parallel degrees that suit heads, KV heads and the MLP together."""
    model = facts.model
    legal = [t for t in divisors(max(model.num_attention_heads, 1)) if _mlp_divides(model, t)]
    return [t for t in legal if model.is_mla or bool(kv_heads_legal(model.num_kv_heads, t, facts.framework))]


def _mlp_divides(model: ModelSpec, tp: int) -> bool:
    dense = not has_dense_mlp(model) or model.ffn_hidden_size % tp == 0
    return dense and model.shared_expert_ffn_hidden_size % tp == 0


def _heads(facts: Facts, c: LayoutColumns) -> Flags:
    return flags(facts.model.num_attention_heads % c.tp != 0)


def _kv_heads(facts: Facts, c: LayoutColumns) -> Flags:
    if facts.model.is_mla:  # the compressed keys and values have no heads to divide
        return all_rows(c, False)
    return ~kv_heads_legal(facts.model.num_kv_heads, c.tp, facts.framework)


def ulysses_legal(facts: Facts, tp: Numeric, cp: Numeric) -> Flags:
    """Whether attention's heads can be divided over cp ranks besides tp: whole query heads for each, and of key/value
    heads whole ones too or copies of one. Source: ms-swift sequence_parallel/ulysses.py; Transformer Engine's a2a."""
    ranks = np.asarray(tp) * np.asarray(cp)
    queries = facts.model.num_attention_heads % ranks == 0
    if facts.model.is_mla:
        return flags(queries)
    kv = max(facts.model.num_kv_heads, 1)
    return flags(queries & ((kv % ranks == 0) | (ranks % kv == 0)))


def _context_heads(facts: Facts, c: LayoutColumns) -> Flags:
    if cp_comm_type(facts.training) != "a2a":
        return all_rows(c, False)
    return flags((c.cp > 1) & ~ulysses_legal(facts, c.tp, c.cp))


def _explain_context_heads(facts: Facts, layout: Layout) -> Explained:
    model = facts.model
    legal = [n for n in divisors(model.num_attention_heads) if ulysses_legal(facts, layout.tp, n)]
    values = {
        "heads": model.num_attention_heads,
        "kv_heads": model.num_kv_heads,
        "tp": layout.tp,
        "legal": tuple(legal[:MOST_LEGAL_SHOWN]),
        "nearest": nearest_of(legal, layout.cp),
    }
    return Explained(value=layout.cp, values=values)


def _dense_ffn(facts: Facts, c: LayoutColumns) -> Flags:
    if not has_dense_mlp(facts.model):
        return all_rows(c, False)
    return flags(facts.model.ffn_hidden_size % c.tp != 0)


def _shared_ffn(facts: Facts, c: LayoutColumns) -> Flags:
    return flags(facts.model.shared_expert_ffn_hidden_size % c.tp != 0)


def _explain_tp(facts: Facts, layout: Layout) -> Explained:
    model, legal = facts.model, legal_tp(facts)
    # As many devices used as pipeline stages instead, where the layers divide: 52 heads on 3 devices, 60 layers.
    instead = (layout.tp,) if layout.pp == 1 and model.num_layers % layout.tp == 0 else ()
    values = {
        "heads": model.num_attention_heads,
        "kv_heads": model.num_kv_heads,
        "ffn_hidden_size": model.ffn_hidden_size,
        "shared_ffn_hidden_size": model.shared_expert_ffn_hidden_size,
        "legal": tuple(legal[:MOST_LEGAL_SHOWN]),
        "nearest": nearest_of(legal, layout.tp),
        "pp_instead": instead,
    }
    return Explained(value=layout.tp, values=values)


TENSOR_RULES: tuple[Rule, ...] = (
    Rule(code="heads_not_divisible", of_degrees=True, field="layout.tp", violated=_heads, explain=_explain_tp),
    Rule(
        code="kv_heads_not_divisible",
        of_degrees=True,
        field="layout.tp",
        violated=_kv_heads,
        explain=_explain_tp,
        frameworks=ALL - REPLICATES_KV,
        source="torchtitan PR 2577; torch views (…, heads / tp, head_dim)",
    ),
    Rule(
        code="kv_heads_not_replicable",
        of_degrees=True,
        field="layout.tp",
        violated=_kv_heads,
        explain=_explain_tp,
        frameworks=REPLICATES_KV,
        source="Megatron-LM transformer_config.py: num_query_groups and tp, one a multiple of the other",
    ),
    Rule(code="ffn_not_divisible", of_degrees=True, field="layout.tp", violated=_dense_ffn, explain=_explain_tp),
    Rule(
        code="shared_ffn_not_divisible", of_degrees=True, field="layout.tp", violated=_shared_ffn, explain=_explain_tp
    ),
    Rule(
        code="context_heads_not_divisible",
        of_degrees=True,
        field="layout.cp",
        violated=_context_heads,
        explain=_explain_context_heads,
    ),
)
