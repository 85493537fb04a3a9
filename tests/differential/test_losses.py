"""Losses and weights of the built-in worker under every kind of layout equal a single process's.

One torchrun a world size runs all layouts of that size. Tolerance: 1e-5 of a loss of about 5.5 over 5 AdamW steps;
the difference is the order of fp32 sums. Adam hides the scale of a gradient, and losses hide the gradients of norms:
with sgd, where they show, the weights themselves are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tpdpdash.layout.groups import coordinates
from tpdpdash.layout.layout import Layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training
from tpdpdash.worker.weights import stage_weights

DRIVER = Path(__file__).with_name("losses_of_layouts.py")
TOLERANCE = 1e-5
MODEL = ModelSpec(
    name="tiny",
    num_layers=4,
    hidden_size=64,
    num_attention_heads=8,
    num_kv_heads=4,
    head_dim=8,
    ffn_hidden_size=96,
    vocab_size=256,
)
TRAINING = Training(seq_len=16, global_batch_size=8, precision="fp32", framework="builtin")
VARIANT = ModelSpec(
    name="qwen-like",
    num_layers=2,
    hidden_size=48,
    num_attention_heads=4,
    num_kv_heads=4,
    head_dim=16,
    ffn_hidden_size=64,
    vocab_size=128,
    tied_embeddings=True,
    qkv_bias=True,
    qk_norm="head",
)
"""head_dim ≠ hidden_size / heads, tied embeddings, biases and q/k norms: pp 1 only."""


def case(model: ModelSpec = MODEL, training: Training = TRAINING, **layout: Any) -> dict[str, Any]:
    """One entry of the driver's list."""
    pp = layout.get("pp", 1)
    even = tuple([model.num_layers // pp] * pp)
    defaults = {"schedule": "1f1b" if pp > 1 else "none", "layers_per_stage": even, "zero_stage": 0}
    layout = {**defaults, "micro_batch_size": 2, **layout}
    layout = {**layout, "dp_shard_size": layout.get("dp", 1), "etp": layout.get("tp", 1)}
    return {"model": asdict(model), "training": asdict(training), "layout": asdict(Layout(**layout))}


SGD = Training(seq_len=16, global_batch_size=8, precision="fp32", framework="builtin", optimizer="sgd")
NAIVE = Training(seq_len=16, global_batch_size=8, precision="fp32", framework="builtin", attention="naive")
SINGLE = {
    "reference": case(),
    "one sequence a microbatch": case(micro_batch_size=1),
    "naive attention": case(training=NAIVE),
    "full recompute": case(recompute="full"),
    "full recompute in blocks of two": case(recompute="full", recompute_num_layers=2),
    "full recompute of the first layer": case(recompute="full", recompute_num_layers=1, recompute_method="block"),
    "selective recompute": case(recompute="selective"),
    "variant": case(VARIANT),
    "sgd": case(training=SGD),
    "variant-sgd": case(VARIANT, SGD),
}
WORLD_2 = {
    "tp2": case(tp=2),
    "tp2 sequence parallel": case(tp=2, sequence_parallel=True),
    "tp2 sequence parallel, one sequence, recompute": case(
        tp=2, sequence_parallel=True, micro_batch_size=1, recompute="full"
    ),
    "dp2 zero 0": case(dp=2),
    "dp2 zero 1": case(dp=2, zero_stage=1),
    "pp2 1f1b": case(pp=2, micro_batch_size=1),
    "pp2 gpipe": case(pp=2, schedule="gpipe"),
    "pp2 uneven": case(pp=2, layers_per_stage=(1, 3)),
    "pp2 1f1b selective recompute": case(pp=2, recompute="selective"),
    "variant tp2": case(VARIANT, tp=2),
    "variant tp2 sequence parallel": case(VARIANT, tp=2, sequence_parallel=True),
    "variant dp2 zero 1": case(VARIANT, dp=2, zero_stage=1),
    "sgd tp2": case(training=SGD, tp=2, sequence_parallel=True),
    "sgd dp2 zero 1": case(training=SGD, dp=2, zero_stage=1),
    "sgd pp2": case(training=SGD, pp=2),
}
WORLD_4 = {
    "tp2 dp2": case(tp=2, dp=2),
    "tp2 dp2 sequence parallel zero 1": case(tp=2, dp=2, sequence_parallel=True, zero_stage=1),
    "tp2 pp2 gpipe sequence parallel": case(tp=2, pp=2, schedule="gpipe", sequence_parallel=True),
    "tp4 sequence parallel": case(tp=4, sequence_parallel=True),
    "pp4 1f1b": case(pp=4),
    "pp2 dp2 zero 1": case(pp=2, dp=2, zero_stage=1),
    "pp2 dp2, pipeline fastest": case(pp=2, dp=2, zero_stage=1, rank_order="pp-dp-tp"),
    "sgd tp2 dp2": case(training=SGD, tp=2, dp=2, zero_stage=1),
    "sgd tp2 dp2 sequence parallel": case(training=SGD, tp=2, dp=2, sequence_parallel=True),
    "variant-sgd tp4 sequence parallel": case(VARIANT, SGD, tp=4, sequence_parallel=True),
}
WORLD_8 = {
    "tp2 pp2 dp2 1f1b zero 0": case(tp=2, pp=2, dp=2, micro_batch_size=1),
    "tp2 pp2 dp2 gpipe zero 0": case(tp=2, pp=2, dp=2, schedule="gpipe"),
    "tp2 pp2 dp2 1f1b zero 1 sequence parallel": case(tp=2, pp=2, dp=2, zero_stage=1, sequence_parallel=True),
    "tp2 pp2 dp2 gpipe zero 1 uneven": case(
        tp=2, pp=2, dp=2, zero_stage=1, schedule="gpipe", layers_per_stage=(3, 1), sequence_parallel=True
    ),
    "tp2 pp2 dp2, replicas slowest": case(
        tp=2, pp=2, dp=2, zero_stage=1, sequence_parallel=True, rank_order="tp-cp-ep-pp-dp"
    ),
    "tp2 pp2 dp2, tp slowest": case(tp=2, pp=2, dp=2, zero_stage=1, rank_order="dp-pp-tp"),
    "sgd tp2 pp2 dp2": case(training=SGD, tp=2, pp=2, dp=2, sequence_parallel=True),
}
WORLDS = {1: SINGLE, 2: WORLD_2, 4: WORLD_4, 8: WORLD_8}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What every layout of one world size gave."""

    size: int
    cases: dict[str, dict[str, Any]]
    losses: dict[str, list[list[float]]]
    """By case: the curve of each rank of the last stage."""
    weights: list[dict[str, dict[str, torch.Tensor]]]
    """By rank and case: the rank's weights after the last step; sgd's cases only."""


def run_world(size: int, folder: Path) -> World:
    """One torchrun over all cases of a world size."""
    cases = folder / "cases.json"
    cases.write_text(json.dumps(WORLDS[size]))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    done = subprocess.run(
        [*launch, str(DRIVER), str(cases), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]
    losses = {name: [rank[name] for rank in ranks if rank[name] is not None] for name in WORLDS[size]}
    weights = [torch.load(folder / f"rank-{rank}.pt") for rank in range(size)]
    return World(size=size, cases=WORLDS[size], losses=losses, weights=weights)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A single process."""
    return run_world(1, tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module", params=[2, 4, 8])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Every layout of one world size."""
    return run_world(request.param, tmp_path_factory.mktemp(f"world-{request.param}"))


def reference_of(name: str) -> str:
    """The single process's case of the same model and optimizer."""
    kind = name.split()[0]
    return kind if kind in ("variant", "sgd", "variant-sgd") else "reference"


def whole_weights(world: World, name: str) -> dict[str, torch.Tensor]:
    """The weights of one case put together from the shards of replica 0, after a look that all replicas agree."""
    layout = Layout(**world.cases[name]["layout"])
    model = ModelSpec(**world.cases[name]["model"])
    declared = stage_weights(model, range(model.num_layers), True, True, layout.tp, layout.sequence_parallel)
    whole = {}
    for weight in declared:
        parts: dict[int, torch.Tensor] = {}
        for rank in range(world.size):
            part, at = world.weights[rank][name].get(weight.name), coordinates(layout, rank).tp
            if part is not None:
                assert torch.equal(parts.setdefault(at, part), part), (name, weight.name, rank)
        shards = [parts[at] for at in range(layout.tp)]
        if weight.shard_dim is None:
            assert all(torch.equal(shard, shards[0]) for shard in shards), (name, weight.name)
        whole[weight.name] = shards[0] if weight.shard_dim is None else torch.cat(shards, weight.shard_dim)
    return whole


def test_recompute_microbatch_size_and_attention_change_no_loss(single: World) -> None:
    for name in single.losses:
        if reference_of(name) == "reference":
            assert single.losses[name][0] == pytest.approx(single.losses["reference"][0], abs=TOLERANCE), name


def test_the_loss_falls(single: World) -> None:
    for name, (curve,) in single.losses.items():
        assert curve[-1] < curve[0] - 0.01, name


def test_losses_of_every_layout_equal_a_single_process(world: World, single: World) -> None:
    for name, curves in world.losses.items():
        layout = world.cases[name]["layout"]
        assert len(curves) == layout["tp"] * layout["dp"], name
        mean = [sum(step) / len(step) for step in zip(*curves, strict=True)]
        assert mean == pytest.approx(single.losses[reference_of(name)][0], abs=TOLERANCE), name


def test_ranks_of_one_replica_report_one_loss(world: World) -> None:
    for name, curves in world.losses.items():
        assert len({tuple(curve) for curve in curves}) <= world.cases[name]["layout"]["dp"], name


def test_every_weight_after_training_equals_a_single_processs(world: World, single: World) -> None:
    for name in world.weights[0]:
        ours, theirs = whole_weights(world, name), single.weights[0][reference_of(name)]
        for weight, value in ours.items():
            assert torch.allclose(value, theirs[weight], atol=1e-6, rtol=1e-6), (name, weight)
