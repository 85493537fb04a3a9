"""Seconds of one optimizer step: stage times, pipeline, data parallel messages, optimizer. Parts add up to the step."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.arrays import Floats, column, of_rows
from tpdpdash.cost.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.layer import EndSeconds, ends_s, layer_s
from tpdpdash.cost.memory import (
    StageParameters,
    recomputed_layers,
    shard_sizes,
    stage_parameters,
    tokens_per_microbatch,
)
from tpdpdash.cost.operators import DeviceRates, device_rates, traffic_s
from tpdpdash.cost.parameters import vocab_rows
from tpdpdash.cost.passes import LayerPasses, Links, PassSeconds, layer_passes
from tpdpdash.cost.stages import StageKinds
from tpdpdash.cost.states import sharded, state_bytes
from tpdpdash.cost.traffic import data_s, exposed_hops_s, layout_links, stage_hop_s, tied_embedding_s
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.model.spec import ModelSpec
from tpdpdash.schedule.closed_form import pipeline_seconds
from tpdpdash.training import Training

HOST_LINK_BYTES_PER_S = 25e9
"""PCIe 4 x16 as copies reach it: offloaded optimizer states read gradients from, and return weights to, the device."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepSeconds:
    """Exposed seconds of one step on the critical stage, each (n,)."""

    compute_s: Floats
    """Forward and backward of all microbatches on the critical stage, host time included."""
    recompute_s: Floats
    """What backward computes again."""
    tp_s: Floats
    """Tensor parallel messages, those of recompute included."""
    cp_s: Floats
    """Context parallel messages."""
    ep_s: Floats
    """Expert parallel messages."""
    pp_s: Floats
    """Messages between stages, and the tied embedding's gradients."""
    bubble_s: Floats
    """The critical stage's idle time."""
    dp_s: Floats
    """Data parallel messages: gradients and weights."""
    optimizer_s: Floats
    """Optimizer update, and the step's host time."""

    @property
    def step_s(self) -> Floats:
        """The step: the sum of its parts, in their order."""
        total = self.compute_s
        for field in fields(self)[1:]:
            total = total + getattr(self, field.name)
        return total


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageSeconds:
    """One microbatch on each stage [s], messages included, each (n, stages)."""

    forward_s: Floats
    """Forward passes of all chunks."""
    backward_s: Floats
    """Backward passes, recompute included."""
    data_per_microbatch_s: Floats
    """Exposed data parallel messages of each microbatch, part of the passes."""
    data_per_step_s: Floats
    """Exposed data parallel messages once a step."""
    tied_embedding_s: Floats
    """Adding up a tied embedding's gradients, once a step on the first and the last stage."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCost:
    """What a step costs, and the stage times that it came from."""

    parts: StepSeconds
    """By part."""
    stages: StageSeconds
    """By stage kind."""
    gemm_recompute_frac: Floats
    """Share of the layers' forward pass that is computed again, for HFU (n,)."""


_PARTS = ("compute_s", "recompute_s", "tp_s", "cp_s", "ep_s", "pp_s", "dp_s")
Parts = dict[str, "Floats"]


