"""Hypothesis strategies and small facts that tests of several rooms share."""

from __future__ import annotations

import itertools
from types import MappingProxyType
from typing import Any

from hypothesis import strategies as st

from tpdpdash.cluster.spec import ClusterSpec, DeviceSpec, FigureSource, LinkSpec
from tpdpdash.layout.grid import ORDER_NAMES
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.stages import even_stage_layers
from tpdpdash.layout.world import pipeline_faults
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

RANK_ORDERS = ["-".join(names) for names in itertools.permutations(ORDER_NAMES)]
MADE_UP = FigureSource(kind="assumed", source="made up for tests")


def dense_model(**changes: Any) -> ModelSpec:
    """A small Llama-like model: 8 layers, 16 heads, 8 KV heads."""
    facts: dict[str, Any] = {
        "name": "small",
        "num_layers": 8,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_kv_heads": 8,
        "head_dim": 64,
        "ffn_hidden_size": 4096,
        "vocab_size": 32000,
    }
    return ModelSpec(**facts | changes)


def moe_model(**changes: Any) -> ModelSpec:
    """The small model with 16 experts of which each token visits 2."""
    facts: dict[str, Any] = {"num_experts": 16, "num_experts_per_token": 2, "moe_ffn_hidden_size": 512}
    return dense_model(**facts | changes)


def training_of(**changes: Any) -> Training:
    """A step of 64 sequences of 1,024 tokens."""
    facts: dict[str, Any] = {"seq_len": 1024, "global_batch_size": 64}
    return Training(**facts | changes)


def device(**changes: Any) -> DeviceSpec:
    """A device of round figures that supports bf16 and fp16."""
    facts: dict[str, Any] = {
        "name": "round-80GB",
        "memory_bytes": 80e9,
        "usable_bytes": 78e9,
        "memory_bytes_per_s": 2e12,
        "peak_flops_per_s": MappingProxyType({"fp32": 1e14, "bf16": 3e14, "fp16": 3e14}),
        "power_w": 400.0,
        "gemm_efficiency": 0.9,
        "gemm_half_k": 900.0,
        "gemm_half_area": 1.5e6,
        "attention_efficiency": 0.6,
        "portable_attention_efficiency": 0.5,
        "memory_efficiency": 0.8,
        "launch_s": 5e-6,
        "overhead_bytes": 1e9,
        "communicator_bytes": 0.0,
        "host_bytes_per_s": 2.5e10,
        "cublas_workspace_bytes": 0.0,
        "te_workspace_bytes": 0.0,
    }
    return DeviceSpec(**facts | changes)


def cluster_of(nodes: int = 2, devices_per_node: int = 8, **changes: Any) -> ClusterSpec:
    """Nodes of round devices: 300 GB/s inside a node, 25 GB/s between nodes."""
    sources = dict.fromkeys(("bytes_per_s", "latency_s", "efficiency"), MADE_UP)
    scale_up = LinkSpec(name="inside", bytes_per_s=3e11, latency_s=3e-6, efficiency=0.8, sources=sources)
    network = LinkSpec(name="between", bytes_per_s=2.5e10, latency_s=1e-5, efficiency=0.8, sources=sources)
    facts: dict[str, Any] = {
        "device": device(),
        "nodes": nodes,
        "devices_per_node": devices_per_node,
        "scale_up": scale_up,
        "scale_up_domain_size": devices_per_node,
        "network": network,
    }
    return ClusterSpec(**facts | changes)


def layout_of(num_layers: int = 8, **keys: Any) -> Layout:
    """A layout with the Job's defaults for what is not given: schedule, shards and stages follow the degrees."""
    pp, dp, tp = keys.get("pp", 1), keys.get("dp", 1), keys.get("tp", 1)
    chunks = keys.get("num_model_chunks", 1)
    defaults: dict[str, Any] = {
        "etp": tp,
        "dp_shard_size": dp,
        "schedule": "none" if pp == 1 else "interleaved" if chunks > 1 else "1f1b",
        "microbatch_group_size_per_vp_stage": pp,
        "sequence_parallel": tp > 1,
        "layers_per_stage": even_stage_layers(num_layers, pp),
    }
    return Layout(**defaults | keys)


@st.composite
def layouts(draw: st.DrawFn, *, most_ranks: int = 256, orders: st.SearchStrategy[str] | None = None) -> Layout:
    """Layouts whose grids are legal: any degrees (also odd ones), any expert grid over the same ranks, any order;
    with pp not last only where dense and expert layers have the same pipelines."""
    degree = st.sampled_from([1, 1, 2, 2, 3, 4, 5, 8])
    tp, cp, dp, pp = (draw(degree) for _ in range(4))
    while tp * cp * dp * pp > most_ranks:
        tp, cp, dp, pp = dp, pp, 1, max(1, cp // 2)
    ranks = tp * cp * dp
    etp = draw(st.sampled_from([d for d in range(1, ranks + 1) if ranks % d == 0]))
    ep = draw(st.sampled_from([d for d in range(1, ranks // etp + 1) if (ranks // etp) % d == 0]))
    order = draw(orders or st.sampled_from(RANK_ORDERS))
    dense = {"tp": tp, "cp": cp, "ep": 1, "dp": dp, "pp": pp}
    expert = {"tp": etp, "cp": 1, "ep": ep, "dp": ranks // (etp * ep), "pp": pp}
    if pipeline_faults(order, dense, expert):
        order = "-".join([*(name for name in order.split("-") if name != "pp"), "pp"])
    extra = draw(st.integers(0, 9))
    return layout_of(pp + extra, tp=tp, cp=cp, dp=dp, pp=pp, etp=etp, ep=ep, rank_order=order)


@st.composite
def stage_times(
    draw: st.DrawFn, *, most_stages: int = 8, spread: float = 2.0, ratio: float | None = None
) -> tuple[list[float], list[float]]:
    """Forward and backward seconds of each stage, the slowest at most `spread` times the quickest; with `ratio` every
    backward takes that many times its forward."""
    stages = draw(st.integers(1, most_stages))
    seconds = st.floats(1.0, spread, allow_nan=False)
    forward = draw(st.lists(seconds, min_size=stages, max_size=stages))
    if ratio is not None:
        return forward, [ratio * f for f in forward]
    return forward, [2 * b for b in draw(st.lists(seconds, min_size=stages, max_size=stages))]


@st.composite
def interleavings(draw: st.DrawFn, pp: int) -> tuple[int, int, int]:
    """Microbatches, chunks and group size that Megatron allows for pp ≥ 2 stages."""
    chunks = draw(st.integers(2, 4))
    microbatches = draw(st.integers(pp, 4 * pp + 2))
    legal = [g for g in range(pp, microbatches + 1) if microbatches % g == 0 or microbatches % g >= pp]
    return microbatches, chunks, draw(st.sampled_from(legal))
