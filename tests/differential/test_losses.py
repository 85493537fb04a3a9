"""Losses and weights of the built-in worker under every kind of layout equal a single process's.

The ranks of a world size run all layouts of that size. Tolerance: 1e-5 of a loss of about 5.5 over 4 AdamW steps;
the difference is the order of fp32 sums. Adam hides the scale of a gradient, and losses hide the gradients of norms:
with sgd, where they show, the weights themselves are compared.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import RankJob, run_jobs

from tpdpdash.layout.groups import coordinates
from tpdpdash.layout.layout import Layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training
from tpdpdash.worker.weights import stage_weights

pytestmark = pytest.mark.timeout(600)
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
    layout = {"dp_shard_size": layout.get("dp", 1), "etp": layout.get("tp", 1), **layout}
    return {"model": asdict(model), "training": asdict(training), "layout": asdict(Layout(**layout))}


DEEP = ModelSpec(
    name="deep",
    num_layers=6,
    hidden_size=34,
    num_attention_heads=4,
    num_kv_heads=2,
    head_dim=16,
    ffn_hidden_size=50,
    vocab_size=126,
    qkv_bias=True,
    qk_norm="head",
)
"""Layers for uneven chunks; widths that four shards do not divide."""
SGD = Training(seq_len=16, global_batch_size=8, precision="fp32", framework="builtin", optimizer="sgd")
BF16 = replace(SGD, precision="bf16", gradient_dtype="fp32")
"""Gradients that autograd does not add up itself."""
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
    "deep-sgd": case(DEEP, SGD),
    "bf16-sgd": case(training=BF16),
}
INTERLEAVED = {"schedule": "interleaved", "num_model_chunks": 2}
ZB_V = {"schedule": "zb-v", "num_model_chunks": 2}
DUALPIPE_V = {"schedule": "dualpipe-v", "num_model_chunks": 2}
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
    "dp2 zero 2": case(dp=2, zero_stage=2),
    "sgd dp2 zero 2": case(training=SGD, dp=2, zero_stage=2, micro_batch_size=1),
    "dp2 zero 3": case(dp=2, zero_stage=3),
    "sgd dp2 zero 3": case(training=SGD, dp=2, zero_stage=3),
    "sgd dp2 zero 3, blocks of two recomputed": case(
        training=SGD, dp=2, zero_stage=3, recompute="full", recompute_num_layers=2
    ),
    "sgd dp2 zero 3 selective recompute": case(training=SGD, dp=2, zero_stage=3, recompute="selective"),
    "variant-sgd dp2 zero 3": case(VARIANT, SGD, dp=2, zero_stage=3),
    "bf16-sgd dp2 zero 3": case(training=BF16, dp=2, zero_stage=3),
    "pp2 interleaved": case(pp=2, **INTERLEAVED),
    "deep-sgd pp2 interleaved uneven": case(DEEP, SGD, pp=2, layers_per_stage=(4, 2), **INTERLEAVED),
    "sgd pp2 interleaved full recompute": case(training=SGD, pp=2, recompute="full", **INTERLEAVED),
    "sgd pp2 zb-1p": case(training=SGD, pp=2, schedule="zb-1p"),
    "deep-sgd pp2 zb-1p full recompute": case(DEEP, SGD, pp=2, schedule="zb-1p", recompute="full"),
    "sgd pp2 zb-1p selective recompute": case(training=SGD, pp=2, schedule="zb-1p", recompute="selective"),
    "bf16-sgd pp2 zb-1p": case(training=BF16, pp=2, schedule="zb-1p"),
    "deep-sgd pp2 zb-v uneven": case(DEEP, SGD, pp=2, **ZB_V, layers_per_stage=(4, 2)),
    "sgd pp2 zb-v full recompute": case(training=SGD, pp=2, **ZB_V, recompute="full"),
    "sgd pp2 dualpipe-v": case(training=SGD, pp=2, **DUALPIPE_V),
    "sgd pp2 dualpipe-v full recompute": case(training=SGD, pp=2, **DUALPIPE_V, recompute="full"),
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
    "sgd tp2 dp2 zero 3 sequence parallel": case(training=SGD, tp=2, dp=2, zero_stage=3, sequence_parallel=True),
    "deep-sgd dp4 zero 3": case(DEEP, SGD, dp=4, zero_stage=3),
    "sgd dp4 zero 3 in pairs": case(training=SGD, dp=4, zero_stage=3, dp_shard_size=2, micro_batch_size=1),
    "sgd dp4 zero 1 in pairs": case(training=SGD, dp=4, zero_stage=1, dp_shard_size=2),
    "sgd tp2 pp2 interleaved sequence parallel": case(training=SGD, tp=2, pp=2, sequence_parallel=True, **INTERLEAVED),
    "sgd tp2 pp2 zb-1p sequence parallel full recompute": case(
        training=SGD, tp=2, pp=2, schedule="zb-1p", sequence_parallel=True, recompute="full"
    ),
    "deep-sgd tp2 pp2 zb-v": case(DEEP, SGD, tp=2, pp=2, **ZB_V, layers_per_stage=(2, 4)),
    "sgd tp2 pp2 dualpipe-v sequence parallel": case(training=SGD, tp=2, pp=2, **DUALPIPE_V, sequence_parallel=True),
    "sgd pp2 dp2 interleaved zero 1": case(training=SGD, pp=2, dp=2, zero_stage=1, **INTERLEAVED),
    "sgd pp2 dp2 dualpipe-v zero 1": case(training=SGD, pp=2, dp=2, zero_stage=1, **DUALPIPE_V, micro_batch_size=1),
    "sgd pp4 zb-1p": case(training=SGD, pp=4, schedule="zb-1p"),
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
    "sgd tp2 pp2 dp2 interleaved zero 1": case(training=SGD, tp=2, pp=2, dp=2, zero_stage=1, **INTERLEAVED),
    "sgd tp2 pp2 dp2 zb-1p zero 1 sequence parallel": case(
        training=SGD, tp=2, pp=2, dp=2, zero_stage=1, schedule="zb-1p", sequence_parallel=True
    ),
    "sgd tp2 dp4 zero 3 in pairs": case(
        training=SGD, tp=2, dp=4, zero_stage=3, dp_shard_size=2, micro_batch_size=1, sequence_parallel=True
    ),
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
    messages: list[dict[str, dict[str, int]]]
    """By rank and case: collectives of the last step by the probe's phase and the function."""


