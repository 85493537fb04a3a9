"""Seconds of single operators."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from strategies import device, training_of

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
FP8 = device(peak_flops_per_s=MappingProxyType({"bf16": 3e14, "fp8": 6e14}))


def test_a_large_gemm_runs_at_the_cap_of_its_curve():
    work = 2.0 * 8192 * 8192 * 8192
    assert gemm_s(8192, 8192, 8192, RATES) == pytest.approx(work / (3e14 * 0.9 * 8192 / (8192 + 900)))


def test_a_gemm_reaches_half_its_cap_where_the_inner_size_is_k0():
    work = 2.0 * 65536 * 900 * 65536
    assert gemm_s(65536, 900, 65536, RATES) == pytest.approx(work / (3e14 * 0.45))


def test_a_thin_gemm_takes_the_time_of_reading_its_weights():
    assert gemm_s(1, 8192, 8192, RATES) == pytest.approx(2 * (8192 * 8192 + 2 * 8192) / (2e12 * 0.8))


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
    few, many = (linear_s(64, 4096, 4096, RATES, weights=n).forward_s for n in (1.0, 64.0))
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


def test_volta_runs_bf16_jobs_at_its_fp16_peak_and_a_device_without_figures_is_unknown():
    volta = device(peak_flops_per_s=MappingProxyType({"fp16": 1.25e14, "fp32": 1.5e13}))
    assert dense_peak(volta, "bf16") == 1.25e14
    assert dense_peak(volta, "fp32") == 1.5e13
    assert np.isnan(dense_peak(replace(volta, peak_flops_per_s=MappingProxyType({})), "bf16"))


def test_the_smooth_maximum_is_the_larger_but_near_a_tie():
    assert smooth_maximum(1.0, 0.1) == pytest.approx(1.0, rel=1e-4)
    assert smooth_maximum(1.0, 1.0) == pytest.approx(2**0.25)
    assert smooth_maximum(3.0, 0.0) == pytest.approx(3.0)
