"""What makes a ModelSpec possible: types, limits and how its fields hang together. Each rule stands here once.

The reader of Hugging Face configs and the reader of a Job's inline fields both end here; `label` says how the
person wrote the field's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tpdpdash.faults import Fault, out_of_range, whole_number_fault
from tpdpdash.model.spec import ModelSpec
from tpdpdash.units import divisors, nearest_multiples

Label = Callable[[str], str]
REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "vocab_size")

_SIZE = (1, 2**24)
_COUNT = (1, 65_536)
_PART = (0, 2**24)
LIMITS: dict[str, tuple[int, int]] = {
    "num_layers": (1, 10_000),
    "hidden_size": _SIZE,
    "num_attention_heads": _COUNT,
    "num_kv_heads": _COUNT,
    "head_dim": _COUNT,
    "ffn_hidden_size": _SIZE,
    "vocab_size": (1, 2**28),
    "position_embedding_size": (0, 2**28),
    "norms_per_layer": (0, 8),
    "num_experts": (0, 65_536),
    "num_experts_per_token": (0, 65_536),
    "moe_ffn_hidden_size": _PART,
    "shared_expert_ffn_hidden_size": _PART,
    "first_k_dense_layers": (0, 10_000),
    "moe_layer_interval": (1, 10_000),
    "kv_lora_rank": _PART,
    "q_lora_rank": _PART,
    "qk_nope_head_dim": _PART,
    "qk_rope_head_dim": _PART,
    "v_head_dim": _PART,
    "mtp_num_layers": (0, 16),
    "sliding_window": (0, 2**31),
    "sliding_layers": (0, 10_000),
    "extra_parameters_per_layer": (0, 2**40),
    "extra_parameters": (0, 2**40),
}
"""Lowest and highest value of every number: far beyond what exists, low enough that no arithmetic overflows."""

_TYPES: dict[str, Any] = get_type_hints(ModelSpec)
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(ModelSpec) if field.name not in REQUIRED}


class LongNumber(str):
    """A number with so many digits that Python does not read it; its text."""

    __slots__ = ()


def number_fault(value: object, label: str, low: int, high: int) -> Fault | None:
    """What is wrong with a number of a config: as any whole number's, and it may be too long to be read."""
    if isinstance(value, LongNumber):
        beyond = low - 1 if value.startswith("-") else high + 1
        return replace(out_of_range(label, beyond, low, high), value=str(value))
    return whole_number_fault(label, value, low, high)


def _field_fault(field: str, value: object, label: str) -> Fault | None:
    """What is wrong with one value, seen alone."""
    kind = _TYPES[field]
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value in choices and isinstance(value, str):
            return None
        return Fault(code="unknown_choice", field=label, value=value, values={"choices": choices, "nearest": choices})
    if kind is bool:
        return None if isinstance(value, bool) else Fault(code="not_true_false", field=label, value=value)
    if get_origin(kind) is tuple:
        whole = isinstance(value, list | tuple) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
        return None if whole else Fault(code="not_list", field=label, value=value)
    if kind is str:
        return None if isinstance(value, str) else Fault(code="not_text", field=label, value=value)
    return number_fault(value, label, *LIMITS[field])


def _divisor_fault(label: str, value: int, dividend_label: str, dividend: int) -> Fault:
    """`value` does not divide `dividend`; the nearest divisors on both sides are named."""
    legal = divisors(dividend)
    nearest = [max(d for d in legal if d <= value), *[d for d in legal if d > value][:1]]
    values = {"dividend_name": dividend_label, "dividend": dividend, "nearest": nearest}
    return Fault(code="does_not_divide", field=label, value=value, values=values)