def step_cost(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
) -> StepCost:
    """The step of n layouts whose stages are `kinds`.

    T = pipeline(forward, backward of each stage) + exposed data parallel messages + optimizer. The critical stage is
    the one with the longest microbatch; data parallel and optimizer time are those of the stage where they take
    longest, since all stages meet in the gradient norm.
    """
    rates = device_rates(cluster.device, training, habits.gemm_frac, habits.attention_frac)
    links = layout_links(cluster, columns)
    rows = vocab_rows(model, columns.tp, habits.name) + 0.0 * columns.tp
    held = stage_parameters(model, habits, columns, kinds)
    forward, backward = _stage_parts(model, cluster, training, habits, rates, columns, links, kinds, rows, held)
    data = data_s(habits, rates, columns, links, held, kinds, _total(forward), _total(backward))
    backward["dp_s"] = backward["dp_s"] + data.per_microbatch_s
    forward_s, backward_s = _total(forward), _total(backward)
    microbatches = columns.num_microbatches(training.global_batch_size)
    busy = np.where(kinds.exists, forward_s + backward_s, -1.0)
    critical = busy.argmax(axis=1)[:, None]
    whole = pipeline_seconds(
        schedule=columns.schedule,
        forward_s=kinds.spread(forward_s),
        backward_s=kinds.spread(backward_s),
        stage_mask=kinds.stage_exists,
        num_microbatches=microbatches,
        num_model_chunks=columns.num_model_chunks,
        group=columns.microbatch_group_size_per_vp_stage,
    )
    sums = {
        name: np.take_along_axis(forward[name] + backward[name], critical, axis=1)[:, 0] * microbatches
        for name in _PARTS
    }
    working = microbatches * np.take_along_axis(busy, critical, axis=1)[:, 0]
    once = np.where(columns.pp > 1, tied_embedding_s(model, cluster, rates, columns, links, rows), 0.0)
    parts = StepSeconds(
        **{**sums, "pp_s": sums["pp_s"] + once, "dp_s": sums["dp_s"] + data.per_step_s.max(axis=1)},
        bubble_s=np.maximum(whole - working, 0.0),
        optimizer_s=_optimizer_s(training, habits, rates, columns, held.dense, held.experts).max(axis=1)
        + habits.step_s,
    )
    share = recomputed_layers(columns, kinds.layers) * kinds.count
    return StepCost(
        parts=parts,
        stages=StageSeconds(
            forward_s=forward_s,
            backward_s=backward_s,
            data_per_microbatch_s=data.per_microbatch_s,
            data_per_step_s=data.per_step_s,
            tied_embedding_s=np.maximum(kinds.is_first, kinds.is_last) * column(once),
        ),
        gemm_recompute_frac=share.sum(axis=1) / model.num_layers,
    )


def _total(parts: Parts) -> Floats:
    """Sum of all parts, in a fixed order."""
    total = parts[_PARTS[0]]
    for name in _PARTS[1:]:
        total = total + parts[name]
    return total


def _stage_parts(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: Training,
    habits: FrameworkHabits,
    rates: DeviceRates,
    columns: LayoutColumns,
    links: Links,
    kinds: StageKinds,
    rows: Floats,
    held: StageParameters,
) -> tuple[Parts, Parts]:
    """(forward, backward) of one microbatch on each stage by part, each (n, stages)."""
    tokens = tokens_per_microbatch(training, columns)
    forward = {name: np.zeros_like(kinds.count) for name in _PARTS}
    backward = {name: np.zeros_like(kinds.count) for name in _PARTS}
    recomputed = recomputed_layers(columns, kinds.layers) / np.maximum(kinds.layers, 1.0)
    for moe, layers in ((False, kinds.dense_layers), (True, kinds.moe_layers)):
        if layers.any():
            passes = passes_of(model, cluster, training, habits, rates, columns, links, tokens, moe)
            _add_pass(forward, passes.forward, layers)
            _add_pass(backward, passes.backward, layers)
            _add_recompute(backward, passes.recompute, layers * recomputed)
    _add_ends(forward, backward, model, cluster, training, habits, columns, links, kinds, tokens, rows)
    hops = exposed_hops_s(habits, columns, stage_hop_s(model, cluster, habits, rates, columns, links, tokens))
    backward["compute_s"] = backward["compute_s"] + _accumulation_s(training, habits, rates, held)
    exists = kinds.exists
    for parts in (forward, backward):
        parts["pp_s"] = np.where(exists, hops[:, None], 0.0)
        parts["compute_s"] = np.where(exists, parts["compute_s"] + habits.microbatch_s / 2, 0.0)
    return forward, backward


def _accumulation_s(training: Training, habits: FrameworkHabits, rates: DeviceRates, held: StageParameters) -> Floats:
    """Adding 16-bit gradients to fp32 ones after each microbatch (n, stages): 2 + 4 + 4 bytes a parameter; 0 where a
    framework accumulates within the weight gradient's GEMM."""
    if not (habits.keeps_16bit_gradients and training.gradient_dtype == "fp32"):
        return np.zeros_like(held.dense)
    return np.asarray(traffic_s(10.0 * (held.dense + held.experts), rates))


def passes_of(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: Training,
    habits: FrameworkHabits,
    rates: DeviceRates,
    columns: LayoutColumns,
    links: Links,
    tokens: Floats,
    moe: bool,
) -> LayerPasses:
    """Passes of one layer over `tokens` of one microbatch, with their messages (n,)."""
    layer = layer_s(
        model,
        training,
        habits,
        rates,
        moe,
        tokens=tokens,
        tp=columns.tp,
        ep=columns.ep,
        etp=columns.etp,
        sequence_parallel=columns.sequence_parallel,
    )
    return layer_passes(model, cluster, habits, rates, columns, links, layer, tokens, moe)


