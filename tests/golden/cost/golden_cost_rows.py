"""Rows of the golden tables as inputs of the cost model."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpdpdash.cluster.catalogue import default_cluster
from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.estimate import estimate_layout
from tpdpdash.cost.result import Estimate
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.layout.resolve import draft_layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

FOLDER = Path(__file__).parent
Row = Mapping[str, str]


def rows_of(name: str) -> list[dict[str, str]]:
    """All rows of one table."""
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def count(row: Row, key: str, default: int = 0) -> int:
    """A whole number; empty = default."""
    return int(row[key]) if row.get(key) else default


def gpt(num_layers: int, hidden_size: int, heads: int, vocab_size: int = 51200, seq_len: int = 2048) -> ModelSpec:
    """GPT as Megatron trains it: f = 4h, layer norms, biases, a learned position table, a tied head."""
    return ModelSpec(
        name="GPT",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_attention_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden_size // heads,
        ffn_hidden_size=4 * hidden_size,
        vocab_size=vocab_size,
        gated_mlp=False,
        tied_embeddings=True,
        position_embedding_size=seq_len,
        norm="layernorm",
        qkv_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
    )


def megatron_2022(row: Row) -> Training:
    """Training of Korthikanti 2022: fp16, dropout, attention that writes its scores, fp32 main gradients."""
    return Training(
        seq_len=count(row, "seq_len"),
        global_batch_size=count(row, "global_batch"),
        precision="fp16",
        framework="megatron-2022",
        attention="naive",
        dropout=0.1,
    )


def priced(model: ModelSpec, cluster: ClusterSpec, training: Training, **pins: Any) -> Estimate:
    """The estimate of the layout that pins describe on a whole cluster."""
    layout = draft_layout(LayoutPins(**pins), model, training, cluster.world_size).layout
    return estimate_layout(model, cluster, training, LayoutColumns.from_layouts([layout]))


def priced_2022(row: Row) -> Estimate:
    """One run or figure of Korthikanti 2022, on A100 in nodes of eight."""
    pp = count(row, "pp")
    cluster = default_cluster("A100-SXM4-80GB", count(row, "tp") * pp // 8)
    return priced(
        gpt(count(row, "num_layers"), count(row, "hidden"), count(row, "num_heads")),
        cluster,
        megatron_2022(row),
        tp=count(row, "tp"),
        pp=pp,
        num_model_chunks=count(row, "vpp", 1),
        micro_batch_size=count(row, "micro_batch"),
        zero_stage=0,
        sequence_parallel=row["sequence_parallel"] == "1",
        recompute=row["recompute"],
    )
