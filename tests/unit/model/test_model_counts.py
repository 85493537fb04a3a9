"""Counts of parts, layer patterns and FLOPs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpdpdash.model.counts import (
    TRAINING_FLOPS_PER_FORWARD_FLOP,
    attended_len,
    forward_flops_per_token,
    layer_parameters,
    num_moe_layers,
    parameter_counts,
)
from tpdpdash.model.patterns import layer_pattern
from tpdpdash.model.presets import preset, preset_names
from tpdpdash.model.spec import ModelSpec


def with_experts(num_layers: int, first: int = 0, interval: int = 1, dense: tuple[int, ...] = ()) -> ModelSpec:
    return replace(
        preset("mixtral-8x7b"),
        num_layers=num_layers,
        first_k_dense_layers=first,
        moe_layer_interval=interval,
        dense_layers=dense,
    )


@pytest.mark.parametrize("name", preset_names())
def test_layers_one_by_one_add_up_to_the_total(name: str) -> None:
    spec = preset(name)
    counts = parameter_counts(spec)
    layers = [layer_parameters(spec, spec.is_moe_layer(layer)) for layer in range(spec.num_layers)]
    assert counts.layers == sum(layer.total for layer in layers)
    assert counts.routed_experts == sum(layer.routed_experts for layer in layers)
    outside = counts.embedding + counts.position_embedding + counts.head + counts.final_norm + counts.other
    assert counts.total == outside + counts.layers
    assert counts.active <= counts.total


@given(data=st.data(), num_layers=st.integers(1, 40))
def test_any_set_of_expert_layers_has_a_pattern_that_gives_it_back(data: st.DataObject, num_layers: int) -> None:
    chosen = data.draw(st.sets(st.integers(0, num_layers - 1)))
    pattern = layer_pattern(chosen, num_layers)
    spec = with_experts(num_layers, pattern.first_k_dense_layers, pattern.moe_layer_interval, pattern.dense_layers)
    assert {layer for layer in range(num_layers) if spec.is_moe_layer(layer)} == chosen
    assert num_moe_layers(spec) == len(chosen)


@pytest.mark.parametrize(
    ("layers", "num_layers", "pattern"),
    [
        (set(range(61)) - {0, 1, 2}, 61, (3, 1, ())),
        (set(range(1, 48, 2)), 48, (0, 2, ())),
        (set(range(32)), 32, (0, 1, ())),
        (set(), 4, (4, 1, ())),
        ({0, 1, 3}, 4, (0, 1, (2,))),
    ],
)
def test_regular_patterns_need_no_list(layers: set[int], num_layers: int, pattern: tuple[object, ...]) -> None:
    found = layer_pattern(layers, num_layers)
    assert (found.first_k_dense_layers, found.moe_layer_interval, found.dense_layers) == pattern


@pytest.mark.parametrize("name", ["megatron-22b", "megatron-175b", "megatron-530b", "megatron-1t"])
def test_training_flops_equal_equation_3_of_narayanan_2021_without_its_recomputation(name: str) -> None:
    """72 B s L h² (1 + s / 6h + V / 12hL) for B sequences; independent closed form (arXiv:2104.04473, equation 3)."""
    spec, s, sequences = preset(name), 2048, 3
    L, h, V = spec.num_layers, spec.hidden_size, spec.vocab_size
    closed_form = 72 * sequences * s * L * h**2 * (1 + s / (6 * h) + V / (12 * h * L))
    per_token = TRAINING_FLOPS_PER_FORWARD_FLOP * forward_flops_per_token(spec, s, causal=False).total
    assert per_token * s * sequences == pytest.approx(closed_form, rel=1e-12)


def test_causal_attention_does_half_the_work() -> None:
    spec = preset("llama-3-8b")
    full, causal = (forward_flops_per_token(spec, 8192, causal=causal) for causal in (False, True))
    assert causal.attention == full.attention / 2
    assert (causal.gemm, causal.head) == (full.gemm, full.head)


def test_gemm_flops_are_two_per_active_matrix_element() -> None:
    """Llama has no biases: its matrices are all parameters but the embedding and the norms."""
    spec = preset("llama-2-7b")
    counts, flops = parameter_counts(spec), forward_flops_per_token(spec, 4096, causal=True)
    norms = spec.num_layers * layer_parameters(spec, moe=False).norms + counts.final_norm
    assert flops.gemm + flops.head == 2 * (counts.total - counts.embedding - norms)
    assert flops.total == flops.gemm + flops.attention + flops.head


def test_a_mixture_of_experts_computes_with_its_active_experts_only() -> None:
    spec = preset("mixtral-8x7b")
    counts, flops = parameter_counts(spec), forward_flops_per_token(spec, 1, causal=True)
    norms = spec.num_layers * layer_parameters(spec, moe=True).norms + counts.final_norm
    assert flops.gemm + flops.head == 2 * (counts.active - counts.embedding - norms)


def test_biases_cost_parameters_but_no_gemm_flops() -> None:
    spec = preset("gpt2-xl")
    bare = replace(spec, qkv_bias=False, attention_output_bias=False, mlp_bias=False)
    assert parameter_counts(bare).total < parameter_counts(spec).total
    assert forward_flops_per_token(bare, 1024, causal=True) == forward_flops_per_token(spec, 1024, causal=True)


def test_a_window_counts_the_keys_that_tokens_meet():
    spec = replace(preset("llama-3-8b"), sliding_window=4, sliding_layers=32)
    met = [min(place + 1, 4) for place in range(1000)]
    assert attended_len(spec, 1000) / 2 == pytest.approx(sum(met) / 1000, rel=2e-3)  # s / 2 stands for (s + 1) / 2
    assert attended_len(replace(spec, sliding_layers=16), 1000) == (1000 + attended_len(spec, 1000)) / 2
    assert attended_len(spec, 4) == attended_len(spec, 3) + 1 == 4, "a sequence within the window is met whole"
    assert attended_len(replace(spec, sliding_layers=0), 1000) == 1000


def test_work_behind_a_window_is_not_counted_where_the_mask_counts():
    spec = preset("gpt-oss-20b")
    whole = replace(spec, sliding_window=0, sliding_layers=0)
    windowed, full = (forward_flops_per_token(each, 8192, causal=True) for each in (spec, whole))
    assert (windowed.gemm, windowed.head) == (full.gemm, full.head)
    # 12 of 24 layers, each with 254 of 8,192 tokens' worth of keys: 128 · (2 − 128 / 8192)
    assert windowed.attention == pytest.approx(full.attention * (0.5 + 0.5 * 254 / 8192))
    assert forward_flops_per_token(spec, 8192, causal=False) == forward_flops_per_token(whole, 8192, causal=False)