def _add_pass(parts: Parts, each: PassSeconds, layers: Floats) -> None:
    for name in ("compute_s", "tp_s", "cp_s", "ep_s"):
        parts[name] = parts[name] + layers * getattr(each, name)[:, None]


def _add_recompute(parts: Parts, each: PassSeconds, layers: Floats) -> None:
    """Recompute is a part of its own; its messages count as messages."""
    parts["recompute_s"] = parts["recompute_s"] + layers * each.compute_s[:, None]
    for name in ("tp_s", "cp_s", "ep_s"):
        parts[name] = parts[name] + layers * getattr(each, name)[:, None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EndMessages:
    """TP messages of the first and the last stage besides their layers', one microbatch [s], each (n,)."""

    embedding_forward_s: Floats
    """The embedding's sum over the vocabulary's shards."""
    embedding_backward_s: Floats
    """Its gradient gathered, under sequence parallelism."""
    head_forward_s: Floats
    """The head's input gathered, under sequence parallelism."""
    head_backward_s: Floats
    """The gradient of the head's input summed; under sequence parallelism its input gathered again besides."""


def end_messages(
    model: ModelSpec, rates: DeviceRates, columns: LayoutColumns, links: Links, tokens: Floats
) -> EndMessages:
    """TP messages around the vocabulary-parallel embedding and head: s·b·h elements each."""
    states = rates.element_bytes * tokens * model.hidden_size
    gather, scatter, whole = (f(states, links.tp) for f in (all_gather_s, reduce_scatter_s, all_reduce_s))
    split = columns.sequence_parallel
    return EndMessages(
        embedding_forward_s=np.where(split, scatter, whole),
        embedding_backward_s=np.where(split, gather, 0.0),
        head_forward_s=np.where(split, gather, 0.0),
        head_backward_s=np.where(split, scatter + gather, whole),
    )


def _add_ends(
    forward: Parts,
    backward: Parts,
    model: ModelSpec,
    cluster: ClusterSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    links: Links,
    kinds: StageKinds,
    tokens: Floats,
    rows: Floats,
) -> None:
    """Embedding on the first stage, head and loss on the last, with their TP messages."""
    plain = replace(training, precision="bf16") if training.precision not in ("fp32", "fp16") else training
    rates = device_rates(cluster.device, plain, habits.gemm_frac)
    ends: EndSeconds = ends_s(
        model, habits, rates, tokens=tokens, tp=columns.tp, vocab_rows=rows, sequence_parallel=columns.sequence_parallel
    )
    sent = end_messages(model, rates, columns, links, tokens)
    added = (
        (forward, "compute_s", ends.embedding_forward_s, ends.head_forward_s),
        (backward, "compute_s", ends.embedding_backward_s, ends.head_backward_s),
        (forward, "tp_s", sent.embedding_forward_s, sent.head_forward_s),
        (backward, "tp_s", sent.embedding_backward_s, sent.head_backward_s),
    )
    for parts, name, first, last in added:
        parts[name] = (
            parts[name]
            + kinds.is_first * column(of_rows(first, tokens))
            + kinds.is_last * column(of_rows(last, tokens))
        )


def _optimizer_s(
    training: Training,
    habits: FrameworkHabits,
    rates: DeviceRates,
    columns: LayoutColumns,
    dense: Floats,
    experts: Floats,
) -> Floats:
    """Optimizer update of each stage (n, stages), memory-bound.

    On a rank's own share (1 / shard size from ZeRO-1): gradients read for the norm and for the update, states read and
    written, weights written; fp16 unscales and checks the gradients besides. The whole gradient buffer is zeroed. With
    states in host memory gradients and weights cross the host link.
    """
    each = state_bytes(training, habits)
    dense_size, expert_size = (size[:, None] for size in shard_sizes(columns))
    zero = columns.zero_stage[:, None] >= 1
    unscale = 2 * each.gradients if training.precision == "fp16" else 0.0
    per_parameter = (
        2 * each.gradients + 2 * each.optimizer + (2 if habits.holds_fp32_weights else 1) * each.weights + unscale
    )
    own = sharded(1.0, dense, zero, dense_size) + sharded(1.0, experts, zero, expert_size)
    zeroed = each.gradients * own if habits.holds_fp32_weights else each.gradients * (dense + experts)
    on_device = traffic_s(per_parameter * own + zeroed, rates)
    over_host = (each.gradients + each.weights) * own / HOST_LINK_BYTES_PER_S
    return np.where(columns.offload_optimizer[:, None], over_host, on_device)
