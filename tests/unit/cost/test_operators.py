"""Seconds of single operators."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from strategies import device, training_of

from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.operators import (
    dense_peak,
    device_rates,
    flash_attention_s,
    gemm_s,
    linear_s,
    naive_attention_s,
    smooth_maximum,
    traffic_s,
)

RATES = device_rates(device(), training_of())
AREA = 1.5e6
"""The test device's half wave."""
FP8 = device(peak_flops_per_s=MappingProxyType({"bf16": 3e14, "fp8": 6e14}))


def test_a_large_gemm_runs_at_the_cap_of_its_curve():
    work = 2.0 * 8192 * (8192 * 8192 + AREA)
    assert gemm_s(8192, 8192, 8192, RATES) == pytest.approx(work / (3e14 * 0.9 * 8192 / (8192 + 900)))


def test_a_gemm_reaches_half_its_cap_where_the_inner_size_is_k0():
    work = 2.0 * 900 * (65536 * 65536 + AREA)
    assert gemm_s(65536, 900, 65536, RATES) == pytest.approx(work / (3e14 * 0.45))


def test_a_gemm_reaches_half_its_speed_where_its_output_is_half_a_wave_of_tiles():
    half = gemm_s(1500, 8192, 1000, RATES)
    assert half == pytest.approx(2 * 2.0 * 8192 * AREA / (3e14 * 0.9 * 8192 / (8192 + 900)))
    together = gemm_s(1500, 8192, 1000, RATES, together=3.0)
    assert together == pytest.approx(half * (1 + 1 / 3) / 2)


def test_a_thin_gemm_takes_the_time_of_reading_its_weights():
    assert gemm_s(1, 8192, 65536, RATES) == pytest.approx(2 * (8192 * 65536 + 8192 + 65536) / (2e12 * 0.8))


def test_fused_attention_for_older_devices_has_an_efficiency_of_its_own():
    native, portable = (device_rates(device(), training_of(), native_attention=n) for n in (True, False))
    assert (native.attention_efficiency, portable.attention_efficiency) == (0.6, 0.5)
    naive = device_rates(device(), training_of(attention="naive"), native_attention=False)
    assert naive.attention_efficiency == 0.6


@pytest.mark.parametrize(
    ("recipe", "speed"), [("tensorwise", 1.0), ("delayed", 1.0), ("rowwise", 0.6), ("blockwise", 0.8)]
)
def test_fp8_products_are_as_fast_as_their_recipe(recipe, speed):
    assert device_rates(FP8, training_of(precision="fp8", fp8_recipe=recipe)).gemm_efficiency == pytest.approx(
        0.9 * speed
    )


def test_deterministic_attention_runs_slower_backward_and_on_blackwell_by_other_kernels():
    usual, repeatable = (device_rates(device(), training_of(deterministic=d)) for d in (False, True))
    fast, slow = (flash_attention_s(8192, 4096, 16, 128, 128, rates) for rates in (usual, repeatable))
    assert slow.forward_s == fast.forward_s
    assert slow.backward_s == pytest.approx(fast.backward_s / 0.63)
    newer = device_rates(device(architecture="blackwell"), training_of(deterministic=True))
    assert (repeatable.attention_efficiency, newer.attention_efficiency) == (0.6, 0.5)


def test_backward_of_a_linear_layer_takes_about_twice_its_forward():
    found = linear_s(8192, 8192, 8192, RATES)
    assert found.backward_s == pytest.approx(2 * found.forward_s)


def test_low_precision_speeds_up_gemms_but_not_attention():
    half, eighth = (device_rates(FP8, training_of(precision=p)) for p in ("bf16", "fp8"))
    gain = linear_s(8192, 8192, 8192, half).forward_s / linear_s(8192, 8192, 8192, eighth).forward_s
    assert 1.5 < gain < 2
    one, other = (flash_attention_s(8192, 4096, 16, 128, 128, rates) for rates in (half, eighth))
    assert one == other


def test_grouped_experts_pay_for_each_ones_weights():
    few, many = (gemm_s(64, 4096, 4096, RATES, weights=n) for n in (1.0, 64.0))
    assert many == pytest.approx(traffic_s(2 * (64 * 4096 + 64 * 4096 * 4096 + 64 * 4096), RATES))
    assert many > 10 * few


def test_flash_attention_skips_the_masked_half():
    found = flash_attention_s(4096, 4096, 16, 128, 128, RATES)
    assert found.forward_s == pytest.approx(4096 * 4096 * 16 * 256 / (3e14 * 0.6))
    assert found.backward_s > 2.5 * found.forward_s


