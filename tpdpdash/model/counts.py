"""Parameters and FLOPs of a ModelSpec, exactly: before any padding and before any sharding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tpdpdash.model.spec import ModelSpec

FACTS_CACHED = 64
"""Models whose counts are remembered: every estimate of a model asks for the same ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """Parameters of one transformer layer, biases included in the part that they belong to."""

    qkv: int
    """Query, key and value projections; for MLA all of its low-rank matrices but the output."""
    attention_output: int
    """Output projection of attention."""
    mlp: int
    """Dense MLP; 0 in a mixture-of-experts layer."""
    router: int
    """Router of a mixture-of-experts layer."""
    routed_experts: int
    """All routed experts of the layer together."""
    shared_experts: int
    """Shared experts, with their gate where there is one."""
    norms: int
    """Layer norms, norms on queries and keys, norms inside MLA."""
    other: int
    """Small vectors that no other part covers."""

    @property
    def attention(self) -> int:
        """All projections of attention."""
        return self.qkv + self.attention_output

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        dense = self.attention + self.mlp + self.norms + self.other
        return dense + self.router + self.routed_experts + self.shared_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Parameters of the whole model. A tied head counts once, under `embedding`."""

    embedding: int
    """Token embedding (hidden_size · vocab_size)."""
    position_embedding: int
    """Learned position table."""
    head: int
    """Output head: 0 when tied, but for its bias."""
    layers: int
    """All transformer layers."""
    final_norm: int
    """Norm before the head."""
    other: int
    """Parameters outside the layers that no other part covers."""
    routed_experts: int
    """The part of `layers` that is routed experts."""
    active_routed_experts: int
    """The part of `routed_experts` that one token visits: top-k of the experts in each layer."""
    num_moe_layers: int
    """Layers with routed experts."""

    @property
    def total(self) -> int:
        """All parameters."""
        outside = self.embedding + self.position_embedding + self.head + self.final_norm + self.other
        return outside + self.layers

    @property
    def active(self) -> int:
        """Parameters active for one token = total − routed · (1 − top_k / experts), embeddings included."""
        return self.total - self.routed_experts + self.active_routed_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCounts:
    """Model FLOPs of the forward pass for one token. One multiply-add is two FLOPs."""

    gemm: float
    """Matrix products of the layers with their weights [FLOPs per token]."""
    attention: float
    """Scores and weighted values: products of activations with activations [FLOPs per token]."""
    head: float
    """Output head, tied or not [FLOPs per token]."""

    @property
    def total(self) -> float:
        """All FLOPs of the forward pass for one token."""
        return self.gemm + self.attention + self.head


TRAINING_FLOPS_PER_FORWARD_FLOP = 3
"""Backward computes the gradients of inputs and of weights: twice the forward pass (Narayanan 2021, appendix)."""


def _linear(inputs: int, outputs: int, *, bias: bool) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _norm_width(spec: ModelSpec) -> int:
    """Parameters of one norm per unit of its width."""
    return {"rmsnorm": 1, "layernorm_no_bias": 1, "layernorm": 2, "none": 0}[spec.norm]


def _mlp_parameters(spec: ModelSpec, inner: int) -> int:
    """One MLP of inner width `inner`: up (and gate) and down, with their biases."""
    h = spec.hidden_size
    up = _linear(h, inner, bias=spec.mlp_bias)
    return (2 if spec.gated_mlp else 1) * up + _linear(inner, h, bias=spec.mlp_bias)


def _qkv_parameters(spec: ModelSpec) -> int:
    """Query, key and value projections of ordinary or grouped attention."""
    query = _linear(spec.hidden_size, spec.num_attention_heads * spec.head_dim, bias=spec.qkv_bias)
    key = _linear(spec.hidden_size, spec.num_kv_heads * spec.head_dim, bias=spec.qkv_bias)
    value = _linear(spec.hidden_size, spec.num_kv_heads * spec.value_head_dim, bias=spec.qkv_bias)
    return query + key + value


def _mla_parameters(spec: ModelSpec) -> int:
    """Low-rank matrices of multi-head latent attention: DeepSeek-V2, arXiv:2405.04434, equations 9-17.

    Where there are biases (`qkv_bias`) they sit on the compressing projections only, as in Hugging Face's
    DeepseekV3Attention (q_a_proj and kv_a_proj_with_mqa).
    """
    h, a = spec.hidden_size, spec.num_attention_heads
    query_width = a * spec.query_head_dim
    if spec.q_lora_rank:
        query = _linear(h, spec.q_lora_rank, bias=spec.qkv_bias) + spec.q_lora_rank * query_width
    else:
        query = h * query_width
    compressed = _linear(h, spec.kv_lora_rank + spec.qk_rope_head_dim, bias=spec.qkv_bias)
    expanded = spec.kv_lora_rank * a * (spec.qk_nope_head_dim + spec.value_head_dim)
    return query + compressed + expanded


def _norm_parameters(spec: ModelSpec) -> int:
    """Norms of one layer: of the residual stream, on queries and keys, inside MLA (one weight a channel)."""
    residual = spec.norms_per_layer * spec.hidden_size * _norm_width(spec)
    heads = spec.num_attention_heads + spec.num_kv_heads
    qk = {"none": 0, "head": 2 * spec.head_dim, "full": heads * spec.head_dim, "per_head": heads * spec.head_dim}
    return residual + qk[spec.qk_norm] + spec.q_lora_rank + spec.kv_lora_rank


@lru_cache(maxsize=FACTS_CACHED)
def layer_parameters(spec: ModelSpec, moe: bool) -> LayerParameters:
    """Parameters of one layer; `moe` says whether it routes to experts or keeps a dense MLP."""
    routed = spec.num_experts * _mlp_parameters(spec, spec.moe_ffn_hidden_size)
    shared_inner = spec.shared_expert_ffn_hidden_size
    shared = _mlp_parameters(spec, shared_inner) if shared_inner else 0
    gate = spec.hidden_size if spec.shared_expert_gate else 0
    output_width = spec.num_attention_heads * spec.value_head_dim
    return LayerParameters(
        qkv=_mla_parameters(spec) if spec.is_mla else _qkv_parameters(spec),
        attention_output=_linear(output_width, spec.hidden_size, bias=spec.attention_output_bias),
        mlp=0 if moe else _mlp_parameters(spec, spec.ffn_hidden_size),
        router=_linear(spec.hidden_size, spec.num_experts, bias=spec.router_bias) if moe else 0,
        routed_experts=routed if moe else 0,
        shared_experts=shared + gate if moe else 0,
        norms=_norm_parameters(spec),
        other=spec.extra_parameters_per_layer,
    )


@lru_cache(maxsize=FACTS_CACHED)
def num_moe_layers(spec: ModelSpec) -> int:
    """Layers with routed experts."""
    if not spec.is_moe:
        return 0
    regular = (spec.num_layers - spec.first_k_dense_layers) // spec.moe_layer_interval
    bare = replace(spec, dense_layers=())
    return regular - sum(bare.is_moe_layer(layer) for layer in set(spec.dense_layers) if layer < spec.num_layers)


@lru_cache(maxsize=FACTS_CACHED)
def parameter_counts(spec: ModelSpec) -> ParameterCounts:
    """Parameters of the whole model, before any padding."""
    moe_layers = num_moe_layers(spec)
    dense, sparse = layer_parameters(spec, moe=False), layer_parameters(spec, moe=True)
    routed = moe_layers * sparse.routed_experts
    table = spec.hidden_size * spec.vocab_size
    return ParameterCounts(
        embedding=table,
        position_embedding=spec.hidden_size * spec.position_embedding_size,
        head=(0 if spec.tied_embeddings else table) + (spec.vocab_size if spec.lm_head_bias else 0),
        layers=(spec.num_layers - moe_layers) * dense.total + moe_layers * sparse.total,
        final_norm=spec.hidden_size * _norm_width(spec) if spec.final_norm else 0,
        other=spec.extra_parameters,
        routed_experts=routed,
        active_routed_experts=routed // spec.num_experts * spec.num_experts_per_token if moe_layers else 0,
        num_moe_layers=moe_layers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionParameters:
    """Parameters of one multi-token prediction module: DeepSeek-V3, arXiv:2412.19437 equations 21-23. Its embedding and
    head are the model's own."""

    projection: int
    """From the hidden state and the next token's embedding, side by side, to one hidden state: 2 h · h."""
    norms: int
    """Of the hidden state, of the embedding, and before the head."""
    layer: int
    """A transformer layer like the model's last one."""

    @property
    def total(self) -> int:
        """All parameters of the module."""
        return self.projection + self.norms + self.layer


