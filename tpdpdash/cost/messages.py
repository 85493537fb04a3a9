"""Every message of one rank in a step: group, bytes, how often, over which link, how long and how much of it shows.

The same formulas as the step's: the exposed seconds of a rank on the critical stage add up to its parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tpdpdash.cost.arrays import Floats
from tpdpdash.cost.collectives import GroupLink
from tpdpdash.cost.frameworks import FrameworkHabits, framework_habits
from tpdpdash.cost.memory import StageParameters, recomputed_layers, stage_parameters, tokens_per_microbatch
from tpdpdash.cost.operators import DeviceRates, device_rates
from tpdpdash.cost.parameters import kv_heads_per_rank, vocab_rows
from tpdpdash.cost.passes import Links, PassSeconds, pairs_of, ring_s, unhidden_expert_s, unhidden_tp_s
from tpdpdash.cost.result import Estimate
from tpdpdash.cost.stages import StageKinds, stage_kinds
from tpdpdash.cost.step import end_messages, passes_of
from tpdpdash.cost.traffic import (
    exposed_hops_s,
    gradient_reduction_s,
    layout_links,
    stage_hop_s,
    tied_embedding_s,
    weight_gather_s,
)
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.groups import coordinates


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One kind of message of one rank in a step."""

    group: str
    """tp, cp, ep, pp or dp."""
    what: str
    """The collective."""
    when: str
    """The pass that it belongs to."""
    bytes_each: float
    """Size of the message: of the whole tensor that is gathered or reduced, or what one rank sends."""
    times: float
    """How often in a step."""
    link: str
    """The slowest link that the group crosses."""
    seconds: float
    """Duration of all of them in a step."""
    exposed_s: float
    """The part of it that the step waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _One:
    """One layout on one stage, with all that the formulas take."""

    job: Job
    columns: LayoutColumns
    kinds: StageKinds
    habits: FrameworkHabits
    rates: DeviceRates
    links: Links
    held: StageParameters
    tokens: Floats
    stage: int
    microbatches: int

    def link_name(self, link: GroupLink) -> str:
        return self.job.cluster.network.name if link.crosses[0] else self.job.cluster.scale_up.name

    def message(self, link: GroupLink, **given: float | str) -> Message:
        return Message(link=self.link_name(link), **given)  # type: ignore[arg-type]


def collectives_of(job: Job, estimate: Estimate, rank: int = 0) -> list[Message]:
    """The messages of one rank of the estimated layout in one step; groups of one rank send nothing."""
    stage = coordinates(estimate.layout, rank).pp
    columns = LayoutColumns.from_layouts([estimate.layout])
    habits = framework_habits(job.training.framework)
    kinds = stage_kinds(job.model, columns.stage_layers, columns.pp, columns.num_model_chunks).every_stage()
    one = _One(
        job=job,
        columns=columns,
        kinds=kinds,
        habits=habits,
        rates=device_rates(job.cluster.device, job.training, habits.gemm_frac, habits.attention_frac),
        links=layout_links(job.cluster, columns),
        held=stage_parameters(job.model, habits, columns, kinds),
        tokens=tokens_per_microbatch(job.training, columns),
        stage=stage,
        microbatches=estimate.num_microbatches,
    )
    found = [*_layer_messages(one), *_end_messages(one), *_stage_messages(one), *_data_messages(one, estimate)]
    return [message for message in found if message.times > 0 and message.seconds > 0]


def _layer_messages(one: _One) -> Iterator[Message]:
    """TP, CP and EP messages of the stage's layers, forward, backward and recompute."""
    recomputed = float(recomputed_layers(one.columns, one.kinds.layers)[0, one.stage])
    share = recomputed / max(float(one.kinds.layers[0, one.stage]), 1.0)
    for moe, layers in ((False, one.kinds.dense_layers), (True, one.kinds.moe_layers)):
        count = float(layers[0, one.stage])
        if not count:
            continue
        model, cluster, training = one.job.model, one.job.cluster, one.job.training
        passes = passes_of(model, cluster, training, one.habits, one.rates, one.columns, one.links, one.tokens, moe)
        for when, each, times in (
            ("forward", passes.forward, count),
            ("backward", passes.backward, count),
            ("recompute", passes.recompute, count * share),
        ):
            if each.total_s[0] > each.compute_s[0]:
                yield from _of_pass(one, when, each, times * one.microbatches, moe)


