"""Buffers beside states and activations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from strategies import cluster_of, dense_model, device, moe_model

from tpdpdash.cost.buffers import (
    boundary_bytes,
    communicators,
    context_bytes,
    dummy_gradient_bytes,
    fp32_gradients,
    workspace_bytes,
)
from tpdpdash.cost.estimate import estimate_layout
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.memory import between_steps
from tpdpdash.cost.stage_parameters import stage_parameters
from tpdpdash.cost.stages import stage_kinds
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.layout.resolve import draft_layout
from tpdpdash.model.counts import layer_parameters
from tpdpdash.training import Training
from tpdpdash.units import MIB

MODEL = dense_model()


def training_of(**given) -> Training:
    return Training(**({"seq_len": 512, "global_batch_size": 64} | given))


def columns_of(training, **pins):
    world = pins.get("tp", 1) * pins.get("pp", 1) * pins.get("dp", 1)
    return LayoutColumns.from_layouts([draft_layout(LayoutPins(**pins), MODEL, training, world).layout])


def boundaries(training, **pins):
    """Tensors at the boundaries of each stage, in tensors of e b s h bytes."""
    columns = columns_of(training, **pins)
    kinds = stage_kinds(MODEL, columns).every_stage()
    held = boundary_bytes(MODEL, training, framework_habits(training.framework), columns, kinds)
    return (held[0, : pins.get("pp", 1)] / (2.0 * training.seq_len * MODEL.hidden_size)).tolist()


def test_workspaces_are_two_cublas_handles_and_transformer_engines_streams():
    spec = device(cublas_workspace_bytes=8 * MIB, te_workspace_bytes=32 * MIB)
    megatron, fsdp = framework_habits("megatron-core"), framework_habits("fsdp2")
    assert workspace_bytes(MODEL, spec, fsdp) == 16 * MIB
    assert workspace_bytes(MODEL, spec, megatron) == 48 * MIB
    assert workspace_bytes(moe_model(), spec, megatron) == (16 + 5 * 32) * MIB


def kept_between_steps(training, **pins):
    """What stays on each stage beside the states when a step has ended [bytes]."""
    columns = columns_of(training, **pins)
    kinds = stage_kinds(MODEL, columns).every_stage()
    habits = framework_habits(training.framework)
    return between_steps(MODEL, cluster_of(), training, habits, columns, kinds).buffers_bytes[0, : pins.get("pp", 1)]


def test_megatron_keeps_the_buffer_that_the_heads_input_is_gathered_into():
    training = training_of()
    split = kept_between_steps(training, tp=2, pp=2, sequence_parallel=True)
    whole = kept_between_steps(training, tp=2, pp=2, sequence_parallel=False)
    tensor = 2.0 * training.seq_len * MODEL.hidden_size
    # A split sequence has two boundary tensors of half the size instead of whole ones.
    assert (split - whole).tolist() == [-tensor, -tensor + tensor]
    fsdp = training_of(framework="fsdp2")
    assert kept_between_steps(fsdp, tp=2, sequence_parallel=True) == kept_between_steps(fsdp, tp=2)


def test_each_chunk_keeps_its_last_input_and_gradient():
    assert boundaries(training_of(), pp=2) == [2.0, 2.0]
    assert boundaries(training_of(), pp=2, num_model_chunks=2) == [2.0, 4.0]
    assert boundaries(training_of(), tp=2) == [0.0]


def test_torch_pipelines_allocate_a_receive_buffer_for_every_microbatch():
    assert boundaries(training_of(framework="fsdp2", global_batch_size=8), pp=2) == [16.0, 16.0]


@pytest.mark.parametrize(
    ("framework", "gradient_dtype", "zero", "bytes_each"),
    [
        ("megatron-core", "fp32", 1, 0.0),
        ("megatron-core", "fp16", 0, 4.0),
        ("megatron-core", "fp16", 1, 1.0),
        ("fsdp2", "fp16", 1, 0.0),
        ("internevo", "fp16", 1, 1.0),
    ],
)
def test_the_update_makes_a_fp32_copy_of_16_bit_gradients(framework, gradient_dtype, zero, bytes_each):
    training = training_of(framework=framework, gradient_dtype=gradient_dtype, precision="fp16")
    columns = columns_of(training, dp=4, zero_stage=zero)
    kinds = stage_kinds(MODEL, columns).every_stage()
    habits = framework_habits(framework)
    held = stage_parameters(MODEL, habits, columns, kinds, training)
    copy = np.broadcast_to(fp32_gradients(training, habits, columns, held), held.dense.shape)
    assert copy[0, 0] == pytest.approx(bytes_each * held.dense[0, 0])


def test_the_copy_takes_the_room_of_activations_where_nothing_is_fragmented():
    for seq_len, is_copied in ((8, True), (2048, False)):
        training = training_of(framework="megatron-2022", gradient_dtype="bf16", seq_len=seq_len)
        found = estimate_layout(MODEL, cluster_of(4), training, columns_of(training, dp=4))
        assert (found.stages[0].buffers_bytes > 0) is is_copied


def test_transformer_engine_keeps_a_dummy_gradient_for_each_shape_of_matrix():
    training = training_of(seq_len=8)
    layer = layer_parameters(MODEL, moe=False)
    for changes, keys, bytes_each in (
        ({}, {"tp": 1}, 2.0),
        ({}, {"tp": 2}, 1.0),
        ({"framework": "fsdp2"}, {"tp": 1}, 0.0),
        ({"trainable": "lora"}, {"tp": 1}, 0.0),
        ({}, {"dp": 2, "zero_stage": 3}, 0.0),
    ):
        asked = replace(training, **changes)
        found = dummy_gradient_bytes(MODEL, asked, framework_habits(asked.framework), columns_of(asked, **keys))
        assert float(found[0]) == pytest.approx(bytes_each * layer.total, rel=0.01)


def test_activations_in_host_memory_leave_two_layers_on_the_device():
    training = training_of()
    kept, moved = (
        estimate_layout(MODEL, cluster_of(1), training, columns_of(training, offload_activations=offload)).stages[0]
        for offload in (False, True)
    )
    assert moved.activations_bytes == pytest.approx(kept.activations_bytes * 2 / MODEL.num_layers, rel=0.02)


def test_gradients_follow_the_optimizer_to_the_host_under_deepspeed():
    for framework, zero, stays in (("deepspeed", 2, False), ("deepspeed", 1, True), ("megatron-core", 2, True)):
        training = training_of(framework=framework)
        columns = columns_of(training, dp=4, zero_stage=zero, offload_optimizer=True)
        found = estimate_layout(MODEL, cluster_of(1, 4), training, columns).stages[0]
        assert (found.gradients_bytes > 0) is stays
        assert found.optimizer_bytes == 0.0


def test_deepspeed_gathers_no_more_parameters_than_may_live():
    model = dense_model(num_layers=4, hidden_size=16384, num_attention_heads=128, ffn_hidden_size=65536)
    training = training_of(framework="deepspeed", seq_len=8)
    layout = draft_layout(LayoutPins(dp=8, zero_stage=3), model, training, 8).layout
    columns = LayoutColumns.from_layouts([layout])
    found = estimate_layout(model, cluster_of(1), training, columns).stages[0]
    habits = framework_habits("deepspeed")
    assert found.buffers_bytes >= 2 * habits.max_live_parameters
    assert found.buffers_bytes - 2 * habits.max_live_parameters < 5e9 + 4 * model.num_layers * 4e9 / 8


def test_each_group_of_a_rank_has_a_communicator():
    training = training_of()
    for keys, number in (
        ({}, 0.0),
        ({"dp": 8}, 1.0),
        ({"tp": 2, "dp": 4}, 3.0),
        ({"tp": 2, "pp": 2, "dp": 2}, 5.0),
        ({"pp": 4}, 2.0),
    ):
        assert float(communicators(columns_of(training, **keys))[0]) == number
    cluster = cluster_of(1, 8, device=device(communicator_bytes=1e8))
    found = estimate_layout(MODEL, cluster, training, columns_of(training, tp=2, dp=4))
    assert found.stages[0].overhead_bytes == pytest.approx(1e9 + 3e8)


def beside_workspaces(training, **pins):
    """Buffers of an unsharded stage beside workspaces, in bytes a parameter."""
    columns = columns_of(training, **{"zero_stage": 0, **pins})
    habits, cluster = framework_habits(training.framework), cluster_of(1, pins["dp"])
    (stage,) = estimate_layout(MODEL, cluster, training, columns).stages
    workspaces = workspace_bytes(MODEL, cluster.device, habits)
    workspaces += dummy_gradient_bytes(MODEL, training, habits, columns).item()
    each = 4.0 if habits.holds_fp32_weights or training.precision == "fp32" else 2.0
    return (stage.buffers_bytes - workspaces) * each / stage.weights_bytes


@pytest.mark.parametrize(
    ("framework", "precision", "dp", "micro", "each"),
    [
        ("fsdp2", "bf16", 2, 32, 2),  # a single microbatch: gradients come as activations go
        ("fsdp2", "bf16", 2, 8, 2 + 4),
        ("fsdp1", "bf16", 2, 8, 2 + 4),
        ("fsdp2", "fp32", 2, 8, 4),
        ("fsdp2", "bf16", 1, 8, 2),
        ("megatron-core", "bf16", 2, 8, 0),
    ],
)
def test_torch_replicas_hold_casts_of_fp32_weights_and_buckets_of_gradients(framework, precision, dp, micro, each):
    training = training_of(framework=framework, precision=precision)
    assert beside_workspaces(training, dp=dp, micro_batch_size=micro) == pytest.approx(each)


def test_torch_on_one_device_shards_nothing_whatever_its_stage():
    training = training_of(framework="fsdp2")
    assert beside_workspaces(training, dp=1, micro_batch_size=8, zero_stage=3) == pytest.approx(2)


@pytest.mark.parametrize(
    ("framework", "kind", "blocks"),
    [
        ("megatron-core", "p2p", 2),
        ("megatron-core", "a2a", 2),
        ("megatron-core", "all_gather", 8),
        ("fsdp2", "all_gather", 6),
    ],
)
def test_gathered_keys_and_values_are_held_whole(framework, kind, blocks):
    """Four ranks: a ring holds two blocks, a gather all four and as many gradients, torch's ring of gradients two."""
    training = training_of(framework=framework, cp_comm_type=kind)
    columns = LayoutColumns.from_layouts([draft_layout(LayoutPins(cp=4), MODEL, training, 4).layout])
    block = 2.0 * training.seq_len / 4 * 2 * MODEL.num_kv_heads * MODEL.head_dim
    assert context_bytes(MODEL, training, framework_habits(framework), columns)[0] == blocks * block
