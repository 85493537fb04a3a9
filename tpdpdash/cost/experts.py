"""A mixture of experts' part of one layer on one rank: router, grouped GEMMs, shared experts, permutation, activation.

What a rank's experts do follows from the copies of tokens that reach it, and a layer waits for the rank that more
copies reach than any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.linears import Linears, mlp_linears
from tpdpdash.cost.operators import (
    ACTIVATION_PASSES,
    CAST_BYTES,
    DeviceRates,
    LinearSeconds,
    gemm_s,
    linear_s,
    traffic_s,
)
from tpdpdash.elementwise import larger, rounded, smaller
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

if TYPE_CHECKING:
    from tpdpdash.units import Numeric

TILE_ROWS = 128
"""Rows of a GEMM's output tile (wgmma and tcgen05 tiles are 128 rows high): an expert's last tile is half empty."""
PERMUTED_PASSES = {True: 4, False: 8}
"""Reads and writes of each copy by permutation and its inverse. A plain all-to-all sorts copies before it and again
after it, both ways: 8. DeepEP and HybridEP send each token from where it lies and sort the copies that arrive: 4."""
BIASED_OUTPUT_BYTES = (28.0, 34.0)
"""Forward and backward traffic of adding the second bias, an element of its output: Megatron-Core's
TEGroupedMLP._apply_bias takes b · p in fp32 (4), adds (2 + 4 + 4), concatenates (4 + 4) and casts (4 + 2)."""
BIASED_INNER_BYTES = (44.0, 86.0)
"""The same of the activation behind the first bias, an element of its output: TEGroupedMLP.bias_act_func without a
fused kernel clamps both halves (8), x · sigmoid(1.702 x) (14), adds the offset (4), multiplies both (6), by the
router's weight in fp32 (6) and casts (6); backward about twice that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """What reaches the busiest rank's experts from one microbatch."""

    copies: Numeric
    """Copies of tokens."""
    experts: Numeric
    """Experts on the rank."""
    inner: Numeric
    """Width of an expert on the rank: f / etp."""


def busiest_rank(num_experts: int, ep: Numeric, cv: float) -> Numeric:
    """Copies on the busiest of ep ranks over the mean: 1 + cv · √(2 ln ep · ep / E), at most all on one rank.

    cv: standard deviation over mean of the tokens of an expert. The mean of E / ep experts spreads by cv · √(ep / E);
    the largest of n such normal draws lies √(2 ln n) deviations above the mean. Spreads that are measured: maximum
    violations of 0.04 to 0.7 of the mean over 64 experts, a cv of 0.02 to 0.25 (arXiv:2408.15664).
    """
    deviations = np.sqrt(2 * rounded(np.log(ep), 9) * ep / num_experts)
    return smaller(1 + cv * deviations, ep)


def routed_of(
    model: ModelSpec, training: Training, *, tokens: Numeric, tp: Numeric, ep: Numeric, etp: Numeric
) -> Routed:
    """A rank's experts see tokens · top-k · etp / tp copies, more on the busiest rank."""
    mean = tokens * model.num_experts_per_token * etp / tp
    return Routed(
        copies=mean * busiest_rank(model.num_experts, ep, training.expert_load_cv),
        experts=model.num_experts / ep,
        inner=model.moe_ffn_hidden_size / etp,
    )


def grouped_linear_s(
    copies: Numeric, experts: Numeric, inner: Numeric, outer: Numeric, rates: DeviceRates, speed: float
) -> LinearSeconds:
    """Forward and backward of `experts` matrices over `copies` rows, spread evenly over them.

    Every expert's rows fill tiles of TILE_ROWS, the last one half. One expert's product is a plain GEMM; with more of
    them the speed falls towards `speed` of it: 1 expert 1, n experts speed + (1 − speed) / n. The weight gradient's
    inner size is that of the rank, not of an expert: one kernel runs through all experts and fills its pipeline once.
    """
    rows = copies + 0.5 * TILE_ROWS * experts
    cast_forward = traffic_s(CAST_BYTES * copies * inner, rates) if rates.casts else 0.0
    cast_backward = traffic_s(CAST_BYTES * copies * outer, rates) if rates.casts else 0.0
    slower = 1 / (speed + (1 - speed) / experts)
    accumulate = traffic_s(2 * rates.gradient_bytes * experts * inner * outer, rates)
    gradient = slower * gemm_s(inner, rows, outer, rates, together=experts)
    return LinearSeconds(
        forward_s=slower * gemm_s(rows, inner, outer, rates, weights=experts) + cast_forward,
        input_gradient_s=slower * gemm_s(rows, outer, inner, rates, weights=experts) + cast_backward,
        weight_gradient_s=0.0 * copies if rates.is_frozen else larger(gradient, accumulate),
    )


def expert_linears(
    model: ModelSpec, habits: FrameworkHabits, rates: DeviceRates, routed: Routed, tokens: Numeric, tp: Numeric
) -> Linears:
    """Router on the rank's own tokens, routed experts as grouped GEMMs, shared experts as a dense MLP."""
    h, gates = model.hidden_size, 2 if model.gated_mlp else 1
    speed = habits.grouped_gemm_frac
    router = linear_s(tokens / tp, h, model.num_experts, rates)
    up = grouped_linear_s(routed.copies, routed.experts, h, gates * routed.inner, rates, speed)
    down = grouped_linear_s(routed.copies, routed.experts, routed.inner, h, rates, speed)
    whole = [router, up, down]
    if not model.shared_expert_ffn_hidden_size:
        return Linears(column=[], row=[], whole=whole)
    shared = mlp_linears(model, rates, tokens, model.shared_expert_ffn_hidden_size, tp)
    return Linears(column=shared.column, row=shared.row, whole=whole)


def expert_traffic_s(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    rates: DeviceRates,
    routed: Routed,
    tokens: Numeric,
    tp: Numeric,
) -> tuple[Numeric, Numeric, Numeric]:
    """(permutation both ways of one pass, activation forward, activation backward) in seconds.

    The activation is that of a dense MLP over the copies and the shared experts' tokens, with biases besides where the
    framework adds them one operator after the other; a step that is captured whole has kernels that fuse them. A
    compiler fuses the activation's operators; permutation is a kernel of its own with and without.
    """
    e, h = rates.element_bytes, model.hidden_size
    permuted = PERMUTED_PASSES[habits.dispatches_once(training)] * e * h * routed.copies
    elements = routed.copies * routed.inner + tokens * model.shared_expert_ffn_hidden_size / tp
    forward, backward = ACTIVATION_PASSES[model.gated_mlp]
    fused = habits.element_wise_frac(training.compiled)
    unfused = model.mlp_bias and habits.eager_expert_biases and training.cuda_graphs != "step"
    biases = [
        routed.copies * (h * outside + routed.inner * inside) if unfused else 0.0
        for outside, inside in zip(BIASED_OUTPUT_BYTES, BIASED_INNER_BYTES, strict=True)
    ]
    return (
        traffic_s(habits.traffic_frac * permuted, rates),
        traffic_s(fused * forward * e * elements + biases[0], rates),
        traffic_s(fused * backward * e * elements + biases[1], rates),
    )
