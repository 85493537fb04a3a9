"""Every message of one rank in a step: group, bytes, how often, over which link, how long and how much of it shows.

The same formulas as the step's: the exposed seconds of a rank on the critical stage add up to its parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cost.arrays import Floats
from tpdpdash.cost.case import Case, case_of
from tpdpdash.cost.collectives import GroupLink
from tpdpdash.cost.ends import end_messages
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.layer_messages import copies_bytes, expert_exchange_s, kv_block_bytes, layer_tp_s, ring_s
from tpdpdash.cost.memory import recomputed_layers, stage_parameters
from tpdpdash.cost.parameters import pairs_of
from tpdpdash.cost.passes import PassSeconds, layer_passes
from tpdpdash.cost.result import Estimate
from tpdpdash.cost.stages import StageKinds, stage_kinds
from tpdpdash.cost.traffic import (
    exposed_hops_s,
    gathered_parameters,
    gradient_reduction_s,
    stage_hop_bytes,
    stage_hop_s,
    weight_gather_s,
)
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.groups import coordinates

if TYPE_CHECKING:
    from tpdpdash.units import Numeric


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
class _Place:
    """One layout, seen from one of its stages."""

    case: Case
    kinds: StageKinds
    stage: int
    microbatches: int
    is_last: bool

    def message(self, link: GroupLink, group: str, what: str, when: str, **given: float) -> Message:
        cluster = self.case.cluster
        name = cluster.network.name if link.crosses[0] else cluster.scale_up.name
        return Message(group=group, what=what, when=when, link=name, **given)


def _only(values: Numeric | Floats) -> float:
    """The figure of the only layout."""
    return float(np.ravel(values)[0])


def collectives_of(job: Job, estimate: Estimate, rank: int = 0) -> list[Message]:
    """The messages of one rank of the estimated layout in one step; groups of one rank send nothing."""
    columns = LayoutColumns.from_layouts([estimate.layout])
    stage = coordinates(estimate.layout, rank).pp
    place = _Place(
        case=case_of(job.model, job.cluster, job.training, framework_habits(job.training.framework), columns),
        kinds=stage_kinds(job.model, columns.stage_layers, columns.pp, columns.num_model_chunks).every_stage(),
        stage=stage,
        microbatches=estimate.num_microbatches,
        is_last=stage == estimate.layout.pp - 1,
    )
    found = [
        *_layer_messages(place),
        *_end_messages(place),
        *_stage_messages(place, estimate),
        *_data_messages(place, estimate),
    ]
    return [message for message in found if message.times > 0 and message.seconds > 0]


def _layer_messages(place: _Place) -> Iterator[Message]:
    """TP, CP and EP messages of the stage's layers, forward, backward and recompute."""
    kinds, at = place.kinds, (0, place.stage)
    recomputed = float(recomputed_layers(place.case.columns, kinds.layers)[at]) / max(float(kinds.layers[at]), 1.0)
    for moe, layers in ((False, kinds.dense_layers), (True, kinds.moe_layers)):
        count = float(layers[at])
        if not count:
            continue
        passes = layer_passes(place.case, moe)
        for when, each, times in (
            ("forward", passes.forward, count),
            ("backward", passes.backward, count),
            ("recompute", passes.recompute, count * recomputed),
        ):
            if _only(each.total_s) > _only(each.compute_s):
                yield from _of_pass(place, when, each, times * place.microbatches, moe)


def _of_pass(place: _Place, when: str, each: PassSeconds, times: float, moe: bool) -> Iterator[Message]:
    """The messages of one pass over one layer, `times` a step."""
    case, backward = place.case, when == "backward"
    split, twice = bool(case.columns.sequence_parallel[0]), 2 if backward else 1
    number = pairs_of(case.model, moe) * (twice + 1 if split else 1)
    yield place.message(
        case.links.tp, "tp", "all-gather, reduce-scatter" if split else "all-reduce", when,
        bytes_each=_only(case.states_bytes), times=number * times,
        seconds=_only(layer_tp_s(case, moe, backward=backward)) * times, exposed_s=_only(each.tp_s) * times,
    )  # fmt: skip
    yield place.message(
        case.links.cp, "cp", "ring exchange", when,
        bytes_each=_only(kv_block_bytes(case)), times=twice * (_only(case.columns.cp) - 1) * times,
        seconds=twice * _only(ring_s(case)) * times, exposed_s=_only(each.cp_s) * times,
    )  # fmt: skip
    if moe:
        yield place.message(
            case.links.ep, "ep", "all-to-all", when,
            bytes_each=_only(copies_bytes(case)), times=2 * times,
            seconds=_only(expert_exchange_s(case)) * times, exposed_s=_only(each.ep_s) * times,
        )  # fmt: skip


