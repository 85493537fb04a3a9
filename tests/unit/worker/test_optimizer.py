"""The flat optimizer on one rank: torch's results, master weights, and fp16's loss scale."""

from __future__ import annotations

import pytest
import torch

from tpdpdash.layout.groups import coordinates
from tpdpdash.layout.layout import Layout
from tpdpdash.telemetry.probe import Probe
from tpdpdash.training import Optimizer
from tpdpdash.worker.collectives import TensorGroup
from tpdpdash.worker.groups import Groups
from tpdpdash.worker.optimizer import ShardedOptimizer
from tpdpdash.worker.update import (
    BETA_1,
    BETA_2,
    EPSILON,
    FIRST_LOSS_SCALE,
    GROWTH_INTERVAL,
    LEARNING_RATE,
    WEIGHT_DECAY,
)
from tpdpdash.worker.weights import FlatWeights, Weight

WEIGHTS = [Weight(name="a", shape=(16, 8), std=1.0)]


def optimizer_of(kind: Optimizer, dtype: torch.dtype) -> tuple[ShardedOptimizer, FlatWeights]:
    """One rank's optimizer over one matrix."""
    flat = FlatWeights(WEIGHTS, tp=1, dp=1, dtype=dtype, gradient_dtype=torch.float32, device=torch.device("cpu"))
    flat.initialise(WEIGHTS, 7, 1, 0)
    probe = Probe(None, rank=0, world_size=1)
    tp = TensorGroup(group=None, rank=0, size=1, sequence_parallel=False, probe=probe)
    groups = Groups(coordinates=coordinates(Layout(), 0), tp=None, pp=None, dp=None)
    optimizer = ShardedOptimizer(
        flat, kind=kind, state_dtype=torch.float32, zero_stage=1, groups=groups, tp=tp, probe=probe
    )
    return optimizer, flat


def gradient(step: int) -> torch.Tensor:
    """Some gradient of all weights."""
    return torch.randn(128, generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_updates_equal_torchs_own_optimizer(kind: Optimizer) -> None:
    optimizer, flat = optimizer_of(kind, torch.float32)
    parameter = torch.nn.Parameter(flat.values.clone())
    rate = LEARNING_RATE[kind]
    theirs: torch.optim.Optimizer = torch.optim.SGD([parameter], rate)
    if kind == "adamw":
        theirs = torch.optim.AdamW([parameter], rate, (BETA_1, BETA_2), EPSILON, WEIGHT_DECAY)
    for step in range(5):
        flat.gradients.copy_(gradient(step))
        parameter.grad = gradient(step)
        optimizer.step()
        theirs.step()
    torch.testing.assert_close(flat.values, parameter.detach(), atol=1e-6, rtol=1e-6)
    assert not flat.gradients.any()


def test_small_updates_are_not_lost_in_16_bit_weights() -> None:
    optimizer, flat = optimizer_of("sgd", torch.bfloat16)
    before = flat.values.float().clone()
    for _ in range(1000):
        flat.gradients.fill_(1e-3)  # one such step is below the spacing of bf16 numbers around 1
        optimizer.step()
    torch.testing.assert_close(before - flat.values.float(), torch.full((128,), 0.1), atol=0.02, rtol=0)


def test_fp16_skips_a_step_that_overflowed_and_halves_the_loss_scale() -> None:
    optimizer, flat = optimizer_of("adamw", torch.float16)
    before = flat.values.clone()
    flat.gradients.fill_(float("inf"))
    optimizer.step()
    assert optimizer.loss_scale.value == FIRST_LOSS_SCALE / 2
    assert torch.equal(flat.values, before)
    flat.gradients.fill_(1.0)
    optimizer.step()
    assert not torch.equal(flat.values, before)


def test_fp16_doubles_the_loss_scale_after_enough_good_steps() -> None:
    optimizer, _ = optimizer_of("sgd", torch.float16)
    for _ in range(GROWTH_INTERVAL):
        optimizer.step()
    assert optimizer.loss_scale.value == 2 * FIRST_LOSS_SCALE
