"""The words of people's tables: how a precision, a form of recompute and a way of sharding are written."""

from __future__ import annotations

import re

from tpdpdash.layout.layout import Recompute
from tpdpdash.training import RECOMPUTE_MODULES, Precision

PRECISIONS: dict[str, Precision] = {
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "mxfp8": "mxfp8",
    "fp8": "fp8",
    "float8": "fp8",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "16-mixed": "fp16",
    "tf32": "fp32",
    "fp32": "fp32",
    "float32": "fp32",
}
"""Words of a precision, narrowest products first: of several in a cell ("fp8 over bf16") that is what GEMMs run in."""
RECOMPUTES: dict[str, Recompute] = {
    **dict.fromkeys(("none", "no", "false", "off", "0"), "none"),
    **dict.fromkeys(("selective", "core_attn", "attention", "attn", *RECOMPUTE_MODULES), "selective"),
    **dict.fromkeys(("full", "uniform", "block", "yes", "true", "on", "1"), "full"),
}
ZERO_WORDS = {
    **{"shard_grad_op": 2, "no_shard": 0, "full_shard": 3, "hybrid_shard": 3, "distributed_optimizer": 1},
    **{"hsdp": 3, "fsdp": 3, "ddp": 0, "none": 0},
}
"""Words of sharding, more telling ones first: torch's ShardingStrategy, Megatron's option, what frameworks call it."""
HYBRID_WORDS = ("hsdp", "hybrid")
"""Shards inside a node, replicated over nodes."""
_ZERO_STAGE = re.compile(r"(?:zero|stage)[ _-]*(?:stage)?[ _-]*([0-3])")
_WORD = re.compile(r"[a-z0-9_]+")


def precision_of(cell: str) -> Precision | None:
    """The precision that a cell (in lower case) names, beside whatever else it says: "bf16-mixed", "fp8 (e4m3)"."""
    return PRECISIONS.get(cell) or next((kind for word, kind in PRECISIONS.items() if word in cell), None)


def recompute_of(cell: str) -> Recompute | None:
    """The form of recompute that a cell (in lower case) names: the first word that is one ("selective, mlp")."""
    return next((RECOMPUTES[word] for word in _WORD.findall(cell) if word in RECOMPUTES), None)


def zero_stage_of(cell: str) -> int | None:
    """The ZeRO stage that the words of a cell (in lower case) mean: fsdp, zero-3, "stage 2", shard_grad_op; None for a
    bare number."""
    stage = _ZERO_STAGE.search(cell)
    words = re.sub(r"[ -]", "_", cell)
    return int(stage[1]) if stage else next((zero for word, zero in ZERO_WORDS.items() if word in words), None)


def is_hybrid(cell: str) -> bool:
    """Whether the words of a cell (in lower case) mean HSDP."""
    return any(word in cell for word in HYBRID_WORDS)