def _end_messages(place: _Place) -> Iterator[Message]:
    """TP messages around the embedding and the head."""
    case, sent = place.case, end_messages(place.case)
    split = bool(case.columns.sequence_parallel[0])
    kind = "all-gather, reduce-scatter" if split else "all-reduce"
    parts = (
        (place.stage == 0, "embedding", "forward", sent.embedding_forward_s, 1),
        (place.stage == 0, "embedding", "backward", sent.embedding_backward_s, 1),
        (place.is_last, "head", "forward", sent.head_forward_s, 1),
        (place.is_last, "head", "backward", sent.head_backward_s, 2 if split else 1),
    )
    for here, of, when, seconds, number in parts:
        if here:
            whole = _only(seconds) * place.microbatches
            yield place.message(
                case.links.tp, "tp", f"{kind} ({of})", when, bytes_each=_only(case.states_bytes),
                times=number * place.microbatches, seconds=whole, exposed_s=whole,
            )  # fmt: skip


def _stage_messages(place: _Place, estimate: Estimate) -> Iterator[Message]:
    """Activations and gradients between stages, and the tied embedding's gradients."""
    case = place.case
    times = _only(case.columns.num_model_chunks) * place.microbatches
    for what, when in (("send and receive activations", "forward"), ("send and receive gradients", "backward")):
        yield place.message(
            case.links.pp, "pp", what, when, bytes_each=_only(stage_hop_bytes(case)), times=times,
            seconds=_only(stage_hop_s(case)) * times, exposed_s=_only(exposed_hops_s(case)) * place.microbatches,
        )  # fmt: skip
    tied = estimate.stages[place.stage].tied_embedding_s
    size = case.rates.gradient_bytes * _only(case.vocab_rows) * case.model.hidden_size
    yield place.message(
        case.links.pp, "pp", "all-reduce (tied embedding)", "step end",
        bytes_each=size, times=1.0, seconds=tied, exposed_s=tied,
    )  # fmt: skip


def _data_messages(place: _Place, estimate: Estimate) -> Iterator[Message]:
    """Gradients and weights over the data parallel group. Exposed time is shared by duration."""
    case, stage, at = place.case, estimate.stages[place.stage], (0, place.stage)
    held = stage_parameters(case.model, case.habits, case.columns, place.kinds, case.training)
    zero, trained = estimate.layout.zero_stage, float(np.add(*held.trained)[at])
    gathered = float(gathered_parameters(case, held)[at])
    reductions = float(place.microbatches if zero >= 2 else 1)
    per_microbatch = case.habits.gathers_per_microbatch
    once = 1.0 if zero else 0.0
    if zero == 2 and case.habits.zero2_shards_weights:
        once = float(place.microbatches)
    gathers = per_microbatch * place.microbatches if zero >= 3 else once
    reduce_s = float(gradient_reduction_s(case, held, place.kinds)[at]) * reductions
    gather_s = float(weight_gather_s(case, held, place.kinds)[at]) * gathers
    shown = stage.data_per_step_s + stage.data_per_microbatch_s * place.microbatches
    share = shown / (reduce_s + gather_s) if reduce_s + gather_s else 0.0
    yield place.message(
        case.links.shard, "dp", "reduce-scatter" if zero else "all-reduce", "backward",
        bytes_each=case.rates.gradient_bytes * trained, times=reductions,
        seconds=reduce_s, exposed_s=share * reduce_s,
    )  # fmt: skip
    yield place.message(
        case.links.shard, "dp", "all-gather", "forward and backward" if zero >= 3 else "forward",
        bytes_each=case.rates.element_bytes * gathered, times=gathers, seconds=gather_s, exposed_s=share * gather_s,
    )  # fmt: skip
