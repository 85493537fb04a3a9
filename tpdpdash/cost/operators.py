"""Seconds of single operators on one device: GEMM, attention, element-wise. Roofline with efficiencies of the
catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cluster.spec import DeviceSpec
from tpdpdash.cost.states import DTYPE_BYTES, compute_bytes
from tpdpdash.elementwise import larger
from tpdpdash.training import Training

if TYPE_CHECKING:
    from tpdpdash.units import Numeric

FP8_KEYS = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""Which peak a low precision uses."""
FLASH_BACKWARD_WORK = 2.5
"""Flash attention's backward does five products for the forward's two: arXiv:2205.14135 §3, 2307.08691 §4."""
FLASH_BACKWARD_SPEED = 0.85
"""Backward reaches less of the peak than forward: arXiv:2307.08691 figures 5 and 6 (A100: 0.62 against 0.72)."""
UNALIGNED_HEADS = 10.0
"""Slow-down of naive attention's products where a head's rows are not aligned to the 16 bytes that tensor cores want.
Assumed: chosen by hand on BigScience tr11's runs with heads of 108, 150 and 450 beside those of 112, 128 and 144, most
of all on those in a single node, whose launches did not wait."""
ALIGNMENT_BYTES = 16.0
UNALIGNED_ROWS = {"hopper": 4.0, "blackwell": 4.0}
UNALIGNED_ROWS_ELSEWHERE = 2.0
"""Slow-down of a product one of whose operands has rows that are not aligned: libraries fall back on kernels of
Turing's instructions that load element by element (cutlass_75_tensorop_…_align1,
https://github.com/pytorch/pytorch/issues/181718 and 146817): half of Ampere's rate, a quarter of that of Hopper's warp
groups, whose loads (TMA) need the alignment. Assumed; nanotron's old benchmark of a vocabulary of 50,257 on H100 asks
for more."""
BLOCKING_LAUNCH = 2.0
"""Host time of a launch under CUDA_LAUNCH_BLOCKING=1 against one that is not waited for: the way back, some 5 µs, is as
long as the way there. Assumed."""
DETERMINISTIC_BACKWARD_SPEED = 0.63
"""Deterministic flash attention's backward adds up queries' gradients in a fixed order: 361 of 575 TFLOP/s on H100,
https://github.com/Dao-AILab/flash-attention/pull/1893."""
NOT_DETERMINISTIC = "blackwell"
"""The architecture whose own attention kernels have no deterministic backward before cuDNN 9.18: others take over,
https://github.com/NVIDIA/TransformerEngine/pull/2130."""
RECIPE_SPEED = {"tensorwise": 1.0, "delayed": 1.0, "rowwise": 0.6, "blockwise": 0.8}
"""Speed of fp8 GEMMs by recipe against one scale a tensor. Rowwise: assumed, torchtitan's published runs gain nothing
over bf16 with it; blockwise: DeepGEMM's 1,550 of 1,979 TFLOP/s, https://github.com/deepseek-ai/DeepGEMM."""
ACTIVATION_PASSES = {True: (3, 5), False: (2, 3)}
"""Elements that an MLP's activation reads and writes, forward and backward, an inner element, by whether it has a gate:
both inputs and the product, backward its gradient, both inputs and theirs; without one the input and the output."""
FP8_ATTENTION_SPEED = 1200 / 740
"""Fused attention with products in 8 bits against 16: FlashAttention-3 forward on H100, arXiv:2407.08608 §4. Assumed of
its backward, and of other devices that have 8-bit products."""
CAST_BYTES = 4.0
"""Traffic of casting one element to 8 bits for a GEMM and its transpose: read 2, write 1 + 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What one device does with this precision."""

    gemm_flops_per_s: float
    """Dense peak of the GEMM precision (fp8 where training runs in fp8)."""
    dense_flops_per_s: float
    """Dense peak of the 16-bit precision, or of fp32 as its products run: attention's."""
    gemm_efficiency: float
    """Cap of the GEMM curve."""
    gemm_half_k: float
    """Inner size at which a GEMM reaches half its cap: scales with the peak, since filling the pipeline takes a
    time."""
    gemm_half_area: float
    """Elements of the output at which a GEMM reaches half of that: half a wave of tiles."""
    attention_efficiency: float
    """Share of the 16-bit peak that attention reaches."""
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
    flash_backward_speed: float = FLASH_BACKWARD_SPEED
    """Speed of flash attention's backward against its forward."""
    unaligned_slowdown: float = 1.0
    """Time of products with unaligned rows against aligned ones."""
    is_cpu: bool = False
    """The device is the host itself."""
    waits_for_launches: bool = False
    """Host and device work in turn, neither hides the other: on a CPU, or where every launch waits."""
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
    device: DeviceSpec,
    training: Training,
    gemm_frac: float = 1.0,
    attention_frac: float = 1.0,
    native_attention: bool = True,
    tf32: bool = True,
) -> DeviceRates:
    """Rates of one device under one precision. Low precisions speed up GEMMs only, and attention where asked.

    gemm_frac, attention_frac: speed of the framework's GEMMs and attention against what the device's figures say.
    native_attention: the framework's fused attention is written for the device. tf32: fp32 products run in TF32.
    """
    dense = dense_peak(device, training.precision)
    if training.precision == "fp32" and not tf32:
        dense = device.peak_flops_per_s.get("fp32_simt", dense)
    key = FP8_KEYS.get(training.precision)
    gemm = device.peak_flops_per_s.get(key, dense) if key else dense
    if training.precision == "fp8":
        gemm_frac = gemm_frac * RECIPE_SPEED[training.fp8_recipe]
    fused = native_attention and not (training.deterministic and device.architecture == NOT_DETERMINISTIC)
    native = fused or training.attention == "naive"
    attention = device.attention_efficiency if native else device.portable_attention_efficiency
    if training.fp8_attention and training.attention == "flash" and key and "fp8" in device.peak_flops_per_s:
        attention *= FP8_ATTENTION_SPEED
    return DeviceRates(
        gemm_flops_per_s=gemm,
        dense_flops_per_s=dense,
        gemm_efficiency=device.gemm_efficiency * gemm_frac,
        gemm_half_k=device.gemm_half_k * gemm / dense,
        gemm_half_area=device.gemm_half_area,
        attention_efficiency=attention * attention_frac,
        memory_bytes_per_s=device.memory_bytes_per_s * device.memory_efficiency,
        launch_s=device.launch_s * (BLOCKING_LAUNCH if training.launch_blocking else 1.0),
        element_bytes=compute_bytes(training),
        gradient_bytes=DTYPE_BYTES[training.gradient_dtype],
        casts=key is not None,
        flash_backward_speed=FLASH_BACKWARD_SPEED * (DETERMINISTIC_BACKWARD_SPEED if training.deterministic else 1.0),
        unaligned_slowdown=_unaligned_slowdown(device),
        is_cpu=device.is_cpu,
        waits_for_launches=device.is_cpu or training.launch_blocking,
        is_frozen=training.trainable == "lora",
    )


