"""From a step time to what people ask for: tokens a second, MFU and HFU, days, energy and money."""

from __future__ import annotations

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.arrays import Flags, Floats
from tpdpdash.cost.figures import Budget, Throughput
from tpdpdash.cost.goodput import goodput_frac
from tpdpdash.cost.operators import dense_peak
from tpdpdash.elementwise import choose
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.model.counts import TRAINING_FLOPS_PER_FORWARD_FLOP, forward_flops_per_token
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training
from tpdpdash.units import DAY_S, HOUR_S, JOULES_PER_KWH


def throughput(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: Training,
    columns: LayoutColumns,
    step_s: Floats,
    recomputed_frac: Floats,
    attention_only: Flags,
) -> Throughput[Floats]:
    """Speed from step times. With LoRA the weights' gradients are no work: two forward passes of the products count,
    the adapters' own are left out.

    recomputed_frac: share of the layers' forward pass that is computed again; attention_only: rows where only core
    attention is (selective recompute as Korthikanti 2022 means it).
    """
    tokens_per_s = training.tokens_per_step / step_s
    devices = columns.world_size
    forward = forward_flops_per_token(model, training.attended_len, causal=True)
    frozen = forward.gemm + forward.head if training.trainable == "lora" else 0.0
    per_token = TRAINING_FLOPS_PER_FORWARD_FLOP * forward.total - frozen
    again = recomputed_frac * choose(attention_only, forward.attention, forward.gemm + forward.attention)
    peak = dense_peak(cluster.device, training.precision)
    each = tokens_per_s / devices
    return Throughput(
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=each,
        model_flops_per_s_per_device=each * per_token,
        mfu=each * per_token / peak,
        hfu=each * (per_token + again) / peak,
    )


def budget(cluster: ClusterSpec, training: Training, columns: LayoutColumns, step_s: Floats) -> Budget[Floats]:
    """Days, device-hours, energy and cost of training.tokens with what checkpoints and failures take, at full power;
    all but goodput NaN without tokens, cost NaN without a price."""
    tokens = float("nan") if training.tokens is None else training.tokens
    price = float("nan") if cluster.price_per_device_hour is None else cluster.price_per_device_hour
    goodput = goodput_frac(cluster, training, columns.world_size, step_s)
    with np.errstate(divide="ignore"):  # without any goodput it never ends
        seconds = tokens / training.tokens_per_step * step_s / goodput
    device_hours = seconds / HOUR_S * columns.world_size
    return Budget(
        days=seconds / DAY_S,
        device_hours=device_hours,
        energy_kwh=device_hours * HOUR_S * cluster.device.power_w / JOULES_PER_KWH,
        cost=device_hours * price,
        goodput_frac=goodput,
    )
