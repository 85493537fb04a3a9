"""Rows of a reference runs.csv as inputs of the cost model: what a published run says, and what it leaves to infer."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpdpdash.cluster.catalogue import default_cluster
from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.layout.layout import RECOMPUTES, SCHEDULES, Layout, LayoutPins
from tpdpdash.layout.resolve import draft_layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

Row = Mapping[str, str]
MEGATRON_OF_2021 = ("megatron-2022", "megatron-deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRun:
    """One published run."""

    source: str
    """Where it is from; releases of one project count as one source."""
    row: Row
    """The row as published."""
    model: ModelSpec
    """The architecture."""
    cluster: ClusterSpec
    """The hardware."""
    training: Training
    """The batch, precision and framework."""
    layout: Layout
    """The layout, completed by our defaults where the row is silent."""
    step_s: float
    """The measured step time."""


def read_runs(path: Path) -> Iterator[ReferenceRun]:
    """The complete rows that state a time."""
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            step_s = measured_step_s(row)
            if row["complete"] == "2" and step_s is not None:
                model, training = model_of(row), training_of(row)
                layout = draft_layout(pins_of(row), model, training, count(row, "num_gpus")).layout
                yield ReferenceRun(
                    source=source_of(row["source_id"]), row=row, model=model, cluster=cluster_of(row),
                    training=training, layout=layout, step_s=step_s,
                )  # fmt: skip


def count(row: Row, key: str, default: int = 0) -> int:
    """A whole number of a row; empty = default."""
    return int(float(row[key])) if row.get(key) else default


def source_of(source_id: str) -> str:
    """All releases of Megatron-Bridge are one source, all of DGX Cloud's another."""
    return next((family for family in ("mbridge-2", "dgxc") if source_id.startswith(family)), source_id)


def measured_step_s(row: Row) -> float | None:
    """The step time, printed or from tokens per second; None where neither is stated."""
    if row["step_time_s"]:
        return float(row["step_time_s"])
    if not row["tokens_per_sec_per_gpu"]:
        return None
    tokens = count(row, "global_batch") * count(row, "seq_len")
    return tokens / float(row["tokens_per_sec_per_gpu"]) / count(row, "num_gpus")


def model_of(row: Row) -> ModelSpec:
    """The architecture; plain MLPs go with layer norms, biases and a learned position table (GPT), gated ones
    without."""
    plain = row["gated_ffn"] == "0"
    h, a = count(row, "hidden"), count(row, "num_heads")
    moe = count(row, "num_experts") > 1
    expert = count(row, "moe_ffn_hidden", count(row, "ffn_hidden"))
    mla = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return ModelSpec(
        name=row["model_name"],
        num_layers=count(row, "num_layers"),
        hidden_size=h,
        num_attention_heads=a,
        num_kv_heads=count(row, "num_kv_heads", a),
        head_dim=count(row, "head_dim", h // a),
        ffn_hidden_size=count(row, "ffn_hidden", 4 * h),
        vocab_size=count(row, "vocab", 50257),
        gated_mlp=not plain,
        tied_embeddings=row["tied_embeddings"] == "1",
        position_embedding_size=count(row, "seq_len") if plain else 0,
        norm="layernorm" if plain else "rmsnorm",
        qkv_bias=plain,
        attention_output_bias=plain,
        mlp_bias=plain,
        num_experts=count(row, "num_experts") if moe else 0,
        num_experts_per_token=count(row, "top_k") if moe else 0,
        moe_ffn_hidden_size=expert if moe else 0,
        shared_expert_ffn_hidden_size=count(row, "shared_experts") * expert if moe else 0,
        first_k_dense_layers=count(row, "first_k_dense") if moe else 0,
        **{name: count(row, name) for name in mla},
    )


def cluster_of(row: Row) -> ClusterSpec:
    """The catalogue's device in nodes as stated."""
    devices, per_node = count(row, "num_gpus"), count(row, "gpus_per_node", 8)
    per_node = min(devices, per_node)
    return default_cluster(row["hardware"], -(-devices // per_node), per_node)


def training_of(row: Row) -> Training:
    """Batch, precision, framework. Megatron of 2021-22 trained with dropout; fp16 runs of that time kept fp16
    gradients."""
    framework, precision = row["framework_family"], row["precision"] or "bf16"
    gradient = row["gradient_dtype"]
    if not gradient:
        gradient = "fp16" if precision == "fp16" and "deepspeed" in framework else "fp32"
    return Training(
        seq_len=count(row, "seq_len"),
        global_batch_size=count(row, "global_batch"),
        precision=precision,
        gradient_dtype="bf16" if framework == "internevo" else gradient,
        framework=framework,
        attention="naive" if row["attention_impl"] == "naive" else "flash",
        compiled=row["compiled"] != "0",
        dropout=0.1 if framework in MEGATRON_OF_2021 else 0.0,
    )  # type: ignore[arg-type]


def pins_of(row: Row) -> LayoutPins:
    """The layout as far as it is stated. Experts are not split over TP unless said; HSDP shards over a node."""
    zero = {"": 1, "hsdp": 3, "fsdp": 3}.get(row["zero_stage_or_fsdp"])
    chunks, pp = count(row, "vpp", 1) or 1, count(row, "pp", 1) or 1
    given: dict[str, object] = {
        name: count(row, key, 1) or 1
        for name, key in (("tp", "tp"), ("cp", "cp"), ("ep", "ep"), ("micro_batch_size", "micro_batch"))
    }
    given |= {"pp": pp, "num_model_chunks": chunks}
    given["zero_stage"] = int(row["zero_stage_or_fsdp"]) if zero is None else zero
    given["recompute"] = row["recompute"] if row["recompute"] in RECOMPUTES else "none"
    if row["sequence_parallel"]:
        given["sequence_parallel"] = row["sequence_parallel"] == "1"
    if count(row, "ep", 1) > 1:
        given["etp"] = 1
    if row["async_tp"] == "1":
        given["overlap_tp"] = True
    shard = count(row, "dp_shard_size") or (
        count(row, "gpus_per_node", 8) if row["zero_stage_or_fsdp"] == "hsdp" else 0
    )
    if shard:
        given["dp_shard_size"] = shard
    if row["schedule"] in SCHEDULES and (row["schedule"] == "interleaved") == (chunks > 1) and pp > 1:
        given["schedule"] = row["schedule"]
    return LayoutPins(**given)  # type: ignore[arg-type]
