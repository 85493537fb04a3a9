"""Framework habits: what decides between frameworks that run the same layout. The table is frameworks.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from tpdpdash.layout.frameworks import known_framework
from tpdpdash.units import MICROSECOND

MILLISECOND = 1e-3
SelectiveKind = Literal["core_attention", "operators", "alternate_layers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkHabits:
    """One framework's conventions, overlap and host cost. Every figure's source stands in frameworks.toml."""

    name: str
    """The framework whose table was taken."""
    asked: str
    """The framework as it was asked; differs from `name` where it is unknown here and the nearest was taken."""
    holds_fp32_weights: bool
    """Weights (or their shards) are fp32 and cast for compute; otherwise 16-bit weights with fp32 masters."""
    zero2_shards_weights: bool
    """ZeRO 2 shards the fp32 weights too and keeps a gathered copy in the compute precision through a microbatch."""
    sgd_momentum: bool
    """SGD keeps a momentum."""
    updates_from_fp32_gradients: bool
    """The update makes a fp32 copy of 16-bit gradients, sharded as the optimizer's states are: a buffer of 4 bytes a
    parameter."""
    keeps_16bit_gradients: bool
    """Beside fp32 main gradients, 16-bit gradients stay allocated."""
    logit_kept_bytes: float
    """Bytes held per logit at the peak of the loss."""
    logit_traffic_bytes: float
    """Bytes read and written per logit by the loss, forward and backward."""
    selective_kind: SelectiveKind
    """What selective recompute recomputes."""
    backward_hides_tp: bool
    """TP messages of backward run beside GEMMs of the same layer."""
    hidden_frac: float
    """Share of overlapped message time that is gained."""
    tp_hidden_frac: float
    """Share of TP time hidden with layout.overlap_tp."""
    ep_hidden_frac: float
    """Share of expert all-to-all time hidden."""
    dispatches_once_per_domain: bool
    """A token goes to each domain of its experts once and is handed on inside (DeepEP, HybridEP)."""
    gathers_per_microbatch: float
    """Weight gathers in one microbatch under ZeRO-3."""
    gradient_bucket_bytes: float
    """Buckets that stay allocated for reduction."""
    allocator_frac: float
    """What the caching allocator reserves beyond what tensors hold, as a share of it."""
    layer_kernels: float
    """Kernels launched in the forward pass of a dense layer."""
    message_kernels: float
    """Launches whose host time one tensor parallel message takes."""
    moe_kernels: float
    """Kernels that a mixture-of-experts layer adds."""
    backward_kernels: float
    """Backward launches per forward launch."""
    microbatch_s: float
    """Host seconds of one microbatch, exposed."""
    step_s: float
    """Host seconds of one step, exposed."""
    eager_traffic: float
    """Element-wise traffic without a compiler, against with."""
    p2p_hidden_frac: float
    """Share of stage-to-stage messages hidden in 1F1B and GPipe."""
    scatters_p2p: bool
    """Stage messages are split over TP also without sequence parallelism."""
    gemm_frac: float
    """Speed of its GEMMs against the device's curve, which Megatron defines: gaps between kernels, layouts, casts."""
    attention_frac: float
    """Speed of its fused attention against the best on the device."""
    traffic_frac: float
    """Element-wise traffic of its operators against Megatron-Core's fused ones."""
    interleaved_p2p_hidden_frac: float
    """The same when interleaving."""
    grouped_gemm_frac: float
    """Speed of a grouped expert GEMM against one dense GEMM of the same sizes."""
    sources: Mapping[str, str]
    """Kind and source of each figure, by field."""


_SCALED = {"microbatch_us": ("microbatch_s", MICROSECOND), "step_ms": ("step_s", MILLISECOND)}


@cache
def _tables() -> Mapping[str, Any]:
    """The packaged table, read once."""
    text = files("tpdpdash.cost").joinpath("frameworks.toml").read_text(encoding="utf-8")
    return MappingProxyType(tomllib.loads(text))


def framework_names() -> tuple[str, ...]:
    """Frameworks with a table of their own."""
    return tuple(name for name in _tables() if name != "default")


@cache
def framework_habits(asked: str) -> FrameworkHabits:
    """The habits of a framework; an unknown one takes the nearest."""
    name = known_framework(asked)
    merged = {**_tables()["default"], **_tables()[name]}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, figure in merged.items():
        field, factor = _SCALED.get(key, (key, None))
        values[field] = figure["value"] * factor if factor else figure["value"]
        sources[field] = f"{figure['kind']}: {figure['source']}"
    return FrameworkHabits(name=name, asked=asked, sources=MappingProxyType(sources), **values)
