"""What a layer keeps for backward, by framework and by what is recomputed."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from strategies import dense_model, device, layout_of, moe_model, training_of

from tpdpdash.cost.activations import kept_bytes, output_copies
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.parameters import vocab_rows
from tpdpdash.cost.stage_activations import stage_activations, stage_logits
from tpdpdash.cost.stages import stage_kinds
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.schedule.actions import schedule_actions

MEGATRON = framework_habits("megatron-core")
GATED = dense_model(gated_mlp=True)
MLA = {"kv_lora_rank": 128, "q_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}


def kept(model, moe=False, habits=MEGATRON, tp=1.0, **changes):
    return kept_bytes(model, training_of(**changes), habits, moe, tp=tp, etp=tp, sequence_parallel=tp > 1)


def saved(model, *modules, moe=False, tp=1.0):
    """Bytes per token and layer that recomputing these modules saves."""
    found = kept(model, moe, tp=tp, recompute_modules=modules)
    return float(found.everything - found.selective)


def test_norms_of_a_layer_give_up_their_two_outputs():
    assert saved(GATED, "layernorm") == 2 * 2 * GATED.hidden_size
    assert saved(GATED, "layernorm", tp=2.0) == 2 * GATED.hidden_size


def test_a_recomputed_mlp_keeps_its_input_only():
    assert saved(GATED, "mlp") == 3 * 2 * GATED.ffn_hidden_size
    assert saved(moe_model(), "mlp", moe=True) == 0.0


def test_activation_functions_keep_their_inputs_in_eight_bits_where_asked():
    usual, eight = (kept(GATED, fp8_activation_inputs=short).everything for short in (False, True))
    assert usual - eight == 2 * GATED.ffn_hidden_size


@pytest.mark.parametrize(("framework", "copies"), [("fsdp1", 1), ("jax", 1), ("megatron-core", 0), ("fsdp2", None)])
def test_torchao_keeps_inputs_of_8_bit_products_in_16_bits(framework, copies):
    """Elsewhere those of QKV and fc1, and of fc2, are kept in 8 bits; attention's output in both, by Megatron once."""
    habits, width = framework_habits(framework), GATED.num_attention_heads * GATED.head_dim
    wide, narrow = (kept(GATED, habits=habits, precision=kind).everything for kind in ("bf16", "fp8"))
    saved = 0 if copies is None else 2 * GATED.hidden_size + GATED.ffn_hidden_size - copies * width
    assert wide - narrow == saved


def test_megatron_keeps_compressed_vectors_of_its_own_tokens():
    """Under sequence parallelism of two 2 · 2 · (128 + 256) bytes a token are halved; torch keeps them whole."""
    both = {"tp": 2.0, "etp": 2.0, "sequence_parallel": True}
    model, training = replace(GATED, **MLA), training_of()
    megatron, torch = (
        kept_bytes(model, training, replace(MEGATRON, compresses_shards=own), False, **both) for own in (True, False)
    )
    assert torch.everything - megatron.everything == 2 * (128 + 256)
    assert MEGATRON.compresses_shards


def test_mla_keeps_compressed_vectors_alone():
    model = dense_model(**MLA)
    heads, query, value = model.num_attention_heads, model.query_head_dim, model.value_head_dim
    assert saved(model, "mla_up_proj") == 2 * heads * (2 * query + value)
    assert saved(GATED, "mla_up_proj") == 0.0


def test_experts_give_up_their_activated_tensor_or_everything_inside():
    model = moe_model(shared_expert_ffn_hidden_size=256)
    act = saved(model, "moe_act", moe=True)
    assert act == 2 * model.num_experts_per_token * model.moe_ffn_hidden_size
    assert saved(model, "moe", moe=True) > act + saved(model, "shared_experts", moe=True) > act
    assert saved(model, "moe", "moe_act", "shared_experts", moe=True) == saved(model, "moe", moe=True)