def test_dropout_makes_another_pass_over_naive_scores():
    without, dropped = (naive_attention_s(2048, 2048, 12, 64, 64, RATES, dropout) for dropout in (False, True))
    scores = 2048 * 2048 * 12
    assert dropped.forward_s - without.forward_s == pytest.approx(traffic_s(5 * scores, RATES))


def test_heads_of_an_odd_width_slow_naive_products_down():
    aligned, odd = (naive_attention_s(2048, 2048, 12, d, d, RATES, dropout=False) for d in (1024, 1023))
    softmax = traffic_s(4 * 2048 * 2048 * 12, RATES)
    assert (odd.forward_s - softmax) / (aligned.forward_s - softmax) == pytest.approx(10 * 1023 / 1024)


@pytest.mark.parametrize(
    ("architecture", "slower"), [("ampere", 2.0), ("cdna", 2.0), ("hopper", 4.0), ("blackwell", 4.0)]
)
def test_unaligned_rows_cost_most_where_loads_need_the_alignment(architecture, slower):
    assert device_rates(device(architecture=architecture), training_of()).unaligned_slowdown == slower


def test_a_cpu_loads_unaligned_rows_as_fast_as_others():
    assert device_rates(device(is_cpu=True), training_of()).unaligned_slowdown == 1.0


def test_launches_that_wait_take_the_way_back_too():
    usual, waiting = (device_rates(device(), training_of(launch_blocking=waits)) for waits in (False, True))
    assert waiting.launch_s == 2 * usual.launch_s
    assert (usual.waits_for_launches, waiting.waits_for_launches) == (False, True)


def test_volta_runs_bf16_jobs_at_its_fp16_peak_and_a_device_without_figures_is_unknown():
    volta = device(peak_flops_per_s=MappingProxyType({"fp16": 1.25e14, "fp32": 1.5e13}))
    assert dense_peak(volta, "bf16") == 1.25e14
    assert dense_peak(volta, "fp32") == 1.5e13
    assert np.isnan(dense_peak(replace(volta, peak_flops_per_s=MappingProxyType({})), "bf16"))


def test_fp32_products_run_in_full_unless_the_framework_or_the_job_has_tf32():
    """torch's default since 1.12; Transformer Engine and XLA multiply fp32 in TF32."""
    ampere = device(peak_flops_per_s=MappingProxyType({"fp32": 1.56e14, "fp32_simt": 1.95e13, "bf16": 3.12e14}))
    training = training_of(precision="fp32")
    assert device_rates(ampere, training).gemm_flops_per_s == 1.56e14
    full = device_rates(ampere, training, tf32=False)
    assert full.gemm_flops_per_s == full.dense_flops_per_s == 1.95e13
    assert device_rates(ampere, training_of(), tf32=False).gemm_flops_per_s == 3.12e14
    volta = device(peak_flops_per_s=MappingProxyType({"fp16": 1.25e14, "fp32": 1.5e13}))
    assert device_rates(volta, training, tf32=False).gemm_flops_per_s == 1.5e13
    habits = {name: framework_habits(name) for name in ("megatron-core", "jax", "fsdp2", "deepspeed", "builtin")}
    assert [name for name, each in habits.items() if each.runs_tf32(training)] == ["megatron-core", "jax"]
    assert habits["fsdp2"].runs_tf32(replace(training, tf32=True))
    assert not habits["jax"].runs_tf32(replace(training, tf32=False))


def test_attention_in_8_bits_is_faster_where_the_device_has_them_and_the_gemms_are_too():
    hopper = device(peak_flops_per_s=MappingProxyType({"bf16": 3e14, "fp8": 6e14}))
    asked = training_of(precision="fp8", fp8_attention=True)
    plain = device_rates(hopper, replace(asked, fp8_attention=False))
    assert device_rates(hopper, asked).attention_efficiency == pytest.approx(plain.attention_efficiency * 1200 / 740)
    for without in (replace(asked, precision="bf16"), replace(asked, attention="naive")):
        assert device_rates(hopper, without).attention_efficiency == plain.attention_efficiency
    assert device_rates(device(), asked).attention_efficiency == device().attention_efficiency


def test_the_smooth_maximum_is_the_larger_but_near_a_tie():
    assert smooth_maximum(1.0, 0.1) == pytest.approx(1.0, rel=1e-4)
    assert smooth_maximum(1.0, 1.0) == pytest.approx(2**0.25)
    assert smooth_maximum(3.0, 0.0) == pytest.approx(3.0)