def _unaligned_slowdown(device: DeviceSpec) -> float:
    """Of products on this device; a CPU's vector units load from anywhere."""
    return 1.0 if device.is_cpu else UNALIGNED_ROWS.get(device.architecture, UNALIGNED_ROWS_ELSEWHERE)


def traffic_s(moved_bytes: Numeric, rates: DeviceRates) -> Numeric:
    """Seconds of an element-wise operator that moves `moved_bytes` [bytes]: bytes / bandwidth."""
    return moved_bytes / rates.memory_bytes_per_s


def gemm_share(inner: Numeric, area: Numeric, *, cap: Numeric, half_k: Numeric, half_area: Numeric) -> Numeric:
    """Share of the peak that products reach: cap · inner / (inner + K0) · area / (area + A0).

    K0: filling and draining a tile's pipeline. area = output elements of a launch, A0 = half a wave of tiles: the last
    wave is half empty in the mean.
    """
    return cap * inner / (inner + half_k) * area / (area + half_area)


def gemm_s(
    rows: Numeric,
    inner: Numeric,
    outer: Numeric,
    rates: DeviceRates,
    *,
    weights: Numeric = 1.0,
    together: Numeric = 1.0,
) -> Numeric:
    """Seconds of (rows × inner) · (inner × outer) products; `weights` matrices of that size share the rows; `together`
    such products are one launch.

    max(2·rows·inner·outer / (peak · `gemm_share`), bytes / bandwidth): roofline with an efficiency curve.
    Left out: which tile shape divides which size.
    """
    share = gemm_share(inner, together * rows * outer, cap=rates.gemm_efficiency, half_k=rates.gemm_half_k,
                       half_area=rates.gemm_half_area)  # fmt: skip
    work = 2.0 * rows * inner * outer / (rates.gemm_flops_per_s * share)
    operands = rates.element_bytes * (rows * inner + weights * inner * outer)
    moved = operands + rates.element_bytes * rows * outer
    return larger(work, traffic_s(moved, rates))


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