@lru_cache(maxsize=FACTS_CACHED)
def prediction_parameters(spec: ModelSpec) -> PredictionParameters:
    """Parameters of one multi-token prediction module, whether or not the model has any."""
    h = spec.hidden_size
    return PredictionParameters(
        projection=2 * h * h,
        norms=3 * h * _norm_width(spec),
        layer=layer_parameters(spec, spec.is_moe_layer(spec.num_layers - 1)).total,
    )


def _active_matrix_elements(spec: ModelSpec, moe: bool) -> int:
    """Elements of the matrices that one token meets in one layer: no biases, no norms, top-k of the experts."""
    bare = replace(spec, qkv_bias=False, attention_output_bias=False, mlp_bias=False, router_bias=False)
    layer = layer_parameters(bare, moe)
    routed = layer.routed_experts // spec.num_experts * spec.num_experts_per_token if moe else 0
    return layer.attention + layer.mlp + layer.router + layer.shared_experts + routed


def attended_len(spec: ModelSpec, seq_len: float) -> float:
    """Tokens of the causal sequence in which a token would meet as many keys as it does in the mean of the layers.

    Of s tokens in a row one meets s / 2 keys in the mean; with a window of w ≤ s keys w − w² / 2s, as many as in a
    sequence of w (2 − w / s). Every layer stands for the mean: windows alternate with full layers.
    """
    window = min(float(spec.sliding_window), seq_len)
    frac = min(1.0, spec.sliding_layers / spec.num_layers) if window else 0.0
    return (1.0 - frac) * seq_len + frac * window * (2.0 - window / seq_len) if frac else seq_len