def _of_pass(one: _One, when: str, each: PassSeconds, times: float, moe: bool) -> Iterator[Message]:
    """The messages of one pass over one layer, `times` a step."""
    model, rates, columns, links = one.job.model, one.rates, one.columns, one.links
    states = rates.element_bytes * float(one.tokens[0]) * model.hidden_size
    backward = when == "backward"
    unhidden = unhidden_tp_s(model, rates, columns, links, one.tokens, moe, backward=backward)
    tp = float(np.ravel(unhidden)[0]) * times
    split = bool(columns.sequence_parallel[0])
    what = "all-gather, reduce-scatter" if split else "all-reduce"
    number = pairs_of(model, moe) * ((3 if backward else 2) if split else 1)
    yield one.message(
        links.tp, group="tp", what=what, when=when, bytes_each=states, times=number * times, seconds=tp,
        exposed_s=float(each.tp_s[0]) * times,
    )  # fmt: skip
    passed = (2 if backward else 1) * (float(columns.cp[0]) - 1)
    tp_size = float(columns.tp[0])
    heads = (
        model.num_attention_heads / tp_size if model.is_mla else float(kv_heads_per_rank(model.num_kv_heads, tp_size))
    )
    block = rates.element_bytes * float(one.tokens[0]) * heads * (model.query_head_dim + model.value_head_dim)
    ring = (2 if backward else 1) * float(np.ravel(ring_s(model, rates, columns, links, one.tokens))[0]) * times
    yield one.message(
        links.cp, group="cp", what="ring exchange", when=when, bytes_each=block, times=passed * times, seconds=ring,
        exposed_s=float(each.cp_s[0]) * times,
    )  # fmt: skip
    if moe:
        sent = states * model.num_experts_per_token / tp_size
        whole = float(np.ravel(unhidden_expert_s(model, one.job.cluster, rates, columns, links, one.tokens))[0]) * times
        yield one.message(
            links.ep, group="ep", what="all-to-all", when=when, bytes_each=sent, times=2 * times, seconds=whole,
            exposed_s=float(each.ep_s[0]) * times,
        )  # fmt: skip


def _end_messages(one: _One) -> Iterator[Message]:
    """TP messages around the embedding and the head."""
    model, columns = one.job.model, one.columns
    sent = end_messages(model, one.rates, columns, one.links, one.tokens)
    states = one.rates.element_bytes * float(one.tokens[0]) * model.hidden_size
    split = bool(columns.sequence_parallel[0])
    parts = (
        (one.stage == 0, "embedding", "forward", sent.embedding_forward_s, 1),
        (one.stage == 0, "embedding", "backward", sent.embedding_backward_s, 1),
        (one.stage == columns.pp[0] - 1, "head", "forward", sent.head_forward_s, 1),
        (one.stage == columns.pp[0] - 1, "head", "backward", sent.head_backward_s, 2 if split else 1),
    )
    for here, what, when, seconds, number in parts:
        if here:
            whole = float(seconds[0]) * one.microbatches
            kind = "all-gather, reduce-scatter" if split else "all-reduce"
            yield one.message(
                one.links.tp, group="tp", what=f"{kind} ({what})", when=when, bytes_each=states,
                times=number * one.microbatches, seconds=whole, exposed_s=whole,
            )  # fmt: skip


def _stage_messages(one: _One) -> Iterator[Message]:
    """Activations and gradients between stages, and the tied embedding's gradients."""
    model, cluster, columns = one.job.model, one.job.cluster, one.columns
    hop = stage_hop_s(model, cluster, one.habits, one.rates, columns, one.links, one.tokens)
    exposed = float(exposed_hops_s(one.habits, columns, hop)[0]) * one.microbatches
    split = columns.tp[0] if columns.sequence_parallel[0] or one.habits.scatters_p2p else 1.0
    states = one.rates.element_bytes * float(one.tokens[0]) * model.hidden_size / float(split)
    times = float(columns.num_model_chunks[0]) * one.microbatches
    for what, when in (("send and receive activations", "forward"), ("send and receive gradients", "backward")):
        yield one.message(
            one.links.pp, group="pp", what=what, when=when, bytes_each=states, times=times,
            seconds=float(hop[0]) * times, exposed_s=exposed,
        )  # fmt: skip
    if columns.pp[0] > 1 and one.stage in (0, columns.pp[0] - 1):
        rows = vocab_rows(model, columns.tp, one.habits.name) + 0.0 * columns.tp
        tied = float(tied_embedding_s(model, cluster, one.rates, columns, one.links, rows)[0])
        size = one.rates.gradient_bytes * float(rows[0]) * model.hidden_size
        yield one.message(
            one.links.pp, group="pp", what="all-reduce (tied embedding)", when="step end", bytes_each=size, times=1.0,
            seconds=tied, exposed_s=tied,
        )  # fmt: skip


def _data_messages(one: _One, estimate: Estimate) -> Iterator[Message]:
    """Gradients and weights over the data parallel group. Exposed time is shared by duration."""
    columns, links, zero = one.columns, one.links, int(one.columns.zero_stage[0])
    stage = estimate.stages[one.stage]
    reduce_s = float(gradient_reduction_s(one.held, one.rates, columns, links)[0, one.stage])
    gather_s = float(weight_gather_s(one.held, one.rates, links)[0, one.stage])
    parameters = float((one.held.dense + one.held.experts)[0, one.stage])
    reductions = one.microbatches if zero >= 2 else 1
    gathers = one.habits.gathers_per_microbatch * one.microbatches if zero >= 3 else 1.0 if zero else 0.0
    whole = reduce_s * reductions + gather_s * gathers
    shown = stage.data_per_step_s + stage.data_per_microbatch_s * one.microbatches
    share = shown / whole if whole else 0.0
    yield one.message(
        links.shard, group="dp", what="reduce-scatter" if zero else "all-reduce", when="backward",
        bytes_each=one.rates.gradient_bytes * parameters, times=float(reductions), seconds=reduce_s * reductions,
        exposed_s=share * reduce_s * reductions,
    )  # fmt: skip
    yield one.message(
        links.shard, group="dp", what="all-gather", when="forward and backward" if zero >= 3 else "forward",
        bytes_each=one.rates.element_bytes * parameters, times=gathers, seconds=gather_s * gathers,
        exposed_s=share * gather_s * gathers,
    )  # fmt: skip
