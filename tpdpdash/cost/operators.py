"""Seconds of single operators on one device: GEMM, attention, element-wise. Roofline with efficiencies of the
catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cluster.spec import DeviceSpec
from tpdpdash.cost.states import DTYPE_BYTES, compute_bytes
from tpdpdash.training import Training

if TYPE_CHECKING:
    from tpdpdash.units import Numeric

FP8_KEYS = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""Which peak a low precision uses."""
FLASH_BACKWARD_WORK = 2.5
"""Flash attention's backward does five products for the forward's two: arXiv:2205.14135 §3, 2307.08691 §4."""
FLASH_BACKWARD_SPEED = 0.85
"""Backward reaches less of the peak than forward: arXiv:2307.08691 figures 5 and 6 (A100: 0.62 against 0.72)."""
UNALIGNED_HEADS = 16.0
"""Slow-down of naive attention's products where a head's width is no multiple of 8: its rows are then not aligned to
the 16 bytes that tensor cores want. Fitted to BigScience tr11's runs with heads of 108, 150 and 450 beside those of
112, 128 and 144."""
CAST_BYTES = 4.0
"""Traffic of casting one element to 8 bits for a GEMM and its transpose: read 2, write 1 + 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What one device does with this precision."""

    gemm_flops_per_s: float
    """Dense peak of the GEMM precision (fp8 where training runs in fp8)."""
    dense_flops_per_s: float
    """Dense peak of the 16-bit (or fp32) precision: attention's, and the peak of MFU."""
    gemm_efficiency: float
    """Cap of the GEMM curve."""
    gemm_half_k: float
    """Inner size at which a GEMM reaches half its cap: scales with the peak, since filling the pipeline takes a
    time."""
    attention_efficiency: float
    """Share of the 16-bit peak that fused attention reaches."""
    memory_bytes_per_s: float
    """Bandwidth that element-wise operators reach."""
    launch_s: float
    """Host time of one kernel launch."""
    element_bytes: float
    """Bytes of an activation."""
    gradient_bytes: float
    """Bytes of an accumulated gradient."""
    casts: bool
    """GEMM inputs are cast to 8 bits or fewer."""
    is_frozen: bool = False
    """Weights are not trained: their gradients are not computed."""


def dense_peak(device: DeviceSpec, precision: str) -> float:
    """Dense peak of the precision that attention and MFU use [FLOP/s]; fp8 training counts against the 16-bit peak.

    A device without the asked 16-bit precision runs the other (V100: fp16 only). NaN where nothing fits: unknown.
    """
    peaks = device.peak_flops_per_s
    order = ("fp32",) if precision == "fp32" else ("fp16", "bf16") if precision == "fp16" else ("bf16", "fp16")
    return next((peaks[key] for key in order if key in peaks), peaks.get("fp32", float("nan")))


def device_rates(
    device: DeviceSpec, training: Training, gemm_frac: float = 1.0, attention_frac: float = 1.0
) -> DeviceRates:
    """Rates of one device under one precision. Low precisions speed up GEMMs only.

    gemm_frac, attention_frac: speed of the framework's GEMMs and fused attention against the best on the device.
    """
    dense = dense_peak(device, training.precision)
    key = FP8_KEYS.get(training.precision)
    gemm = device.peak_flops_per_s.get(key, dense) if key else dense
    return DeviceRates(
        gemm_flops_per_s=gemm,
        dense_flops_per_s=dense,
        gemm_efficiency=device.gemm_efficiency * gemm_frac,
        gemm_half_k=device.gemm_half_k * gemm / dense,
        attention_efficiency=device.attention_efficiency * attention_frac,
        memory_bytes_per_s=device.memory_bytes_per_s * device.memory_efficiency,
        launch_s=device.launch_s,
        element_bytes=compute_bytes(training),
        gradient_bytes=DTYPE_BYTES[training.gradient_dtype],
        casts=key is not None,
        is_frozen=training.trainable == "lora",
    )


def traffic_s(moved_bytes: Numeric, rates: DeviceRates) -> Numeric:
    """Seconds of an element-wise operator that moves `moved_bytes` [bytes]: bytes / bandwidth."""
    return moved_bytes / rates.memory_bytes_per_s


