"""Low-rank adapters (LoRA, arXiv:2106.09685): what they hold and what they cost beside frozen weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from tpdpdash.cost.parameters import kv_heads_per_rank
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

if TYPE_CHECKING:
    from tpdpdash.units import Numeric

Split = Literal["column", "row", "whole"]
UP = ("gate", "up")
QKV = ("query", "key", "value", "query_down", "query_up", "kv_down", "kv_up")
TARGETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("q_proj", "wq"), ("query",)),
        **dict.fromkeys(("k_proj", "wk"), ("key",)),
        **dict.fromkeys(("v_proj", "wv"), ("value",)),
        **dict.fromkeys(("linear_qkv", "qkv_proj", "c_attn", "query_key_value"), QKV),
        **dict.fromkeys(("o_proj", "wo", "out_proj", "linear_proj"), ("output",)),
        **dict.fromkeys(("gate_proj", "w1"), ("gate",)),
        **dict.fromkeys(("up_proj", "w3", "c_fc", "fc1"), ("up",)),
        **dict.fromkeys(("linear_fc1", "gate_up_proj"), ("gate", "up")),
        **dict.fromkeys(("down_proj", "w2", "fc2", "linear_fc2"), ("down",)),
        **{"q_a_proj": ("query_down",), "q_b_proj": ("query_up",), "linear_q_proj": ("query",)},
        **{"kv_a_proj_with_mqa": ("kv_down",), "kv_b_proj": ("kv_up",)},
        **{"linear_q_down_proj": ("query_down",), "linear_q_up_proj": ("query_up",)},
        **{"linear_kv_down_proj": ("kv_down",), "linear_kv_up_proj": ("kv_up",)},
    }
)
"""Matrices of a layer by the names that Hugging Face, Megatron and torchtitan give them."""
ADAPTER_KERNELS = 4.0
"""Launches that one adapter adds to a forward pass: two products, the scaling, the sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """One frozen matrix with an adapter, `number` times in a layer of one rank."""

    inputs: Numeric
    """Width of its input on one rank."""
    outputs: Numeric
    """Width of its output on one rank."""
    split: Split
    """How tensor parallelism divides it: A and B are divided on that side alone (inputs, outputs are local widths)."""
    number: Numeric
    """How many of them: the local experts of a mixture, else 1."""
    rows_share: Numeric
    """Share of the microbatch's tokens that one of them sees."""


def adapted_matrices(
    model: ModelSpec, training: Training, moe: bool, *, tp: Numeric, ep: Numeric, etp: Numeric
) -> list[Adapted]:
    """The matrices of one layer that have an adapter; empty unless LoRA is asked."""
    if training.trainable != "lora":
        return []
    named = [*_attention(model, tp), *_mlp(model, moe, tp, ep, etp)]
    return [matrix for name, matrix in named if needs_input(training, name)]


def needs_input(training: Training, *names: str) -> bool:
    """Whether a gradient needs the input of one of these matrices: it is trained itself, or has an adapter, whose A is.
    autograd keeps no input of a frozen product."""
    if training.trainable != "lora" or not training.lora_targets:
        return True
    chosen = {part for target in training.lora_targets for part in TARGETS.get(target, ())}
    return not chosen.isdisjoint(names)


def _attention(model: ModelSpec, tp: Numeric) -> list[tuple[str, Adapted]]:
    h, heads, dq, dv = model.hidden_size, model.num_attention_heads / tp, model.query_head_dim, model.value_head_dim
    output = ("output", _matrix(heads * dv, h, "row"))
    if not model.is_mla:
        kv = kv_heads_per_rank(model, tp)
        sizes = {"query": heads * dq, "key": kv * dq, "value": kv * dv}
        return [*((name, _matrix(h, size, "column")) for name, size in sizes.items()), output]
    rank, query_rank = model.kv_lora_rank, model.q_lora_rank
    query = [("query_down", _matrix(h, query_rank, "whole"))] if query_rank else []
    return [
        *query,
        ("query_up" if query_rank else "query", _matrix(query_rank or h, heads * dq, "column")),
        ("kv_down", _matrix(h, rank + model.qk_rope_head_dim, "whole")),
        ("kv_up", _matrix(rank, heads * (model.qk_nope_head_dim + dv), "column")),
        output,
    ]


def _mlp(model: ModelSpec, moe: bool, tp: Numeric, ep: Numeric, etp: Numeric) -> list[tuple[str, Adapted]]:
    h, names = model.hidden_size, ("gate", "up") if model.gated_mlp else ("up",)
    if not moe:
        inner = model.ffn_hidden_size / tp
        return [*((name, _matrix(h, inner, "column")) for name in names), ("down", _matrix(inner, h, "row"))]
    inner, local = model.moe_ffn_hidden_size / etp, model.num_experts / ep
    share = model.num_experts_per_token * etp / tp / local
    found = [(name, _matrix(h, inner, "column", local, share)) for name in names]
    found.append(("down", _matrix(inner, h, "row", local, share)))
    if model.shared_expert_ffn_hidden_size:
        width = model.shared_expert_ffn_hidden_size / tp
        found += [*((name, _matrix(h, width, "column")) for name in names), ("down", _matrix(width, h, "row"))]
    return found


def _matrix(
    inputs: Numeric, outputs: Numeric, split: Split, number: Numeric = 1.0, rows_share: Numeric = 1.0
) -> Adapted:
    return Adapted(inputs=inputs, outputs=outputs, split=split, number=number, rows_share=rows_share)


def gathered_inputs(model: ModelSpec, training: Training, moe: bool) -> int:
    """Column-parallel blocks of a layer with adapters, outside routed experts: query, key and value; gate and up.

    Under sequence parallelism each has one whole input, which the adapter's own gradient needs. Source:
    Megatron-Bridge, sequence_parallel_input_regather of its LoRA, whose saving is this.
    """
    if training.trainable != "lora":
        return 0
    has_mlp = not moe or model.shared_expert_ffn_hidden_size > 0
    return int(needs_input(training, *QKV)) + int(has_mlp and needs_input(training, *UP))


def adapter_parameters(matrices: list[Adapted], rank: int) -> Numeric:
    """Parameters of a layer's adapters on one rank: r · (inputs + outputs) for each matrix, A and B.

    Local widths: the side that tensor parallelism divides is divided, the other whole on every rank. Query, key and
    value, gate and up are counted apart, as Hugging Face's peft does.
    """
    total: Numeric = 0.0
    for matrix in matrices:
        total = total + matrix.number * rank * (matrix.inputs + matrix.outputs)
    return total


def adapter_traffic_bytes(matrices: list[Adapted], element_bytes: float) -> Numeric:
    """Bytes that the adapters' products move in a forward pass, per token: x read, B A x written and added to the
    output: e · (inputs + 3 · outputs). With a rank far below the widths they are bound by memory, not by FLOPs;
    backward moves twice as much."""
    total: Numeric = 0.0
    for matrix in matrices:
        total = total + matrix.number * matrix.rows_share * element_bytes * (matrix.inputs + 3 * matrix.outputs)
    return total
