"""Seconds of the optimizer update and of adding up gradients: bound by memory."""

from __future__ import annotations

import numpy as np

from tpdpdash.cost.arrays import Floats
from tpdpdash.cost.case import Case
from tpdpdash.cost.memory import StageParameters, shard_sizes
from tpdpdash.cost.operators import traffic_s
from tpdpdash.cost.states import sharded, state_bytes

HOST_LINK_BYTES_PER_S = 25e9
"""PCIe 4 x16 as copies reach it: offloaded optimizer states read gradients from, and return weights to, the device."""
HOST_MEMORY_BYTES_PER_S = 25e9
"""One device's share of its host's memory bandwidth (200 GB/s for eight): assumed, two sockets with eight channels of
DDR4 or DDR5 reach 200-400. The update on the host is bound by it."""
NEWTON_SCHULZ_STEPS = 5
"""Muon orthogonalises each matrix in five steps: Jordan 2024, https://kellerjordan.github.io/posts/muon."""


def optimizer_s(case: Case, held: StageParameters) -> Floats:
    """Optimizer update of each stage (n, stages), memory-bound.

    On a rank's own share (1 / shard size from ZeRO-1): gradients read for the norm and for the update, states read and
    written, weights written; fp16 unscales and checks the gradients besides. The whole gradient buffer is zeroed. With
    states in host memory gradients and weights cross the host link, and the update is bound by the host's memory.
    Muon's products come on top.
    """
    training, habits, columns, rates = case.training, case.habits, case.columns, case.rates
    each = state_bytes(training, habits)
    dense_size, expert_size = (size[:, None] for size in shard_sizes(columns))
    zero = columns.zero_stage[:, None] >= 1
    unscale = 2 * each.gradients if training.precision == "fp16" else 0.0
    per_parameter = (
        2 * each.gradients + 2 * each.optimizer + (2 if habits.holds_fp32_weights else 1) * each.weights + unscale
    )
    dense, experts = held.trained
    own_dense, own_experts = sharded(1.0, dense, zero, dense_size), sharded(1.0, experts, zero, expert_size)
    own = own_dense + own_experts
    zeroed = each.gradients * own if habits.holds_fp32_weights else each.gradients * (dense + experts)
    on_device = traffic_s(per_parameter * own + zeroed, rates)
    crossing = (each.gradients + each.weights) * own / HOST_LINK_BYTES_PER_S
    on_host = crossing + per_parameter * own / HOST_MEMORY_BYTES_PER_S
    update = np.where(columns.offload_optimizer[:, None], on_host, on_device)
    if training.optimizer == "muon":
        matrices = sharded(1.0, dense - held.trained_ends, zero, dense_size)
        update = update + _muon_s(case, np.asarray(matrices), np.asarray(own_experts))
    return np.asarray(update)


def _muon_s(case: Case, dense: Floats, experts: Floats) -> Floats:
    """Newton-Schulz products of a rank's own matrices (n, stages): a step on an n × m matrix, n ≤ m, takes three
    products, 4 n² m + 2 n³ FLOPs, which is at most 6 n a parameter. Left out: gathering what TP divides."""
    model, rates = case.model, case.rates
    widths = (float(model.hidden_size), float(min(model.hidden_size, model.moe_ffn_hidden_size or model.hidden_size)))
    flops = NEWTON_SCHULZ_STEPS * 6.0 * (widths[0] * dense + widths[1] * experts)
    return np.asarray(flops / (rates.dense_flops_per_s * rates.gemm_efficiency))


def accumulation_s(case: Case, held: StageParameters) -> Floats:
    """Adding 16-bit gradients to fp32 ones after each microbatch (n, stages): 2 + 4 + 4 bytes a parameter; 0 where a
    framework accumulates within the weight gradient's GEMM."""
    if not (case.habits.keeps_16bit_gradients and case.training.gradient_dtype == "fp32"):
        return np.zeros_like(held.dense)
    return np.asarray(traffic_s(10.0 * np.add(*held.trained), case.rates))