def test_plain_experts_keep_what_they_activate_before_the_routers_weight_too():
    plain, gated = (kept(moe_model(gated_mlp=gate), moe=True).everything for gate in (False, True))
    assert plain == gated
    dense_plain, dense_gated = (kept(dense_model(gated_mlp=gate)).everything for gate in (False, True))
    assert dense_gated - dense_plain == 2 * GATED.ffn_hidden_size


@pytest.mark.parametrize(
    ("architecture", "deterministic", "sequences", "copies"),
    [
        ("ampere", False, 2, 1.0),
        ("ampere", False, 1, 0.0),
        ("hopper", True, 2, 0.0),
        ("blackwell", False, 2, 0.0),
        ("blackwell", True, 2, 1.0),
    ],
)
def test_transformer_engine_turns_flash_attentions_output_round(architecture, deterministic, sequences, copies):
    training = training_of(deterministic=deterministic)
    spec = device(architecture=architecture)
    assert output_copies(spec, training, MEGATRON, float(sequences)) == copies
    assert output_copies(spec, training, framework_habits("fsdp2"), float(sequences)) == 0.0
    assert output_copies(spec, training_of(attention="naive"), MEGATRON, float(sequences)) == 0.0


def test_a_turned_output_is_one_more_tensor_of_all_heads():
    keys = {"tp": 2.0, "etp": 2.0, "sequence_parallel": True}
    once, twice = (
        kept_bytes(GATED, training_of(), MEGATRON, False, copies=copies, **keys).everything for copies in (0.0, 1.0)
    )
    assert twice - once == GATED.num_attention_heads * GATED.head_dim


def test_dtensor_keeps_whole_inputs_of_column_parallel_products():
    fsdp = framework_habits("fsdp2")
    part, whole = (float(kept(GATED, habits=habits, tp=4.0).everything) for habits in (MEGATRON, fsdp))
    assert whole - part == pytest.approx(2 * 2 * GATED.hidden_size * (1 - 1 / 4))
    assert kept(GATED, habits=fsdp).everything == kept(GATED).everything


@pytest.mark.parametrize(
    ("framework", "tp", "each"), [("fsdp2", 1, 14.0), ("fsdp2", 2, 16.0), ("megatron-core", 2, 6.0)]
)
def test_a_loss_over_a_divided_vocabulary_has_copies_of_its_own_under_dtensor(framework, tp, each):
    training = training_of(framework=framework)
    columns = LayoutColumns.from_layouts([layout_of(tp=tp)])
    kinds = stage_kinds(GATED, columns).every_stage()
    held = stage_logits(GATED, training, framework_habits(framework), columns, kinds)
    rows = float(vocab_rows(GATED, float(tp), framework))
    assert held[0, 0] == each * training.seq_len * rows


def most_layers_in_flight(actions, layers):
    """Layers times microbatches that a rank holds at most, by its list of passes."""
    changes = [layers[each.chunk] * (1 if each.kind == "F" else -1) for each in actions]
    return max(accumulate(changes))


@pytest.mark.parametrize(
    ("pp", "chunks", "microbatches", "group"), [(4, 2, 4, 4), (2, 3, 6, 2), (4, 2, 9, 5), (2, 4, 4, 4)]
)
def test_chunks_that_are_a_layer_short_are_counted_as_they_fill(pp, chunks, microbatches, group):
    each, training = 2, training_of(global_batch_size=microbatches)
    whole = [each] * chunks
    middle = (each * chunks,) * (pp - 2)
    layout = layout_of(
        pp=pp,
        num_model_chunks=chunks,
        microbatch_group_size_per_vp_stage=group,
        account_for_embedding=True,
        account_for_loss=True,
        layers_per_stage=(each * chunks - 1, *middle, each * chunks - 1),
    )
    model = dense_model(num_layers=sum(layout.layers_per_stage))
    columns = LayoutColumns.from_layouts([layout])
    kinds = stage_kinds(model, columns).every_stage()
    held = stage_activations(model, device(), training, MEGATRON, columns, kinds, np.zeros_like(kinds.count))[0]
    layer, ranks = kept(model), schedule_actions("interleaved", pp, microbatches, chunks, group)
    first = most_layers_in_flight(ranks[0], [each - 1, *whole[1:]])
    last = most_layers_in_flight(ranks[-1], [*whole[1:], each - 1])
    found = (held / training.seq_len - layer.gradients) / layer.everything
    assert found[0] == pytest.approx(first)
    # The last stage's end is held besides: less than a layer a microbatch, and the loss is not at its fullest moment.
    assert last - 1 <= found[-1] <= last + 0.2 * last


