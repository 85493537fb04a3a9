"""Seconds of the optimizer update and of adding up gradients: bound by memory."""

from __future__ import annotations

import numpy as np

from tpdpdash.cost.arrays import Floats, column, floats
from tpdpdash.cost.case import Case
from tpdpdash.cost.operators import traffic_s
from tpdpdash.cost.stage_parameters import StageParameters, shard_sizes
from tpdpdash.cost.states import sharded, state_bytes
from tpdpdash.elementwise import choose, larger

HOST_MEMORY_BYTES_PER_S = 25e9
"""One device's share of its host's memory bandwidth (200 GB/s for eight): assumed, two sockets with eight channels of
DDR4 or DDR5 reach 200-400. The update on the host is bound by it."""
NEWTON_SCHULZ_STEPS = 5
"""Muon orthogonalises each matrix in five steps: Jordan 2024, https://kellerjordan.github.io/posts/muon."""


COUNTED_UPDATE_BYTES = {"adamw": 96.0, "sgd": 12.0}
"""Read and written per parameter by worker.update in fp32, operator by operator: AdamW's first moment 8 + 12, second
8 + 8 + 12, denominator 8 + 8 + 8, decay 8, update 16; SGD's one addition. Flat buffers stream at the memory's own
bandwidth."""


def optimizer_s(case: Case, held: StageParameters) -> Floats:
    """Optimizer update of each stage (n, stages), memory-bound.

    On a rank's own share (1 / shard size from ZeRO-1): gradients read for the norm and for the update, states read and
    written, weights written; fp16 unscales and checks the gradients besides. The whole gradient buffer is zeroed. For
    the states in host memory gradients and weights cross the host link, and the update is bound by the host's memory;
    the device updates the rest meanwhile. Muon's products come on top.
    """
    training, habits, columns, rates = case.training, case.habits, case.columns, case.rates
    each = state_bytes(training, habits)
    dense_size, expert_size = (column(size) for size in shard_sizes(columns))
    zero = column(columns.zero_stage) >= 1
    unscale = 2 * each.gradients if training.precision == "fp16" else 0.0
    per_parameter = (
        2 * each.gradients + 2 * each.optimizer + (2 if habits.holds_fp32_weights else 1) * each.weights + unscale
    )
    dense, experts = held.trained
    own_dense, own_experts = sharded(1.0, dense, zero, dense_size), sharded(1.0, experts, zero, expert_size)
    own = own_dense + own_experts
    zeroed = each.gradients * own if habits.holds_fp32_weights else each.gradients * (dense + experts)
    on_device = traffic_s(per_parameter * own + zeroed, rates)
    if habits.counts_operators:
        streamed = COUNTED_UPDATE_BYTES[training.optimizer] * own + each.gradients * (dense + experts)
        on_device = streamed / case.cluster.device.memory_bytes_per_s
    crossing = (each.gradients + each.weights) * own / case.cluster.device.host_bytes_per_s
    on_host = crossing + per_parameter * own / HOST_MEMORY_BYTES_PER_S
    moved = training.optimizer_offload_fraction
    update = choose(column(columns.offload_optimizer), larger(moved * on_host, (1 - moved) * on_device), on_device)
    if training.optimizer == "muon":
        matrices = sharded(1.0, dense - held.trained_ends, zero, dense_size)
        update = update + _muon_s(case, floats(matrices), floats(own_experts))
    return floats(update)


def _muon_s(case: Case, dense: Floats, experts: Floats) -> Floats:
    """Newton-Schulz products of a rank's own matrices (n, stages): a step on an n × m matrix, n ≤ m, takes three
    products, 4 n² m + 2 n³ FLOPs, which is at most 6 n a parameter. Left out: gathering what TP divides."""
    model, rates = case.model, case.rates
    widths = (float(model.hidden_size), float(min(model.hidden_size, model.moe_ffn_hidden_size or model.hidden_size)))
    flops = NEWTON_SCHULZ_STEPS * 6.0 * (widths[0] * dense + widths[1] * experts)
    return floats(flops / (rates.dense_flops_per_s * rates.gemm_efficiency))


def accumulation_s(case: Case, held: StageParameters) -> Floats:
    """Adding 16-bit gradients to fp32 ones after each microbatch (n, stages); 0 where the weight gradient's GEMM does
    so."""
    apart = case.habits.accumulates_apart or not case.training.fused_accumulation
    if not (apart and case.training.gradient_dtype == "fp32"):
        return np.zeros_like(held.dense)
    return floats(traffic_s(case.habits.accumulation_bytes * np.add(*held.trained), case.rates))
