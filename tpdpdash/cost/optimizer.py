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


def optimizer_s(case: Case, held: StageParameters) -> Floats:
    """Optimizer update of each stage (n, stages), memory-bound.

    On a rank's own share (1 / shard size from ZeRO-1): gradients read for the norm and for the update, states read and
    written, weights written; fp16 unscales and checks the gradients besides. The whole gradient buffer is zeroed. With
    states in host memory gradients and weights cross the host link.
    """
    training, habits, columns, rates = case.training, case.habits, case.columns, case.rates
    each = state_bytes(training, habits)
    dense_size, expert_size = (size[:, None] for size in shard_sizes(columns))
    zero = columns.zero_stage[:, None] >= 1
    unscale = 2 * each.gradients if training.precision == "fp16" else 0.0
    per_parameter = (
        2 * each.gradients + 2 * each.optimizer + (2 if habits.holds_fp32_weights else 1) * each.weights + unscale
    )
    own = sharded(1.0, held.dense, zero, dense_size) + sharded(1.0, held.experts, zero, expert_size)
    zeroed = each.gradients * own if habits.holds_fp32_weights else each.gradients * (held.dense + held.experts)
    on_device = traffic_s(per_parameter * own + zeroed, rates)
    over_host = (each.gradients + each.weights) * own / HOST_LINK_BYTES_PER_S
    return np.asarray(np.where(columns.offload_optimizer[:, None], over_host, on_device))


def accumulation_s(case: Case, held: StageParameters) -> Floats:
    """Adding 16-bit gradients to fp32 ones after each microbatch (n, stages): 2 + 4 + 4 bytes a parameter; 0 where a
    framework accumulates within the weight gradient's GEMM."""
    if not (case.habits.keeps_16bit_gradients and case.training.gradient_dtype == "fp32"):
        return np.zeros_like(held.dense)
    return np.asarray(traffic_s(10.0 * (held.dense + held.experts), case.rates))