@lru_cache(maxsize=FACTS_CACHED)
def forward_flops_per_token(spec: ModelSpec, seq_len: int, causal: bool) -> FlopCounts:
    """Model FLOPs of the forward pass for one token of a sequence of `seq_len` tokens [FLOPs per token].

    gemm = 2 · (active matrix elements of all layers); head = 2 · h · V;
    attention = L · 2 · s · a · (d_qk + d_v), scores and weighted values; half of it when `causal`, since the masked
    half needs no work, nor does what lies before a sliding window (`attended_len`).
    With d_qk = d_v = h / a, plain MLP and causal = False, times 3 and times the tokens, this is
    72 B s L h² (1 + s / 6h + V / 12hL): Narayanan 2021 (arXiv:2104.04473) equation 3 without its recomputation
    (96 → 72), and Korthikanti 2022 (arXiv:2205.05198) appendix A, equation 7. Each multi-token prediction module is one
    more layer with its projection, and runs the head once more, as Megatron counts it. Left out: norms, softmax,
    activation functions, embedding look-up.

    Model FLOPs per trained token = TRAINING_FLOPS_PER_FORWARD_FLOP · forward.
    """
    k = spec.mtp_num_layers
    L, h, V, s, a = spec.num_layers + k, spec.hidden_size, spec.vocab_size, seq_len, spec.num_attention_heads
    moe_layers = num_moe_layers(spec) + k * spec.is_moe_layer(spec.num_layers - 1)
    elements = (L - moe_layers) * _active_matrix_elements(spec, moe=False)
    if moe_layers:
        elements += moe_layers * _active_matrix_elements(spec, moe=True)
    elements += k * prediction_parameters(spec).projection
    keys = attended_len(spec, s) / 2 if causal else s
    return FlopCounts(
        gemm=2.0 * elements,
        attention=2.0 * L * keys * a * (spec.query_head_dim + spec.value_head_dim),
        head=2.0 * h * V * (1 + k),
    )
