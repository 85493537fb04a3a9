"""ModelSpec: the architecture of a decoder-only transformer, as far as size, speed and sharding depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Norm = Literal["rmsnorm", "layernorm", "layernorm_no_bias", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One architecture. Sizes in elements; a count of 0 means the part is absent (no experts, no MLA, no table)."""

    name: str
    """How people call it: a preset's name, or the name in the config file."""
    num_layers: int
    """Transformer layers."""
    hidden_size: int
    """Width of the residual stream (h)."""
    num_attention_heads: int
    """Query heads (a)."""
    num_kv_heads: int
    """Key/value heads: equal to num_attention_heads without grouping, 1 for multi-query."""
    head_dim: int
    """Width of one query/key head; not always hidden_size / num_attention_heads."""
    ffn_hidden_size: int
    """Inner width of a dense MLP (f)."""
    vocab_size: int
    """Rows of the embedding, before any padding (V)."""
    gated_mlp: bool = True
    """Three MLP matrices (SwiGLU and kin) instead of two."""
    tied_embeddings: bool = False
    """The head is the transposed embedding: counted once."""
    position_embedding_size: int = 0
    """Rows of a learned position table (GPT-2: 1,024); 0 for rotary and ALiBi."""
    norm: Norm = "rmsnorm"
    """Kind of the layer norms: decides whether a norm has a bias or weights at all."""
    norms_per_layer: int = 2
    """Norms of width hidden_size in one layer (1 for parallel attention + MLP as GPT-J, 4 for Gemma-2 style)."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    attention_output_bias: bool = False
    """A bias on the attention's output projection."""
    mlp_bias: bool = False
    """Biases on the MLP's matrices."""
    lm_head_bias: bool = False
    """A bias on the output head."""
    qk_norm: Literal["none", "head", "full", "per_head"] = "none"
    """Norms on queries and keys: one head_dim vector shared by heads, over the full projections, or one per head."""
    num_experts: int = 0
    """Routed experts of a mixture-of-experts layer; 0 for a dense model."""
    num_experts_per_token: int = 0
    """Experts that each token visits (top-k)."""
    moe_ffn_hidden_size: int = 0
    """Inner width of one routed expert."""
    shared_expert_ffn_hidden_size: int = 0
    """Inner width of all shared experts of a layer together."""
    first_k_dense_layers: int = 0
    """Leading layers that keep a dense MLP."""
    moe_layer_interval: int = 1
    """Every n-th layer (counted from first_k_dense_layers) is a mixture of experts; the others are dense."""
    dense_layers: tuple[int, ...] = ()
    """Further layers (from 0) that keep a dense MLP, where no first layers and interval say it."""
    kv_lora_rank: int = 0
    """Multi-head latent attention: rank of the compressed keys and values; 0 for ordinary attention."""
    q_lora_rank: int = 0
    """MLA: rank of the compressed queries; 0 when queries are projected directly."""
    qk_nope_head_dim: int = 0
    """MLA: part of a query/key head without rotary embedding."""
    qk_rope_head_dim: int = 0
    """MLA: rotary part of a query/key head."""
    sliding_window: int = 0
    """Keys that a token meets in a layer with a sliding window, itself included; 0 = all before it."""
    sliding_layers: int = 0
    """Layers whose attention has that window."""
    v_head_dim: int = 0
    """Width of one value head where it differs from head_dim (MLA); 0 = head_dim."""
    router_bias: bool = False
    """A bias on the router of a mixture-of-experts layer."""
    shared_expert_gate: bool = False
    """A gate of width hidden_size on the shared expert of a mixture-of-experts layer (Qwen2-MoE)."""
    mtp_num_layers: int = 0
    """Modules behind the last layer that predict further tokens in training: a projection of two hidden states, three
    norms and a layer like the last one each. Parameters and FLOPs of the model are told without them."""
    final_norm: bool = True
    """A norm of width hidden_size before the head."""
    extra_parameters_per_layer: int = 0
    """Small vectors in every layer that no other field covers (attention sinks, biases of q/k norms);
    replicated over TP."""
    extra_parameters: int = 0
    """Small parameters outside the layers that no other field covers (an embedding norm, a final bias)."""
    source: str = ""
    """Where the figures come from: "preset:<name>", "config:<file>", or empty for inline fields."""

    def __hash__(self) -> int:
        """Of what tells models apart: all fields would take longer than what their hash is asked for."""
        return hash(
            (self.num_layers, self.hidden_size, self.num_attention_heads, self.ffn_hidden_size, self.vocab_size)
        )

    @property
    def is_moe(self) -> bool:
        """Whether any layer has routed experts."""
        return self.num_experts > 0

    @property
    def is_mla(self) -> bool:
        """Whether attention is multi-head latent attention."""
        return self.kv_lora_rank > 0

    @property
    def query_head_dim(self) -> int:
        """Width of one query (and key) head, MLA included."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim if self.is_mla else self.head_dim

    @property
    def value_head_dim(self) -> int:
        """Width of one value head, MLA included."""
        return self.v_head_dim or self.head_dim

    def is_moe_layer(self, layer: int) -> bool:
        """Whether layer `layer` (from 0) routes to experts."""
        if not self.is_moe or layer < self.first_k_dense_layers or layer in self.dense_layers:
            return False
        return (layer - self.first_k_dense_layers) % self.moe_layer_interval == self.moe_layer_interval - 1
