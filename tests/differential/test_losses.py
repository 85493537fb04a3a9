"""Losses of the built-in worker under every kind of layout equal a single process's.

One torchrun a world size runs all layouts of that size. Tolerance: 1e-5 of a loss of about 5.5 over 5 AdamW steps;
the difference is the order of fp32 sums.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tpdpdash.layout.layout import Layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

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
TRAINING = Training(seq_len=32, global_batch_size=8, precision="fp32", framework="builtin")
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
    layout = {"schedule": "1f1b" if pp > 1 else "none", "layers_per_stage": even, "zero_stage": 0, **layout}
    layout = {**layout, "dp_shard_size": layout.get("dp", 1), "etp": layout.get("tp", 1)}
    return {"model": asdict(model), "training": asdict(training), "layout": asdict(Layout(**layout))}


SGD = Training(seq_len=32, global_batch_size=8, precision="fp32", framework="builtin", optimizer="sgd")
NAIVE = Training(seq_len=32, global_batch_size=8, precision="fp32", framework="builtin", attention="naive")
SINGLE = {
    "reference": case(),
    "two sequences a microbatch": case(micro_batch_size=2),
    "naive attention": case(training=NAIVE),
    "full recompute": case(recompute="full"),
    "full recompute in blocks of two": case(recompute="full", recompute_num_layers=2),
    "full recompute of the first layer": case(recompute="full", recompute_num_layers=1, recompute_method="block"),
    "selective recompute": case(recompute="selective"),
    "variant": case(VARIANT),
    "sgd": case(training=SGD),
}
WORLD_2 = {
    "tp2": case(tp=2),
    "tp2 sequence parallel": case(tp=2, sequence_parallel=True),
    "tp2 sequence parallel, two sequences, recompute": case(
        tp=2, sequence_parallel=True, micro_batch_size=2, recompute="full"
    ),
    "dp2 zero 0": case(dp=2),
    "dp2 zero 1": case(dp=2, zero_stage=1),
    "pp2 1f1b": case(pp=2),
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
}
WORLD_8 = {
    "tp2 pp2 dp2 1f1b zero 0": case(tp=2, pp=2, dp=2),
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


def run_world(world_size: int, folder: Path) -> dict[str, list[list[float]]]:
    """The loss curves that the last stage's ranks of each case report."""
    cases = folder / "cases.json"
    cases.write_text(json.dumps(WORLDS[world_size]))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    done = subprocess.run(
        [*launch, str(DRIVER), str(cases), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world_size)]
    return {name: [rank[name] for rank in ranks if rank[name] is not None] for name in WORLDS[world_size]}


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Loss curves of a single process."""
    return {name: curves[0] for name, curves in run_world(1, tmp_path_factory.mktemp("single")).items()}


@pytest.fixture(scope="module", params=[2, 4, 8])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """Loss curves of every layout of one world size."""
    return request.param, run_world(request.param, tmp_path_factory.mktemp(f"world-{request.param}"))


def reference_of(name: str, single: dict[str, list[float]]) -> list[float]:
    """The single process's curve of the same model and optimizer."""
    kind = name.split()[0]
    return single[kind if kind in ("variant", "sgd") else "reference"]


def test_recompute_microbatch_size_and_attention_change_no_loss(single: dict[str, list[float]]) -> None:
    for name in set(SINGLE) - {"variant", "sgd"}:
        assert single[name] == pytest.approx(single["reference"], abs=TOLERANCE), name


def test_the_loss_falls(single: dict[str, list[float]]) -> None:
    for name, curve in single.items():
        assert curve[-1] < curve[0] - 0.01, name


def test_losses_of_every_layout_equal_a_single_process(
    world: tuple[int, dict[str, list[list[float]]]], single: dict[str, list[float]]
) -> None:
    world_size, results = world
    for name, curves in results.items():
        layout = WORLDS[world_size][name]["layout"]
        assert len(curves) == layout["tp"] * layout["dp"], name
        mean = [sum(step) / len(step) for step in zip(*curves, strict=True)]
        assert mean == pytest.approx(reference_of(name, single), abs=TOLERANCE), name


def test_ranks_of_one_replica_report_one_loss(world: tuple[int, dict[str, list[list[float]]]]) -> None:
    world_size, results = world
    for name, curves in results.items():
        layout = WORLDS[world_size][name]["layout"]
        assert len({tuple(curve) for curve in curves}) <= layout["dp"], name
