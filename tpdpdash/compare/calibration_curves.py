"""How fast products and attention run by their size: curves fitted to samples, by the formulas that use them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpdpdash.cost.operators import FLASH_BACKWARD_SPEED, FLASH_BACKWARD_WORK, flash_attention_flops, gemm_share
from tpdpdash.telemetry.measurements import Measurement

HALF_K = (0.0, *np.geomspace(1, 4096, 49))
"""Values of K0 that are tried."""
HALF_AREA = (0.0, *np.geomspace(16, 4 << 20, 57))
"""Values of A0 that are tried."""
LEAST_SECONDS = 1e-9
"""A shorter time is none that was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCurve:
    """cost.operators.gemm_share, of `peak`."""

    peak_flops_per_s: float
    """Fastest product that was measured."""
    cap: float
    """Efficiency of a large product."""
    half_k: float
    """K0."""
    half_area: float
    """A0."""

    def seconds(self, rows: float, inner: float, outer: float) -> float:
        """Of one product."""
        share = gemm_share(inner, rows * outer, cap=self.cap, half_k=self.half_k, half_area=self.half_area)
        return float(2.0 * rows * inner * outer / (self.peak_flops_per_s * share))


def fitted_gemm(products: Sequence[Measurement]) -> GemmCurve:
    """The curve nearest to measured products: K0 and A0 by trying, the cap as the median of what remains."""
    rows, inner, outer = np.array([each.sizes for each in products], np.float64).T
    rates = 2.0 * rows * inner * outer / np.array([max(each.seconds, LEAST_SECONDS) for each in products])
    peak, best = float(rates.max()), (math.inf, 1.0, 0.0, 0.0)
    reached = np.log(rates / peak)
    for half_k in HALF_K:
        for half_area in HALF_AREA:
            left = reached - np.log(gemm_share(inner, rows * outer, cap=1.0, half_k=half_k, half_area=half_area))
            cap = min(1.0, math.exp(float(np.median(left))))
            misfit = float(np.abs(left - math.log(cap)).mean())
            if misfit < best[0]:
                best = (misfit, cap, float(half_k), float(half_area))
    return GemmCurve(peak_flops_per_s=peak, cap=best[1], half_k=best[2], half_area=best[3])


def attention_flops(sizes: tuple[int, ...], *, backward: bool) -> float:
    """FLOPs of fused causal attention; backward's as many as forward would do in its time."""
    tokens, heads, width = sizes
    work = float(flash_attention_flops(tokens, tokens, heads, width, width))
    return work * (FLASH_BACKWARD_WORK / FLASH_BACKWARD_SPEED if backward else 1.0)


def fitted_attention(attention: Sequence[Measurement], peak_flops_per_s: float) -> float:
    """Share of the peak that attention reaches: geometric mean over sizes and passes."""
    shares = [
        attention_flops(each.sizes, backward=each.what.endswith("backward"))
        / (max(each.seconds, LEAST_SECONDS) * peak_flops_per_s)
        for each in attention
    ]
    return float(np.clip(np.exp(np.mean(np.log(shares))), 0.01, 1.0))


def median_misfit(pairs: Sequence[tuple[float, float]]) -> float:
    """Median |fitted / measured − 1|."""
    return float(np.median([abs(fitted / measured - 1) for fitted, measured in pairs])) if pairs else math.nan