def _head_faults(known: Mapping[str, Any], label: Label) -> list[Fault]:
    """Heads divide the width (unless the width of a head is given), KV heads divide heads."""
    faults = []
    heads, kv_heads, hidden = (known.get(f) for f in ("num_attention_heads", "num_kv_heads", "hidden_size"))
    if heads and hidden and known.get("head_dim") is None and hidden % heads:
        values = {
            "divisor_name": label("num_attention_heads"),
            "divisor": heads,
            "nearest": nearest_multiples(hidden, heads),
        }
        faults.append(Fault(code="not_divisible", field=label("hidden_size"), value=hidden, values=values))
    if heads and kv_heads and heads % kv_heads:
        faults.append(_divisor_fault(label("num_kv_heads"), kv_heads, label("num_attention_heads"), heads))
    return faults


def _needed_with(
    known: Mapping[str, Any],
    wrong: frozenset[str],
    label: Label,
    owner: str,
    needed: tuple[str, ...],
    optional: tuple[str, ...] = (),
) -> list[Fault]:
    """`needed` fields must be above 0 when their owner is; neither they nor `optional` ones can be without it."""
    if owner in wrong:
        return []
    if known.get(owner):
        return [
            Fault(code="missing", field=label(part)) for part in needed if part not in wrong and not known.get(part)
        ]
    if any(known.get(part) for part in needed + optional):
        return [Fault(code="missing", field=label(owner))]
    return []


def _expert_faults(known: Mapping[str, Any], wrong: frozenset[str], label: Label) -> list[Fault]:
    """The fields of a mixture of experts come together, and fit the layers."""
    needed = ("num_experts_per_token", "moe_ffn_hidden_size")
    faults = _needed_with(known, wrong, label, "num_experts", needed, ("shared_expert_ffn_hidden_size",))
    experts, top_k = known.get("num_experts"), known.get("num_experts_per_token")
    if experts and top_k and top_k > experts:
        faults.append(out_of_range(label("num_experts_per_token"), top_k, 1, experts))
    layers = known.get("num_layers")
    if not layers:
        return faults
    for field, low in (("first_k_dense_layers", 0), ("moe_layer_interval", 1)):
        found = number_fault(known.get(field, low), label(field), low, layers)
        faults += [found] if found else []
    dense = (number_fault(layer, label("dense_layers"), 0, layers - 1) for layer in known.get("dense_layers", ()))
    return faults + [found for found in dense if found]


def _completed(known: dict[str, Any]) -> dict[str, Any]:
    """Defaults that follow from other fields."""
    full = {**_DEFAULTS, **known}
    full["dense_layers"] = tuple(full["dense_layers"])
    if full["kv_lora_rank"]:
        full["head_dim"] = full["qk_nope_head_dim"] + full["qk_rope_head_dim"]
        full["num_kv_heads"] = full["num_attention_heads"]
    if known.get("num_kv_heads") is None:
        full["num_kv_heads"] = full["num_attention_heads"]
    if known.get("head_dim") is None and not full["kv_lora_rank"]:
        full["head_dim"] = full["hidden_size"] // full["num_attention_heads"]
    return full


def build_spec(values: Mapping[str, object], label: Label) -> tuple[ModelSpec | None, list[Fault]]:
    """A ModelSpec from values of unknown type, and every fault; a value of None counts as not given."""
    given = {field: value for field, value in values.items() if value is not None}
    found = {field: _field_fault(field, value, label(field)) for field, value in given.items()}
    faults = [fault for fault in found.values() if fault is not None]
    faults += [Fault(code="missing", field=label(field)) for field in REQUIRED if field not in given]
    wrong = frozenset(field for field, fault in found.items() if fault is not None)
    known: dict[str, Any] = {field: value for field, value in given.items() if field not in wrong}
    if not known.get("kv_lora_rank") and "head_dim" not in wrong:
        faults += _head_faults(known, label)
    faults += _expert_faults(known, wrong, label)
    rotary = ("qk_nope_head_dim", "qk_rope_head_dim")
    faults += _needed_with(known, wrong, label, "kv_lora_rank", rotary, ("q_lora_rank",))
    if known.get("kv_lora_rank") and not known.get("v_head_dim") and "v_head_dim" not in wrong:
        faults.append(Fault(code="missing", field=label("v_head_dim")))
    if faults:
        return None, faults
    return ModelSpec(**_completed(known)), []
