"""Figures of our own estimates, kept so that no coefficient changes unseen. Not independent.

    python tests/golden/cost/self_computed.py

writes self_computed.json anew, after a change that is meant to move figures.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("self_computed.json")
sys.path.insert(0, str(Path(__file__).parents[2]))

from strategies import cluster_of, dense_model, moe_model  # noqa: E402

from tpdpdash.cost.estimate import estimate_layout  # noqa: E402
from tpdpdash.cost.figures import TIME_PARTS  # noqa: E402
from tpdpdash.cost.result import MEMORY_PARTS  # noqa: E402
from tpdpdash.layout.columns import LayoutColumns  # noqa: E402
from tpdpdash.layout.layout import LayoutPins  # noqa: E402
from tpdpdash.layout.resolve import draft_layout  # noqa: E402
from tpdpdash.training import FRAMEWORKS, Training  # noqa: E402

MLA = {"kv_lora_rank": 128, "q_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
LAYOUTS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "alone": (dense_model(), {"zero_stage": 0, "dp": 16}, {}),
    "tensor": (dense_model(), {"tp": 8, "recompute": "full"}, {}),
    "without sequence parallelism": (dense_model(), {"tp": 8, "sequence_parallel": False}, {"compiled": False}),
    "pipeline": (dense_model(tied_embeddings=True), {"pp": 4, "recompute": "selective"}, {}),
    "interleaved": (dense_model(), {"tp": 2, "pp": 4, "num_model_chunks": 2, "overlap_tp": True}, {}),
    "context": (dense_model(), {"cp": 4, "tp": 2}, {"seq_len": 8192}),
    "experts": (moe_model(shared_expert_ffn_hidden_size=512, **MLA), {"ep": 8, "tp": 2, "etp": 1}, {}),
    "experts beside computation": (
        moe_model(mlp_bias=True),
        {"ep": 16, "recompute": "selective", "overlap_ep": True},
        {"cuda_graphs": "modules", "expert_load_cv": 0.3, "precision": "bf16"},
    ),
    "experts in one graph": (moe_model(mlp_bias=True), {"ep": 4}, {"cuda_graphs": "step", "expert_load_cv": 0.0}),
    "deterministic": (dense_model(), {"tp": 2, "pp": 2}, {"deterministic": True, "fused_accumulation": False}),
    "waiting launches": (dense_model(vocab_size=50257), {"tp": 2, "pp": 2}, {"launch_blocking": True}),
    "zero 3": (dense_model(), {"zero_stage": 3, "dp_shard_size": 8}, {}),
    "old": (
        dense_model(gated_mlp=False, norm="layernorm"),
        {"tp": 2},
        {"attention": "naive", "dropout": 0.1, "precision": "fp16", "gradient_dtype": "fp16"},
    ),
}


def figures(framework: str, name: str) -> dict[str, float]:
    """Parts of the step and of the first and last stage's memory."""
    model, pins, given = LAYOUTS[name]
    cluster = cluster_of(2)
    training = Training(**{"seq_len": 1024, "global_batch_size": 64, "framework": framework, **given})
    layout = draft_layout(LayoutPins(**pins), model, training, cluster.world_size).layout
    found = estimate_layout(model, cluster, training, LayoutColumns.from_layouts([layout]))
    stages = {"first": found.stages[0], "last": found.stages[-1]}
    memory = {f"{where} {part}": getattr(stage, part) for where, stage in stages.items() for part in MEMORY_PARTS}
    return {**{part: getattr(found.time, part) for part in TIME_PARTS}, **memory, "hfu": found.throughput.hfu}


def all_figures() -> dict[str, dict[str, dict[str, float]]]:
    """Every framework under every layout, rounded to nine digits."""
    return {
        framework: {name: {k: float(f"{v:.9g}") for k, v in figures(framework, name).items()} for name in LAYOUTS}
        for framework in FRAMEWORKS
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(all_figures(), indent=1) + "\n", encoding="utf-8")
