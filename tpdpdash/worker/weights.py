"""Weights of one rank: which tensors it holds, their deterministic start values, and the flat buffers behind them.

Every tensor is generated whole from (seed, name) and then sliced, so that any layout starts from the same weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tpdpdash.layout.flat_buffers import aligned, buffer_length
from tpdpdash.model.spec import ModelSpec

INIT_STD = 0.02
"""Standard deviation of the start values (GPT-2, Llama); residual projections take 1 / √(2L) of it (GPT-2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One tensor of the model, and what tensor parallelism does with it."""

    name: str
    """Hugging Face's name."""
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    shard_dim: int | None = None
    """Dimension that is split over the TP group; None: every rank holds all of it."""
    std: float | None = None
    """Standard deviation of the start values; None: the constant `start`."""
    start: float = 1.0
    """Start value where std is None."""
    is_partial: bool = False
    """Held whole, but each TP rank's gradient is a part of the sum: summed over the group after backward."""

    def local_shape(self, tp: int) -> tuple[int, ...]:
        """Shape of one rank's part."""
        if self.shard_dim is None:
            return self.shape
        return tuple(n // tp if dim == self.shard_dim else n for dim, n in enumerate(self.shape))


def layer_weights(model: ModelSpec, layer: int, tp: int, sequence_parallel: bool) -> list[Weight]:
    """The weights of transformer layer `layer` (counted over the whole model)."""
    h, d, f = model.hidden_size, model.head_dim, model.ffn_hidden_size
    q, kv = model.num_attention_heads * d, model.num_kv_heads * d
    residual_std = INIT_STD / (2 * model.num_layers) ** 0.5
    norms_are_partial = tp > 1 and sequence_parallel
    at = f"model.layers.{layer}"
    weights = [
        Weight(name=f"{at}.input_layernorm.weight", shape=(h,), is_partial=norms_are_partial),
        Weight(name=f"{at}.post_attention_layernorm.weight", shape=(h,), is_partial=norms_are_partial),
    ]
    if model.qk_norm == "head":  # one vector for all heads: each TP rank sees only its own heads
        weights += [Weight(name=f"{at}.self_attn.{n}_norm.weight", shape=(d,), is_partial=tp > 1) for n in "qk"]
    for name, rows in (("q", q), ("k", kv), ("v", kv)):
        weights.append(Weight(name=f"{at}.self_attn.{name}_proj.weight", shape=(rows, h), shard_dim=0, std=INIT_STD))
        if model.qkv_bias:
            weights.append(Weight(name=f"{at}.self_attn.{name}_proj.bias", shape=(rows,), shard_dim=0, start=0.0))
    return [
        *weights,
        Weight(name=f"{at}.self_attn.o_proj.weight", shape=(h, q), shard_dim=1, std=residual_std),
        Weight(name=f"{at}.mlp.gate_proj.weight", shape=(f, h), shard_dim=0, std=INIT_STD),
        Weight(name=f"{at}.mlp.up_proj.weight", shape=(f, h), shard_dim=0, std=INIT_STD),
        Weight(name=f"{at}.mlp.down_proj.weight", shape=(h, f), shard_dim=1, std=residual_std),
    ]


EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def stage_weights(
    model: ModelSpec, layers: Sequence[int], is_first: bool, is_last: bool, tp: int, sequence_parallel: bool
) -> list[Weight]:
    """The weights of a pipeline stage that holds `layers`; partial ones first, so that they are one slice."""
    h, V = model.hidden_size, model.vocab_size
    weights = [w for layer in layers for w in layer_weights(model, layer, tp, sequence_parallel)]
    if is_first:
        weights.append(Weight(name=EMBEDDING, shape=(V, h), shard_dim=0, std=INIT_STD))
    if is_last:
        weights.append(Weight(name=FINAL_NORM, shape=(h,), is_partial=tp > 1 and sequence_parallel))
        if not model.tied_embeddings:
            weights.append(Weight(name=HEAD, shape=(V, h), shard_dim=0, std=INIT_STD))
    return sorted(weights, key=lambda weight: not weight.is_partial)


def start_value(weight: Weight, seed: int, tp: int, tp_rank: int, device: torch.device) -> torch.Tensor:
    """This rank's part of the start value. The generator is the device's own: CPU and GPU start differently."""
    if weight.std is None:
        return torch.full(weight.local_shape(tp), weight.start, device=device)
    digest = hashlib.sha256(f"{seed}:{weight.name}".encode()).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    whole = torch.empty(weight.shape, device=device).normal_(0.0, weight.std, generator=generator)
    return whole if weight.shard_dim is None else whole.chunk(tp, dim=weight.shard_dim)[tp_rank]


class FlatWeights:
    """All weights of a rank in one buffer, and all gradients in another: DP sends each as one message."""

    __slots__ = ("_other_dtype", "gradients", "num_partial", "parameters", "values")

    def __init__(
        self,
        weights: Sequence[Weight],
        *,
        tp: int,
        dp: int,
        dtype: torch.dtype,
        gradient_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Zeroed buffers, padded so that they divide by dp; `initialise` fills them."""
        shapes = [weight.local_shape(tp) for weight in weights]
        sizes = [aligned(torch.Size(shape).numel()) for shape in shapes]
        length = buffer_length(sum(sizes), dp)
        self.values = torch.zeros(length, dtype=dtype, device=device)
        """Weights in the precision of the GEMMs."""
        self.gradients = torch.zeros(length, dtype=gradient_dtype, device=device)
        """Sum over microbatches, in the precision in which it is reduced."""
        self.num_partial = sum(size for weight, size in zip(weights, sizes, strict=True) if weight.is_partial)
        """Leading elements whose gradients are summed over the TP group."""
        self.parameters: dict[str, torch.nn.Parameter] = {}
        """Views of `values` by name; their gradients land in `gradients`."""
        self._other_dtype: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        start = 0
        for weight, shape, size in zip(weights, shapes, sizes, strict=True):
            self.parameters[weight.name] = self._parameter(start, shape)
            start += size

    def _parameter(self, start: int, shape: tuple[int, ...]) -> torch.nn.Parameter:
        stop = start + torch.Size(shape).numel()
        parameter = torch.nn.Parameter(self.values[start:stop].view(shape))
        gradient = self.gradients[start:stop].view(shape)
        if gradient.dtype == parameter.dtype:
            parameter.grad = gradient  # autograd accumulates in place
        else:
            self._other_dtype.append((parameter, gradient))
            parameter.register_post_accumulate_grad_hook(lambda p: _move(p, gradient))
        return parameter

    def collect_gradients(self) -> None:
        """Take in gradients that were computed without autograd's hooks: a pipeline's separate weight gradients."""
        for parameter, gradient in self._other_dtype:
            if parameter.grad is not None:
                _move(parameter, gradient)

    def before_microbatch(self, is_last: bool) -> None:
        """Nothing to do: the weights are whole."""

    @torch.no_grad()
    def initialise(self, weights: Sequence[Weight], seed: int, tp: int, tp_rank: int) -> None:
        """Fill in the start values."""
        for weight in weights:
            parameter = self.parameters[weight.name]
            parameter.copy_(start_value(weight, seed, tp, tp_rank, parameter.device))


def _move(parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
    """Add the parameter's own gradient to one of another dtype."""
    gradient.add_(parameter.grad)
    parameter.grad = None


def meta_parameters(weights: Sequence[Weight], tp: int) -> dict[str, torch.nn.Parameter]:
    """fp32 parameters of one rank's shapes that hold nothing yet."""
    return {w.name: torch.nn.Parameter(torch.empty(w.local_shape(tp), device="meta")) for w in weights}


def subset(parameters: Mapping[str, torch.nn.Parameter], prefix: str) -> dict[str, torch.nn.Parameter]:
    """The parameters below `prefix.`, by what remains of their names."""
    return {name.removeprefix(f"{prefix}."): p for name, p in parameters.items() if name.startswith(f"{prefix}.")}
