"""Seconds of one layer: what selective recompute recomputes, what graphs leave of launches."""

from __future__ import annotations

import pytest
from strategies import dense_model, device, moe_model, training_of

from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.layer import attention_block, layer_s
from tpdpdash.cost.operators import device_rates, linear_s, traffic_s

HABITS = framework_habits("megatron-core")
MLA = {"kv_lora_rank": 128, "q_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}


def layer(model, moe=False, **training):
    steps = training_of(expert_load_cv=0.0, **training)
    rates = device_rates(device(), steps)
    split = {"tp": 1.0, "ep": 1.0, "etp": 1.0, "sequence_parallel": False}
    of_attention = {name: split[name] for name in ("tp", "sequence_parallel")}
    block = attention_block(model, steps, HABITS, rates, tokens=2048.0, **of_attention)
    return layer_s(model, steps, HABITS, rates, moe, block, tokens=2048.0, **split), rates


def modules_s(*names, model=None, moe=False):
    """Forward seconds of the named modules."""
    found, _ = layer(model or dense_model(), moe, recompute_modules=names)
    return found.modules_forward_s


def test_a_recomputed_norm_moves_its_input_and_output():
    _, rates = layer(dense_model())
    assert modules_s("layernorm") == pytest.approx(traffic_s(2 * 2 * 2 * 1024 * 2048, rates))


def test_recomputed_core_attention_is_its_forward_pass():
    assert modules_s("core_attn") == layer(dense_model())[0].attention_forward_s


def test_an_expanding_projection_is_recomputed_where_attention_is_latent():
    _, rates = layer(dense_model())
    expected = linear_s(2048.0, 256, 16 * 96, rates).forward_s + linear_s(2048.0, 128, 16 * 128, rates).forward_s
    assert modules_s("mla_up_proj", model=dense_model(**MLA)) == pytest.approx(expected)
    assert modules_s("mla_up_proj") == 0


def test_modules_inside_of_one_that_is_recomputed_whole_count_with_it():
    model = moe_model(shared_expert_ffn_hidden_size=512)
    whole = modules_s("moe", model=model, moe=True)
    parts = [modules_s(name, model=model, moe=True) for name in ("moe_act", "shared_experts")]
    assert modules_s("moe", "moe_act", "shared_experts", model=model, moe=True) == whole
    assert 0 < sum(parts) < whole
    assert modules_s("mlp", model=model, moe=True) == 0 < modules_s("mlp")


def test_deterministic_mode_writes_every_output_once_more():
    (usual, rates), (filled, _) = (layer(dense_model(), deterministic=d) for d in (False, True))
    outputs = (2 + 2 + 2) * 1024 + 2 * 1024 + 2 * 512 + 3 * 4096
    more = traffic_s(2 * 2048 * outputs, rates)
    assert filled.traffic_forward_s - usual.traffic_forward_s == pytest.approx(more)
    assert filled.traffic_backward_s - usual.traffic_backward_s == pytest.approx(more)


@pytest.mark.parametrize(("graphs", "left"), [("none", 1.0), ("modules", 0.65), ("step", 0.0)])
def test_graphs_leave_a_share_of_the_launches(graphs, left):
    launched = layer(moe_model(), moe=True)[0].kernels
    assert launched == HABITS.layer_kernels + HABITS.moe_kernels
    assert layer(moe_model(), moe=True, cuda_graphs=graphs)[0].kernels == pytest.approx(left * launched)
