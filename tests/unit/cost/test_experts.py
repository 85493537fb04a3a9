"""Seconds of a mixture of experts' part of a layer."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from strategies import device, moe_model, training_of

from tpdpdash.cost.experts import busiest_rank, expert_linears, expert_traffic_s, grouped_linear_s, routed_of
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.operators import device_rates, gemm_s, traffic_s

RATES = device_rates(device(), training_of())
FP8 = device_rates(device(peak_flops_per_s=MappingProxyType({"bf16": 3e14, "fp8": 6e14})), training_of(precision="fp8"))
MEGATRON = framework_habits("megatron-core")
MODEL = moe_model()
EVEN = training_of(expert_load_cv=0.0)


def of_one_rank(model=MODEL, training=EVEN, ep=4.0, etp=1.0, tp=1.0, tokens=4096.0):
    return routed_of(model, training, tokens=tokens, tp=tp, ep=ep, etp=etp)


def test_the_busiest_of_n_ranks_lies_root_two_ln_n_deviations_above_the_mean():
    assert busiest_rank(64, 64.0, 0.2) == pytest.approx(1 + 0.2 * math.sqrt(2 * math.log(64)))
    assert busiest_rank(64, 16.0, 0.2) == pytest.approx(1 + 0.2 * math.sqrt(2 * math.log(16) / 4))


def test_nobody_is_busier_than_all_ranks_together():
    assert busiest_rank(2, 2.0, 10.0) == 2.0


def test_a_rank_that_holds_all_experts_or_an_even_router_has_no_busiest_rank():
    assert busiest_rank(64, 1.0, 0.2) == 1.0
    assert busiest_rank(64, 64.0, 0.0) == 1.0


def test_fewer_experts_on_a_rank_leave_more_to_chance():
    ranks = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 64.0])
    assert (np.diff(busiest_rank(64, ranks, 0.1)) > 0).all()


def test_a_rank_sees_its_share_of_the_copies_and_of_the_experts():
    routed = of_one_rank(ep=4.0, etp=2.0, tp=4.0)
    assert routed.copies == 4096 * 2 * 2 / 4
    assert (routed.experts, routed.inner) == (4, 256)


def test_one_expert_is_a_plain_product_of_its_rows_and_half_a_tile():
    found = grouped_linear_s(4096.0, 1.0, 1024, 2048, RATES, 0.5)
    assert found.forward_s == pytest.approx(gemm_s(4096 + 64, 1024, 2048, RATES))
    assert found.input_gradient_s == pytest.approx(gemm_s(4096 + 64, 2048, 1024, RATES))
    assert found.weight_gradient_s == pytest.approx(gemm_s(1024, 4096 + 64, 2048, RATES))


def test_many_experts_fall_towards_the_speed_of_grouped_products_and_waste_half_a_tile_each():
    found = grouped_linear_s(65536.0, 16.0, 1024, 2048, RATES, 0.5)
    plain = gemm_s(65536 + 16 * 64, 1024, 2048, RATES, weights=16.0)
    assert found.forward_s == pytest.approx(plain / (0.5 + 0.5 / 16))


def test_experts_with_few_rows_take_the_time_of_their_weights_and_gradients():
    found = grouped_linear_s(16.0, 16.0, 1024, 2048, RATES, 1.0)
    assert found.forward_s >= traffic_s(2.0 * 16 * 1024 * 2048, RATES)
    assert found.weight_gradient_s == pytest.approx(traffic_s(2.0 * 4 * 16 * 1024 * 2048, RATES))


def test_casts_move_four_bytes_an_element_of_the_copies_in_each_pass():
    cast, plain = (grouped_linear_s(4096.0, 4.0, 1024, 2048, rates, 0.8) for rates in (FP8, replace(FP8, casts=False)))
    assert cast.forward_s - plain.forward_s == pytest.approx(traffic_s(4.0 * 4096 * 1024, FP8))
    assert cast.input_gradient_s - plain.input_gradient_s == pytest.approx(traffic_s(4.0 * 4096 * 2048, FP8))


def test_frozen_experts_have_no_weight_gradients():
    assert grouped_linear_s(64.0, 2.0, 64, 64, replace(RATES, is_frozen=True), 1.0).weight_gradient_s == 0


def test_shared_experts_are_split_as_a_dense_mlp_is_and_routed_ones_are_whole():
    routed = of_one_rank()
    without = expert_linears(MODEL, MEGATRON, RATES, routed, 4096.0, 1.0)
    shared = expert_linears(moe_model(shared_expert_ffn_hidden_size=512), MEGATRON, RATES, routed, 4096.0, 1.0)
    assert (len(without.column), len(without.row), len(without.whole)) == (0, 0, 3)
    assert (len(shared.column), len(shared.row), len(shared.whole)) == (1, 1, 3)


def test_a_dispatcher_that_sends_tokens_from_where_they_lie_saves_half_of_the_sorting():
    plain = replace(MEGATRON, dispatches_once_per_domain=False)
    once, twice = (expert_traffic_s(MODEL, EVEN, h, RATES, of_one_rank(), 4096.0, 1.0)[0] for h in (MEGATRON, plain))
    assert once == pytest.approx(traffic_s(MEGATRON.traffic_frac * 4 * 2 * 1024 * 8192, RATES))
    assert twice == pytest.approx(2 * once)


def test_a_job_may_name_the_dispatcher():
    found = {
        name: expert_traffic_s(
            MODEL, replace(EVEN, expert_dispatcher=name), MEGATRON, RATES, of_one_rank(), 4096.0, 1.0
        )[0]
        for name in (None, "flex", "alltoall")
    }
    assert found[None] == found["flex"] == found["alltoall"] / 2


def test_biases_that_are_added_one_operator_after_the_other_cost_72_and_120_bytes_where_width_is_hidden_size():
    model = moe_model(mlp_bias=True, moe_ffn_hidden_size=1024)
    routed = of_one_rank(model)
    eager = expert_traffic_s(model, EVEN, MEGATRON, RATES, routed, 4096.0, 1.0)
    fused = expert_traffic_s(model, EVEN, replace(MEGATRON, eager_expert_biases=False), RATES, routed, 4096.0, 1.0)
    captured = expert_traffic_s(model, replace(EVEN, cuda_graphs="step"), MEGATRON, RATES, routed, 4096.0, 1.0)
    assert eager[1] - fused[1] == pytest.approx(traffic_s(72.0 * 8192 * 1024, RATES))
    assert eager[2] - fused[2] == pytest.approx(traffic_s(120.0 * 8192 * 1024, RATES))
    assert captured == fused


def test_without_a_compiler_the_activation_moves_more_and_the_permutation_as_much():
    compiled, eager = (
        expert_traffic_s(MODEL, replace(EVEN, compiled=compiled), MEGATRON, RATES, of_one_rank(), 4096.0, 1.0)
        for compiled in (True, False)
    )
    assert eager[0] == compiled[0]
    for one, other in zip(eager[1:], compiled[1:], strict=True):
        assert one == pytest.approx(other * MEGATRON.eager_traffic / MEGATRON.traffic_frac)