def linear_s(tokens: Numeric, inner: Numeric, outer: Numeric, rates: DeviceRates) -> LinearSeconds:
    """Forward and backward of a linear layer over `tokens` rows; the inner sizes are K, N and the tokens. Casting to 8
    bits moves CAST_BYTES per input element in each pass."""
    cast_forward = traffic_s(CAST_BYTES * tokens * inner, rates) if rates.casts else 0.0
    cast_backward = traffic_s(CAST_BYTES * tokens * outer, rates) if rates.casts else 0.0
    accumulate = traffic_s(2 * rates.gradient_bytes * inner * outer, rates)
    gradient = gemm_s(inner, tokens, outer, rates)
    return LinearSeconds(
        forward_s=gemm_s(tokens, inner, outer, rates) + cast_forward,
        input_gradient_s=gemm_s(tokens, outer, inner, rates) + cast_backward,
        weight_gradient_s=0.0 * tokens if rates.is_frozen else larger(gradient, accumulate),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSeconds:
    """Core attention of one layer [s]."""

    forward_s: Numeric
    """Scores, softmax, weighted values."""
    backward_s: Numeric
    """Their gradients."""


def flash_attention_flops(tokens: Numeric, seq_len: float, heads: Numeric, query_dim: int, value_dim: int) -> Numeric:
    """FLOPs of fused causal attention forward: half of 2·t·s·a·(d_qk + d_v). Source: arXiv:2307.08691 §4.1."""
    return tokens * seq_len * heads * (query_dim + value_dim)


def flash_attention_s(
    tokens: Numeric, seq_len: float, heads: Numeric, query_dim: int, value_dim: int, rates: DeviceRates
) -> AttentionSeconds:
    """Fused causal attention of `tokens` rows against seq_len keys; backward is FLASH_BACKWARD_WORK times the work of
    forward, at a speed of its own."""
    flops = flash_attention_flops(tokens, seq_len, heads, query_dim, value_dim)
    forward = flops / (rates.dense_flops_per_s * rates.attention_efficiency)
    return AttentionSeconds(forward_s=forward, backward_s=forward * FLASH_BACKWARD_WORK / rates.flash_backward_speed)


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
    is_aligned = all(dim * element % ALIGNMENT_BYTES == 0 for dim in (query_dim, value_dim))
    slow = 1.0 if is_aligned else UNALIGNED_HEADS
    work = slow * flops / (rates.dense_flops_per_s * rates.attention_efficiency)
    products = larger(work, traffic_s(2 * element * scores, rates))
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