def gemm_s(
    rows: Numeric,
    inner: Numeric,
    outer: Numeric,
    rates: DeviceRates,
    *,
    weights: Numeric = 1.0,
    output_bytes: float = 0.0,
) -> Numeric:
    """Seconds of (rows × inner) · (inner × outer) products; `weights` matrices of that size share the rows.

    max(2·rows·inner·outer / (peak · cap · inner / (inner + K0)), bytes / bandwidth): roofline with the efficiency curve
    of facts "GEMM efficiency = cap · K / (K + K0)". output_bytes: bytes per output element where not an activation's.
    Left out: tile and wave quantisation.
    """
    efficiency = rates.gemm_efficiency * inner / (inner + rates.gemm_half_k)
    work = 2.0 * rows * inner * outer / (rates.gemm_flops_per_s * efficiency)
    operands = rates.element_bytes * (rows * inner + weights * inner * outer)
    moved = operands + (output_bytes or rates.element_bytes) * rows * outer
    return np.maximum(work, traffic_s(moved, rates))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSeconds:
    """One weight matrix: forward, and the two products of backward [s]."""

    forward_s: Numeric
    """Y = X · W."""
    input_gradient_s: Numeric
    """dX = dY · Wᵀ."""
    weight_gradient_s: Numeric
    """dW = Xᵀ · dY, added to the accumulated gradient."""

    @property
    def backward_s(self) -> Numeric:
        """Both gradients."""
        return self.input_gradient_s + self.weight_gradient_s


def linear_s(
    tokens: Numeric, inner: Numeric, outer: Numeric, rates: DeviceRates, *, weights: Numeric = 1.0
) -> LinearSeconds:
    """Forward and backward of a linear layer over `tokens` rows; the inner sizes are K, N and the tokens.

    With `weights` matrices (grouped experts) the tokens are spread evenly over them. Casting to 8 bits moves CAST_BYTES
    per input element in each pass.
    """
    cast_forward = traffic_s(CAST_BYTES * tokens * inner, rates) if rates.casts else 0.0
    cast_backward = traffic_s(CAST_BYTES * tokens * outer, rates) if rates.casts else 0.0
    each = tokens / weights
    accumulate = traffic_s(2 * rates.gradient_bytes * weights * inner * outer, rates)
    gradient = gemm_s(inner, each, outer, rates, output_bytes=rates.element_bytes) * weights
    weight_gradient = 0.0 * tokens if rates.is_frozen else np.maximum(gradient, accumulate)
    return LinearSeconds(
        forward_s=gemm_s(tokens, inner, outer, rates, weights=weights) + cast_forward,
        input_gradient_s=gemm_s(tokens, outer, inner, rates, weights=weights) + cast_backward,
        weight_gradient_s=weight_gradient,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSeconds:
    """Core attention of one layer [s]."""

    forward_s: Numeric
    """Scores, softmax, weighted values."""
    backward_s: Numeric
    """Their gradients."""


def flash_attention_s(
    tokens: Numeric, seq_len: float, heads: Numeric, query_dim: int, value_dim: int, rates: DeviceRates
) -> AttentionSeconds:
    """Fused causal attention of `tokens` rows against seq_len keys: half of 2·t·s·a·(d_qk + d_v) FLOPs, backward
    FLASH_BACKWARD_WORK times that at FLASH_BACKWARD_SPEED. Source: arXiv:2307.08691 §4.1."""
    flops = tokens * seq_len * heads * (query_dim + value_dim)
    forward = flops / (rates.dense_flops_per_s * rates.attention_efficiency)
    return AttentionSeconds(forward_s=forward, backward_s=forward * FLASH_BACKWARD_WORK / FLASH_BACKWARD_SPEED)


def naive_attention_s(
    tokens: Numeric,
    seq_len: float,
    heads: Numeric,
    query_dim: int,
    value_dim: int,
    rates: DeviceRates,
    dropout: bool,
    traffic_frac: float = 1.0,
) -> AttentionSeconds:
    """Scores written to memory: two batched products over all s² scores (nothing is skipped), a fused
    scale-mask-softmax and, with dropout, another pass.

    Per score and element size e: forward softmax reads and writes 2e, dropout 2e + 1 (mask); backward softmax 3e,
    dropout 2e + 1, and twice the products. Products: the larger of FLOPs at attention's efficiency and their traffic.
    Heads whose width is no multiple of 8 slow the products down.
    """
    scores = tokens * seq_len * heads
    element = rates.element_bytes
    flops = 2.0 * scores * (query_dim + value_dim)
    slow = 1.0 if query_dim % 8 == 0 and value_dim % 8 == 0 else UNALIGNED_HEADS
    work = slow * flops / (rates.dense_flops_per_s * rates.attention_efficiency)
    products = np.maximum(work, traffic_s(2 * element * scores, rates))
    dropped = 2 * element + 1 if dropout else 0.0
    return AttentionSeconds(
        forward_s=products + traffic_s(traffic_frac * (2 * element + dropped) * scores, rates),
        backward_s=2 * products + traffic_s(traffic_frac * (3 * element + dropped) * scores, rates),
    )


def smooth_maximum(left: Numeric, right: Numeric) -> Numeric:
    """(l⁴ + r⁴)^¼: the larger of device and host time, a fifth more where they are equal, since neither hides the other
    fully. By products and roots only, so that an array's row equals the scalar's result bit for bit."""
    l2, r2 = left * left, right * right
    return np.sqrt(np.sqrt(l2 * l2 + r2 * r2))