def test_frozen_products_without_an_adapter_keep_no_input():
    def frozen(model, *targets, moe=False, **changes):
        return kept(model, moe, trainable="lora", lora_targets=targets, **changes).everything

    h, f = GATED.hidden_size, GATED.ffn_hidden_size
    every = kept(GATED).everything
    assert frozen(GATED) == every
    assert every - frozen(GATED, "linear_qkv") == 2 * h + 2 * f
    assert every - frozen(GATED, "q_proj", "down_proj") == 2 * h
    assert every - frozen(GATED, "gate_proj", "w2") == 2 * h
    moe = moe_model(gated_mlp=True)
    less = kept(moe, True).everything - frozen(moe, "linear_qkv", moe=True)
    assert less == 2 * h + moe.num_experts_per_token * 2 * (h + moe.moe_ffn_hidden_size)
    casts = [frozen(GATED, target, precision="fp8", fp8_recipe="delayed") for target in ("o_proj", "linear_qkv")]
    assert casts[0] - casts[1] == GATED.num_attention_heads * GATED.head_dim - h


def test_a_recomputed_norm_gives_up_only_the_outputs_that_were_kept():
    frozen = {"trainable": "lora", "lora_targets": ("linear_qkv",), "recompute_modules": ("layernorm",)}
    found = kept(GATED, **frozen)
    assert found.everything - found.selective == 2 * GATED.hidden_size


def test_core_attention_gives_up_its_scores():
    flash, naive = (kept(GATED, recompute_modules=("core_attn",), attention=kind) for kind in ("flash", "naive"))
    assert flash.selective == pytest.approx(naive.selective)
    assert flash.everything < naive.everything


def test_a_framework_that_copies_and_does_not_fuse_keeps_more():
    plain = float(kept(GATED).everything)
    copies = float(kept(GATED, habits=replace(MEGATRON, copies_qkv=True)).everything)
    unfused = float(kept(GATED, habits=replace(MEGATRON, fuses_gate=False)).everything)
    heads, kv, width = GATED.num_attention_heads, GATED.num_kv_heads, GATED.head_dim
    assert copies - plain == 2 * (heads + 2 * kv) * width
    assert unfused - plain == 2 * GATED.ffn_hidden_size


def test_megatron_casts_attentions_output_again_but_under_delayed_scaling():
    """One byte more for each element of the output where the cast is kept beside it; torch keeps the cast always."""
    casts = {
        (recipe, habits.name): kept(GATED, habits=habits, precision="fp8", fp8_recipe=recipe).everything
        for recipe in ("tensorwise", "delayed")
        for habits in (MEGATRON, framework_habits("fsdp2"))
    }
    output = GATED.num_attention_heads * GATED.head_dim
    assert casts["delayed", "megatron-core"] - casts["tensorwise", "megatron-core"] == output
    assert casts["delayed", "fsdp2"] == casts["tensorwise", "fsdp2"]


def test_inputs_in_four_bits_have_a_scale_for_sixteen():
    """Inputs of QKV, fc1 and fc2: h + h + f elements of 9/16 bytes instead of 1."""
    eight, four = (kept(GATED, precision=precision).everything for precision in ("mxfp8", "nvfp4"))
    assert eight - four == 7 / 16 * (2 * GATED.hidden_size + GATED.ffn_hidden_size)