def run_worlds(folder: Path) -> dict[int, World]:
    """All cases of every world size, the ranks of all forked from one process."""
    jobs = {}
    for size, cases in WORLDS.items():
        output = folder / f"world-{size}"
        output.mkdir()
        (output / "cases.json").write_text(json.dumps(cases))
        arguments = (str(output / "cases.json"), str(output))
        jobs[size] = RankJob(program=str(DRIVER), arguments=arguments, world_size=size, logs=str(output))
    codes = run_jobs(list(jobs.values()), timeout_s=550)
    for (size, job), ended in zip(jobs.items(), codes, strict=True):
        assert ended == [0] * size, job.stderr()
    return {size: read_world(size, folder / f"world-{size}") for size in jobs}


def read_world(size: int, folder: Path) -> World:
    """What the ranks of one world wrote."""
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]
    losses = {name: [rank[name] for rank in ranks if rank[name] is not None] for name in WORLDS[size]}
    weights = [torch.load(folder / f"rank-{rank}.pt") for rank in range(size)]
    messages = [json.loads((folder / f"messages-{rank}.json").read_text()) for rank in range(size)]
    return World(size=size, cases=WORLDS[size], losses=losses, weights=weights, messages=messages)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, World]:
    """Every layout of every world size."""
    return run_worlds(tmp_path_factory.mktemp("worlds"))


@pytest.fixture(scope="module")
def single(worlds: dict[int, World]) -> World:
    """A single process."""
    return worlds[1]


@pytest.fixture(scope="module", params=[2, 4, 8])
def world(request: pytest.FixtureRequest, worlds: dict[int, World]) -> World:
    """Every layout of one world size."""
    return worlds[request.param]


def reference_of(name: str) -> str:
    """The single process's case of the same model and optimizer."""
    kind = name.split()[0]
    return kind if kind in ("variant", "sgd", "variant-sgd", "deep-sgd", "bf16-sgd") else "reference"


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


def test_every_collective_is_told_as_tp_or_dp(world: World) -> None:
    for sent in world.messages:
        for name, calls in sent.items():
            degrees = {kind for kind in ("tp", "dp") if world.cases[name]["layout"][kind] > 1}
            assert {call.split()[0] for call in calls} == degrees, (name, calls)


def test_fully_sharded_weights_are_gathered_and_gradients_reduced_as_often_as_zero_says(world: World) -> None:
    """Groups of weights: one a layer, and the ends, which stay gathered from forward to backward."""
    for sent in world.messages:
        for name, calls in sent.items():
            layout, model = world.cases[name]["layout"], world.cases[name]["model"]
            layers, passes = model["num_layers"], 8 // (layout["micro_batch_size"] * layout["dp"])
            gathers = {2: layers + 1, 3: passes * (2 * layers + 1)}.get(layout["zero_stage"])
            if gathers is not None:
                told = (calls["dp all_gather_single"], calls["dp reduce_scatter_single"])
                assert told == (gathers, passes * (layers + 1)), name
                assert calls.get("dp all_reduce", 0) == (layout["dp_shard_size"] < layout["dp"]), name


def test_every_weight_after_training_equals_a_single_processs(world: World, single: World) -> None:
    for name in world.weights[0]:
        ours, theirs = whole_weights(world, name), single.weights[0][reference_of(name)]
        for weight, value in ours.items():
            spacing = 1e-6 if value.dtype == torch.float32 else torch.finfo(value.dtype).eps
            assert torch.allclose(value, theirs[weight], atol=1e-6, rtol=spacing), (name, weight)
