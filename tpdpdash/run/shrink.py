"""A model of the same shape, small enough to train on a CPU, of the parts that the built-in worker has."""

from __future__ import annotations

from tpdpdash.model.spec import ModelSpec

MAX_VOCAB_SIZE = 1024
MAX_LAYERS_PER_STAGE = 2
MAX_HEAD_DIM = 16
MAX_QUERIES_PER_KV_HEAD = 2
MAX_FFN_RATIO = 4


def shrink_model(model: ModelSpec, *, tp: int, pp: int, num_model_chunks: int) -> ModelSpec:
    """Layers and widths shrunken, what a degree divides stays divisible by it, and the kind of attention is kept:
    one query head a KV head, several, or a single KV head where tp allows it. A model chunk is a layer."""
    layers_per_rank = num_model_chunks if num_model_chunks > 1 else min(MAX_LAYERS_PER_STAGE, model.num_layers // pp)
    kv_heads, heads = _heads(model, tp)
    head_dim = max(2, min(model.query_head_dim, MAX_HEAD_DIM) // 2 * 2)
    hidden_size = heads * head_dim
    # Every field that is not named takes ModelSpec's default, which is what worker.transformer builds: rotary
    # positions, two RMSNorms a layer, a gated MLP, no experts, no latent attention.
    return ModelSpec(
        name=model.name,
        num_layers=pp * max(1, layers_per_rank),
        hidden_size=hidden_size,
        num_attention_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_hidden_size=_ffn_hidden_size(model, hidden_size, tp),
        vocab_size=max(tp, min(model.vocab_size, MAX_VOCAB_SIZE) // tp * tp),
        tied_embeddings=model.tied_embeddings and pp == 1,
        qkv_bias=model.qkv_bias,
        qk_norm=model.qk_norm if model.qk_norm in ("none", "head") else "head",
    )


def _heads(model: ModelSpec, tp: int) -> tuple[int, int]:
    """(KV heads, query heads): both divisible by tp, as many queries a KV head as asked, up to two."""
    kv_heads = tp * max(1, min(model.num_kv_heads // tp, 2 if tp == 1 else 1))
    queries = max(1, model.num_attention_heads // max(kv_heads, model.num_kv_heads))
    return kv_heads, kv_heads * min(queries, MAX_QUERIES_PER_KV_HEAD)


def _ffn_hidden_size(model: ModelSpec, hidden_size: int, tp: int) -> int:
    """The asked ratio of the MLP's inner width to the hidden size, up to four, divisible by tp."""
    inner = model.ffn_hidden_size or model.moe_ffn_hidden_size or MAX_FFN_RATIO * model.hidden_size
    ratio = min(inner / model.hidden_size, MAX_FFN_RATIO)
    return max(1, round(ratio * hidden_size / tp)) * tp
