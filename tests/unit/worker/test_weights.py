"""Weights: declared as the model room counts them, sliced from one start value, held in flat buffers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tpdpdash.layout.flat_buffers import ALIGNMENT
from tpdpdash.model.counts import parameter_counts
from tpdpdash.model.spec import ModelSpec
from tpdpdash.worker.weights import FlatWeights, Weight, stage_weights, start_value

CPU = torch.device("cpu")
MODEL = ModelSpec(
    name="tiny",
    num_layers=3,
    hidden_size=32,
    num_attention_heads=4,
    num_kv_heads=2,
    head_dim=16,
    ffn_hidden_size=48,
    vocab_size=64,
)


@pytest.mark.parametrize(
    "changes",
    [{}, {"tied_embeddings": True}, {"qkv_bias": True}, {"qk_norm": "head"}, {"num_kv_heads": 4, "head_dim": 8}],
    ids=str,
)
def test_declared_weights_are_the_models_parameters(changes: dict[str, object]) -> None:
    model = replace(MODEL, **changes)
    declared = stage_weights(model, range(model.num_layers), True, True, 1, False)
    assert sum(torch.Size(weight.shape).numel() for weight in declared) == parameter_counts(model).total


def test_stages_together_hold_every_weight_once() -> None:
    whole = stage_weights(MODEL, range(3), True, True, 1, False)
    stages = [
        stage_weights(MODEL, layers, first, not first, 1, False) for layers, first in (([0, 1], True), ([2], False))
    ]
    assert sorted(w.name for stage in stages for w in stage) == sorted(w.name for w in whole)


@pytest.mark.parametrize("weight", stage_weights(MODEL, [0], True, True, 2, False), ids=lambda w: w.name)
def test_shards_put_together_are_the_whole_start_value(weight: Weight) -> None:
    whole = start_value(weight, 7, 1, 0, CPU)
    shards = [start_value(weight, 7, 2, rank, CPU) for rank in range(2)]
    together = shards[0] if weight.shard_dim is None else torch.cat(shards, dim=weight.shard_dim)
    assert torch.equal(together, whole)


def test_different_names_and_seeds_start_differently() -> None:
    one, other = (Weight(name=name, shape=(8, 8), std=1.0) for name in ("a", "b"))
    assert not torch.equal(start_value(one, 7, 1, 0, CPU), start_value(other, 7, 1, 0, CPU))
    assert not torch.equal(start_value(one, 7, 1, 0, CPU), start_value(one, 8, 1, 0, CPU))


def test_partial_weights_lead_and_are_the_norms_under_sequence_parallelism() -> None:
    declared = stage_weights(MODEL, [0], False, True, 2, True)
    partial = [weight.name for weight in declared if weight.is_partial]
    assert partial == [weight.name for weight in declared[: len(partial)]]
    assert len(partial) == 3
    assert all("norm" in name for name in partial)
    assert not any(weight.is_partial for weight in stage_weights(MODEL, [0], False, True, 2, False))


@pytest.mark.parametrize("gradient_dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_all_microbatches_land_in_the_flat_buffer(gradient_dtype: torch.dtype) -> None:
    weights = [Weight(name="a", shape=(3, 5)), Weight(name="b", shape=(7,), std=1.0)]
    flat = FlatWeights(weights, tp=1, dp=3, dtype=torch.float32, gradient_dtype=gradient_dtype, device=CPU)
    flat.initialise(weights, 7, 1, 0)
    assert flat.values.numel() % (3 * ALIGNMENT) == 0
    for _ in range(2):
        (2 * flat.parameters["a"].sum() + flat.parameters["b"].sum()).backward()
    assert flat.gradients.dtype == gradient_dtype
    assert flat.gradients.sum().item() == 2 * (2 * 15 + 7)
    assert flat.gradients[:15].tolist() == [4.0] * 15
    assert torch.equal(flat.values[ALIGNMENT : ALIGNMENT + 7], flat.parameters["b"].detach())
