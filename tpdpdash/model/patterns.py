"""Which layers route to experts: each architecture's keys → first_k_dense_layers and moe_layer_interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.model.rules import number_fault
from tpdpdash.model.section import ABSENT, Section

Pattern = Callable[[Section, int], set[int]]


def _number(section: Section, key: str, default: int, low: int, high: int) -> int:
    value = section.get(key)
    if value is ABSENT or value is None:
        return default
    fault = number_fault(value, section.label(key), low, high)
    if fault is not None or not isinstance(value, int):
        raise InvalidInputError([fault] if fault else [])
    return value


def _numbers(section: Section, key: str, num_layers: int) -> set[int] | None:
    """A list of layers; None where the key is absent or null."""
    value = section.get(key)
    if value is ABSENT or value is None:
        return None
    if not isinstance(value, list):
        raise InvalidInputError([Fault(code="not_list", field=section.label(key), value=value)])
    faults = [number_fault(item, section.label(key), 0, num_layers - 1) for item in value]
    if any(faults):
        raise InvalidInputError([fault for fault in faults if fault is not None])
    return set(value)


def _every(_: Section, num_layers: int) -> set[int]:
    return set(range(num_layers))


def _sparse_step(section: Section, num_layers: int) -> set[int]:
    """Qwen: every decoder_sparse_step-th layer, but for mlp_only_layers."""
    step = _number(section, "decoder_sparse_step", 1, 1, 10_000)
    dense = _numbers(section, "mlp_only_layers", num_layers) or set()
    return {layer for layer in range(num_layers) if (layer + 1) % step == 0} - dense


def _interleaved(section: Section, num_layers: int) -> set[int]:
    """Llama 4: the list moe_layers, else every interleave_moe_layer_step-th layer; a step of 0 means none."""
    listed = _numbers(section, "moe_layers", num_layers)
    if listed is not None:
        return listed
    step = _number(section, "interleave_moe_layer_step", 1, 0, 10_000)
    return set(range(step - 1, num_layers, step)) if step else set()


def _mlp_layer_types(section: Section, num_layers: int, first: int = 1) -> set[int]:
    """The list mlp_layer_types of "dense" and "sparse"; without it all layers but the first."""
    kinds = section.get("mlp_layer_types")
    if kinds is ABSENT or kinds is None:
        return set(range(first, num_layers))
    if not isinstance(kinds, list) or len(kinds) != num_layers or not {*map(str, kinds)} <= {"dense", "sparse"}:
        shown = sorted({*map(str, kinds)})[:5] if isinstance(kinds, list) else kinds
        raise InvalidInputError([Fault(code="unsupported_layers", field=section.label("mlp_layer_types"), value=shown)])
    return {layer for layer, kind in enumerate(kinds) if kind == "sparse"}


def _first_k_dense_or_types(section: Section, num_layers: int) -> set[int]:
    """As mlp_layer_types, but without the list all layers but the first first_k_dense_replace (1)."""
    return _mlp_layer_types(section, num_layers, _number(section, "first_k_dense_replace", 1, 0, num_layers))


def _ernie(section: Section, num_layers: int) -> set[int]:
    """ERNIE 4.5: every moe_layer_interval-th layer from moe_layer_start_index to moe_layer_end_index (-1: the last)."""
    start = _number(section, "moe_layer_start_index", 1, 0, 10_000)
    end = _number(section, "moe_layer_end_index", -1, -1, 10_000)
    step = _number(section, "moe_layer_interval", 1, 1, 10_000)
    last = num_layers - 1 if end == -1 else end
    return {layer for layer in range(num_layers) if (layer + 1) % step == 0 and start <= layer <= last}


PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {
        "every": _every,
        "sparse_step": _sparse_step,
        "interleaved": _interleaved,
        "mlp_layer_types": _mlp_layer_types,
        "first_k_dense_or_mlp_layer_types": _first_k_dense_or_types,
        "ernie": _ernie,
    }
)
"""By the name that families.toml uses. `first_k_dense` needs no function: the config gives ModelSpec's own field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPattern:
    """ModelSpec's way to say which layers route to experts."""

    first_k_dense_layers: int
    """Leading dense layers."""
    moe_layer_interval: int
    """Every n-th layer from there on routes to experts."""
    dense_layers: tuple[int, ...] = ()
    """Further dense layers, where the two above do not say it all."""


def layer_pattern(moe_layers: set[int], num_layers: int) -> LayerPattern:
    """The shortest pattern that gives exactly these layers: first layers and interval, else a list of dense layers."""
    regular = _regular_pattern(moe_layers, num_layers)
    if regular is not None:
        return LayerPattern(first_k_dense_layers=regular[0], moe_layer_interval=regular[1])
    dense = tuple(layer for layer in range(num_layers) if layer not in moe_layers)
    return LayerPattern(first_k_dense_layers=0, moe_layer_interval=1, dense_layers=dense)


def _regular_pattern(moe_layers: set[int], num_layers: int) -> tuple[int, int] | None:
    if not moe_layers:
        return num_layers, 1
    ordered = sorted(moe_layers)
    interval = ordered[1] - ordered[0] if len(ordered) > 1 else max(num_layers - ordered[0], 1)
    first = ordered[0] - interval + 1
    if first < 0 and len(ordered) == 1:
        first, interval = 0, ordered[0] + 1
    if first < 0 or ordered != list(range(first + interval - 1, num_layers, interval)):
        return None
    return first, interval
