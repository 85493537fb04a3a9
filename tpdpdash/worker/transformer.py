"""The built-in model: a Llama-style transformer (RMSNorm, RoPE, GQA, SwiGLU), or the part of it on one pipeline stage.

Activations are (sequence, batch, hidden); with sequence parallelism a rank holds its slice of the sequence between
the parallel regions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch.utils.checkpoint import checkpoint

from tpdpdash.layout.layout import Recompute, RecomputeMethod
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Attention
from tpdpdash.worker.collectives import TensorGroup, enter_parallel, leave_parallel
from tpdpdash.worker.weights import EMBEDDING, FINAL_NORM, HEAD, subset

ROPE_BASE = 10_000.0
"""Base of the rotary embedding (Su 2021; Llama 1 and 2). ModelSpec has no field for it: it changes no cost."""
NORM_EPS = 1e-5
"""Epsilon of the norms (Llama 2)."""

Parameters = Mapping[str, torch.nn.Parameter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """What is dropped after forward and computed again in backward."""

    kind: Recompute = "none"
    """none, selective (the core attention), full (whole layers)."""
    num_layers: int | None = None
    """As Layout.recompute_num_layers."""
    method: RecomputeMethod = "uniform"
    """As Layout.recompute_method."""


def rope_table(seq_len: int, head_dim: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, each (sequence, 1, 1, head_dim), in the half-split convention of Hugging Face."""
    frequencies = ROPE_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(seq_len, device=device, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)[:, None, None, :]
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Apply the rotary embedding to (sequence, batch, heads, head_dim)."""
    cos, sin = rope
    low, high = x.float().chunk(2, dim=-1)
    return (torch.cat((low, high), dim=-1) * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Fused causal attention on (batch, heads, sequence, head_dim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def naive_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention with the scores written to memory."""
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, float("-inf")).float().softmax(dim=-1).to(q.dtype) @ v


ATTENTIONS: dict[Attention, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "flash": flash_attention,
    "naive": naive_attention,
}


class Layer(torch.nn.Module):
    """One transformer layer: attention and gated MLP, each a column-parallel and a row-parallel half."""

    def __init__(self, model: ModelSpec, parameters: Parameters, tp: TensorGroup, attention: Attention) -> None:
        super().__init__()
        self._width = (model.hidden_size,)
        self._head_dim = model.head_dim
        self._attributes = {name: name.replace(".", "_") for name in parameters}
        self._tp = tp
        self.core_attention = ATTENTIONS[attention]
        for name, parameter in parameters.items():
            self.register_parameter(self._attributes[name], parameter)

    def forward(self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """(sequence, batch, hidden) → the same."""
        # Looked up each time: fully sharded, a layer has other parameters in forward than outside it.
        w = {name: getattr(self, attribute) for name, attribute in self._attributes.items()}
        x = x + self._attention(F.rms_norm(x, self._width, w["input_layernorm.weight"], NORM_EPS), rope, w)
        return x + self._mlp(F.rms_norm(x, self._width, w["post_attention_layernorm.weight"], NORM_EPS), w)

    def _attention(self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], w: Parameters) -> torch.Tensor:
        d = self._head_dim
        x = enter_parallel(x, self._tp)
        q, k, v = (
            F.linear(x, w[f"self_attn.{n}_proj.weight"], w.get(f"self_attn.{n}_proj.bias")).unflatten(-1, (-1, d))
            for n in "qkv"
        )
        if "self_attn.q_norm.weight" in w:
            q = F.rms_norm(q, (d,), w["self_attn.q_norm.weight"], NORM_EPS)
            k = F.rms_norm(k, (d,), w["self_attn.k_norm.weight"], NORM_EPS)
        q, k = rotate(q, rope), rotate(k, rope)
        mixed = self.core_attention(*(each.permute(1, 2, 0, 3) for each in (q, k, v)))
        mixed = mixed.permute(2, 0, 1, 3).flatten(2)
        return leave_parallel(F.linear(mixed, w["self_attn.o_proj.weight"]), self._tp)

    def _mlp(self, x: torch.Tensor, w: Parameters) -> torch.Tensor:
        x = enter_parallel(x, self._tp)
        inner = F.silu(F.linear(x, w["mlp.gate_proj.weight"])) * F.linear(x, w["mlp.up_proj.weight"])
        return leave_parallel(F.linear(inner, w["mlp.down_proj.weight"]), self._tp)


class Stage(torch.nn.Module):
    """The consecutive layers of one pipeline stage, with the embedding on the first and the head on the last."""

    def __init__(
        self,
        model: ModelSpec,
        parameters: Parameters,
        layers: Sequence[int],
        tp: TensorGroup,
        *,
        seq_len: int,
        attention: Attention,
        recomputation: Recomputation,
        device: torch.device,
    ) -> None:
        super().__init__()
        self._tp = tp
        self._width = (model.hidden_size,)
        self.embedding = parameters.get(EMBEDDING)
        self.final_norm = parameters.get(FINAL_NORM)
        self.head = parameters.get(EMBEDDING if model.tied_embeddings else HEAD) if FINAL_NORM in parameters else None
        self.layers = torch.nn.ModuleList(
            Layer(model, subset(parameters, f"model.layers.{layer}"), tp, attention) for layer in layers
        )
        self._rope = rope_table(seq_len, model.head_dim, device)
        self._segments = _segments(list(self.layers), recomputation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (batch, sequence) or activations → activations or logits (sequence, batch, vocabulary / tp)."""
        if self.embedding is not None:
            x = self._embed(x.t(), self.embedding)
        for layers, is_recomputed in self._segments:
            x = checkpoint(self._run, x, layers, use_reentrant=False) if is_recomputed else self._run(x, layers)
        if self.final_norm is None:
            return x
        x = enter_parallel(F.rms_norm(x, self._width, self.final_norm, NORM_EPS), self._tp)
        return F.linear(x, self.head)

    def _run(self, x: torch.Tensor, layers: Sequence[torch.nn.Module]) -> torch.Tensor:
        for layer in layers:
            x = layer(x, self._rope)
        return x

    def _embed(self, tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Vocabulary-parallel lookup: a rank answers for its own rows, the sum over ranks has all."""
        if self._tp.size == 1:
            return F.embedding(tokens, table)
        num_local = table.shape[0]
        local = tokens - self._tp.rank * num_local
        is_elsewhere = (local < 0) | (local >= num_local)
        rows = F.embedding(local.masked_fill(is_elsewhere, 0), table)
        return leave_parallel(rows.masked_fill(is_elsewhere.unsqueeze(-1), 0.0), self._tp)


def _segments(layers: list[Layer], recomputation: Recomputation) -> list[tuple[list[Layer], bool]]:
    """Layers in the runs that are computed again as one: (layers, is recomputed)."""
    if recomputation.kind == "selective":
        for layer in layers:
            layer.core_attention = _recomputed(layer.core_attention)
    if recomputation.kind != "full":
        return [(layers, False)]
    num_layers = recomputation.num_layers
    if recomputation.method == "block" and num_layers is not None:
        return [*(([layer], True) for layer in layers[:num_layers]), (layers[num_layers:], False)]
    size = num_layers or 1
    return [(layers[start : start + size], True) for start in range(0, len(layers), size)]


def _recomputed(
    core: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Core attention that keeps only its inputs."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return checkpoint(core, q, k, v, use_reentrant=False)

    return attention
