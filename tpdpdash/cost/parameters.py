"""Parameters that one rank holds: tensor parallel shards of a layer, of the embedding and of the head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpdpdash.cost.arrays import Flag
from tpdpdash.elementwise import choose, larger
from tpdpdash.layout.vocabulary import padded_vocab_size
from tpdpdash.model.counts import LayerParameters, layer_parameters, parameter_counts, prediction_parameters
from tpdpdash.model.spec import ModelSpec

if TYPE_CHECKING:
    from tpdpdash.units import Numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShard:
    """Parameters of one layer on one rank."""

    dense: Numeric
    """Everything but routed experts [parameters], reduced over dp·cp."""
    experts: Numeric
    """Routed experts [parameters], reduced over expert-dp."""


def vocab_rows(model: ModelSpec, tp: Numeric, framework: str) -> Numeric:
    """Rows of the embedding and of the head on one rank, padding included."""
    return padded_vocab_size(model.vocab_size, tp, framework) / tp


def sequence_split(sequence_parallel: Flag, tp: Numeric) -> Numeric:
    """Ranks over which norms, residuals and stage messages divide a sequence: tp under sequence parallelism, else 1."""
    return choose(sequence_parallel, tp, 1.0)


def kv_heads_per_rank(model: ModelSpec, tp: Numeric) -> Numeric:
    """KV heads on one rank: at least one, so they are replicated where tp exceeds them (Megatron-Core); MLA expands
    keys and values for every head."""
    return model.num_attention_heads / tp if model.is_mla else larger(model.num_kv_heads / tp, 1.0)


def kv_bytes(model: ModelSpec, tp: Numeric, tokens: Numeric, element_bytes: float) -> Numeric:
    """Keys and values of `tokens` on one rank."""
    return element_bytes * tokens * kv_heads_per_rank(model, tp) * (model.query_head_dim + model.value_head_dim)


def layer_shard(model: ModelSpec, moe: bool, *, tp: Numeric, ep: Numeric, etp: Numeric) -> LayerShard:
    """Parameters of one layer on one rank.

    Column- and row-parallel matrices are divided by tp; keys and values as far as there are heads; norms, routers,
    biases of row-parallel matrices and MLA's compressing matrices are whole on every rank; routed experts are divided
    by ep·etp. Source: Megatron-Core's ColumnParallelLinear, RowParallelLinear, MLASelfAttention, GroupedMLP.
    """
    parts = layer_parameters(model, moe)
    whole_qkv, kv = _whole_qkv(model), _key_value(model, parts)
    query = parts.qkv - whole_qkv - kv
    kv_share = kv_heads_per_rank(model, tp) / model.num_kv_heads if kv else 0.0
    row_bias = model.hidden_size * (model.attention_output_bias + (model.mlp_bias and not moe))
    split = query + parts.attention_output + parts.mlp + parts.shared_experts - row_bias
    whole = whole_qkv + parts.router + parts.norms + parts.other + row_bias
    return LayerShard(dense=split / tp + kv * kv_share + whole, experts=parts.routed_experts / (ep * etp))


def _whole_qkv(model: ModelSpec) -> int:
    """MLA's compressing projections, which every TP rank holds whole."""
    if not model.is_mla:
        return 0
    return model.hidden_size * (model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim)


def _key_value(model: ModelSpec, parts: LayerParameters) -> int:
    """Key and value projections of ordinary attention, part of `qkv`."""
    if model.is_mla:
        return 0
    width = model.num_attention_heads * model.head_dim
    kv_width = model.num_kv_heads * (model.head_dim + model.value_head_dim)
    return parts.qkv * kv_width // (width + kv_width)


def pairs_of(model: ModelSpec, moe: bool) -> float:
    """Blocks of a layer that end in a TP reduction: attention and MLP; of a MoE layer attention and shared experts."""
    return 1.0 + (1.0 if not moe or model.shared_expert_ffn_hidden_size else 0.0)


def embedding_shard(model: ModelSpec, *, tp: Numeric, framework: str) -> Numeric:
    """Token embedding, padded and divided by tp, with the position table, which is whole, and loose parameters."""
    counts = parameter_counts(model)
    return vocab_rows(model, tp, framework) * model.hidden_size + counts.position_embedding + counts.other


def prediction_shard(model: ModelSpec, *, tp: Numeric, pp: Numeric, framework: str) -> Numeric:
    """What prediction modules hold beside their layers: projections divided by tp and norms; where the embedding is on
    another stage and the head is not tied to it, a copy of its table."""
    if not model.mtp_num_layers:
        return 0.0
    each = prediction_parameters(model)
    table = 0.0 if model.tied_embeddings else choose(pp > 1, vocab_rows(model, tp, framework) * model.hidden_size, 0.0)
    return model.mtp_num_layers * (each.projection / tp + each.norms) + table


def head_shard(model: ModelSpec, *, tp: Numeric, pp: Numeric, framework: str) -> Numeric:
    """Head and final norm on the last stage; a tied head is a second copy wherever there is more than one stage."""
    matrix = vocab_rows(model, tp, framework) * model.hidden_size
    own = choose(pp > 1, matrix, 0.0) if model.tied_embeddings else matrix
    return own + parameter_counts(model).final_norm
