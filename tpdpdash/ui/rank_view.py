"""What one rank of a layout holds: layers, heads, columns, sequences, and its slice of every weight."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pandas as pd

from tpdpdash.charts.pictures import Split
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.stage_parameters import shard_sizes, stage_parameters
from tpdpdash.cost.stages import stage_kinds
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.groups import coordinates
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.prediction import loss_units, mtp_layers, trained_model
from tpdpdash.layout.schedules import SCHEDULE_FACTS, part_of, parts_of_rank, ranks_of_ends
from tpdpdash.layout.stages import chunk_layers
from tpdpdash.model.counts import parameter_counts, prediction_parameters
from tpdpdash.model.spec import ModelSpec
from tpdpdash.text import t
from tpdpdash.training import Training
from tpdpdash.units import format_count, format_large


def held_layers(layout: Layout, stage: int, modules: int = 0) -> list[tuple[int, int]]:
    """(first, last) layer of each part of the model on one stage. modules: prediction modules behind the last one."""
    placement = SCHEDULE_FACTS[layout.schedule].placement
    chunks = chunk_layers(
        layout.layers_per_stage,
        layout.num_model_chunks,
        account_for_embedding=layout.account_for_embedding,
        account_for_loss=loss_units(layout.account_for_loss, modules),
        folded=placement == "fold",
    )
    sizes = {
        part_of(placement, layout.pp, rank, chunk): n for rank, own in enumerate(chunks) for chunk, n in enumerate(own)
    }
    begins = [0, *accumulate(sizes[part] for part in range(len(sizes)))]
    own = sorted(parts_of_rank(placement, layout.pp, stage, layout.num_model_chunks))
    return [(begins[part], begins[part + 1] - 1) for part in own if sizes[part]]


def _span(first: int, count: int) -> str:
    """ "16–31", or "5" for one."""
    return format_count(first) if count == 1 else f"{format_count(first)}–{format_count(first + count - 1)}"


def holdings(
    layout: Layout, model: ModelSpec, training: Training, rank: int, parameters: float, total: float
) -> list[tuple[str, str]]:
    """(what, how much of it) for one rank. `parameters`: held by it; `total`: of the whole model."""
    at = coordinates(layout, rank)
    per_replica = training.global_batch_size // layout.dp
    rows = [
        (t("Layers"), _layers_text(layout, at.pp, model.num_layers, mtp_layers(model, training))),
        (t("Attention"), _heads_text(model, layout.tp, at.tp)),
        *_mlp_rows(trained_model(model, training), layout, at.pp, at.tp, at.ep),
        (t("Data"), t(
            "sequences {span} of {total}, in {count} microbatches",
            span=_span(at.dp * per_replica, per_replica), total=format_count(training.global_batch_size),
            count=format_count(layout.num_microbatches(training.global_batch_size)),
        )),
        (t("Parameters"), t("{held} of {total}", held=format_large(parameters), total=format_large(total))),
        (t("Optimizer"), _optimizer_text(layout, model)),
    ]  # fmt: skip
    if layout.cp > 1:
        half = training.seq_len // (2 * layout.cp)
        spans = [_span(at.cp * half, half), _span((2 * layout.cp - 1 - at.cp) * half, half)]
        text = t("tokens {first} and {second} of {total}", first=spans[0], second=spans[1], total=training.seq_len)
        rows.insert(-2, (t("Sequence"), text))
    return rows


def _layers_text(layout: Layout, stage: int, num_layers: int, modules: int) -> str:
    spans = [_span(first, last - first + 1) for first, last in held_layers(layout, stage, modules)]
    firsts, lasts = ranks_of_ends(SCHEDULE_FACTS[layout.schedule].placement, layout.pp)
    extra = [t("embedding")] if stage in firsts else []
    extra += [t("multi-token prediction")] if stage in lasts and modules else []
    extra += [t("head and loss")] if stage in lasts else []
    text = t("{spans} of {total}", spans=", ".join(spans) or t("none"), total=num_layers)
    return f"{text}, {', '.join(extra)}" if extra else text


def _heads_text(model: ModelSpec, tp: int, index: int) -> str:
    heads = model.num_attention_heads // tp
    text = t("heads {span} of {total}", span=_span(index * heads, heads), total=model.num_attention_heads)
    if model.is_mla or model.num_kv_heads == model.num_attention_heads:
        return text
    # Above one KV head a rank they are divided; below, neighbours share a copy.
    kv = max(1, model.num_kv_heads // tp)
    first = index * model.num_kv_heads // tp
    return f"{text}, " + t("KV heads {span} of {total}", span=_span(first, kv), total=model.num_kv_heads)


def _mlp_rows(model: ModelSpec, layout: Layout, stage: int, index: int, expert_index: int) -> list[tuple[str, str]]:
    """What it holds of the MLPs of its layers: dense ones, routed experts, shared experts."""
    spans = held_layers(layout, stage, model.mtp_num_layers)
    layers = [layer for first, last in spans for layer in range(first, last + 1)]
    is_moe = {model.is_moe_layer(layer) for layer in layers}
    rows = []
    if False in is_moe or not layers:
        rows.append((t("MLP"), _columns_text(model, model.ffn_hidden_size, layout.tp, index)))
    if True in is_moe:
        experts = model.num_experts // layout.ep
        span = _span(expert_index * experts, experts)
        of = t("{span} of {total} in each MoE layer", span=span, total=format_count(model.num_experts))
        cut = t("; 1/{etp} of each", etp=layout.etp) if layout.etp > 1 else ""
        rows.append((t("Experts"), of + cut))
        if model.shared_expert_ffn_hidden_size:
            width = model.shared_expert_ffn_hidden_size
            rows.append((t("Shared experts"), _columns_text(model, width, layout.tp, index)))
    return rows


def _columns_text(model: ModelSpec, width: int, tp: int, index: int) -> str:
    columns = width // tp
    names = t("columns of W₁, W₃, rows of W₂") if model.gated_mlp else t("columns of W₁, rows of W₂")
    span = _span(index * columns, columns)
    return t("{span} of {total} ({names})", span=span, total=format_count(width), names=names)


def _optimizer_text(layout: Layout, model: ModelSpec) -> str:
    """What ZeRO leaves on this rank, by the sizes that the memory is computed with."""
    dense, experts = (int(size[0]) for size in shard_sizes(LayoutColumns.from_layouts([layout])))
    whole = t("all states of its parameters")
    if layout.zero_stage == 0:
        return whole
    part = t("1/{size} of its parameters' states", size=dense) if dense > 1 else whole
    if model.is_moe and experts != dense:
        of_experts = t("1/{size} of its experts'", size=experts) if experts > 1 else t("all of its experts'")
        part = f"{part}, {of_experts}"
    return t("{part} (ZeRO {stage})", part=part, stage=layout.zero_stage)


def rank_parameters(job: Job, layout: Layout, rank: int) -> tuple[float, float]:
    """(parameters on this rank, parameters of the model), the first before ZeRO and with padding."""
    columns = LayoutColumns.from_layouts([layout])
    model = trained_model(job.model, job.training)
    kinds = stage_kinds(model, columns).every_stage()
    held = stage_parameters(model, framework_habits(job.training.framework), columns, kinds)
    stage = coordinates(layout, rank).pp
    total = parameter_counts(model).total + model.mtp_num_layers * prediction_parameters(model).total
    return float((held.dense + held.experts)[0, stage]), float(total)


def holdings_table(rows: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """What and how much, as a table without a header."""
    return pd.DataFrame(rows, columns=[t("what"), t("how much")])


def weight_pictures(layout: Layout, model: ModelSpec, rank: int) -> list[Split]:
    """Its slice of every weight: columns of W₁ (and W₃), rows of W₂, heads."""
    index = coordinates(layout, rank).tp
    slices = [f"t{i}" for i in range(layout.tp)]
    heads = model.num_attention_heads // layout.tp
    up = t("W₁, W₃: columns") if model.gated_mlp else t("W₁: columns")
    down = t("W₂: rows")
    if model.is_moe:
        up, down = t("{what}, dense and shared", what=up), t("{what}, dense and shared", what=down)
    spans = [_span(i * heads, heads) for i in range(layout.tp)]
    return [
        Split(title=up, direction="columns", labels=slices, chosen=(index,)),
        Split(
            title=down,
            direction="rows",
            labels=slices if layout.tp <= 4 else [""] * layout.tp,
            chosen=(index,),
        ),
        Split(title=t("heads"), direction="columns", labels=spans, chosen=(index,)),
    ]
