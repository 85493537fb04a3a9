"""Every message of one rank in a step: group, bytes, how often, over which link, how long and how much of it shows.

The same formulas as the step's: the exposed seconds of a rank on the critical stage add up to its parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cost.activations import SELECTIVE
from tpdpdash.cost.arrays import Flags, Floats
from tpdpdash.cost.case import Case, case_of
from tpdpdash.cost.collectives import GroupLink
from tpdpdash.cost.ends import end_message_counts, end_messages
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.layer_messages import (
    compressed_frac,
    context_s,
    copies_bytes,
    divided_heads_bytes,
    expert_exchange_s,
    kv_block_bytes,
    layer_tp_s,
    modules_tp_s,
    ring_merge_s,
)
from tpdpdash.cost.parameters import pairs_of
from tpdpdash.cost.passes import PassSeconds, case_attention, layer_passes
from tpdpdash.cost.pipeline import passes_of, shown_in_pairs
from tpdpdash.cost.result import Estimate
from tpdpdash.cost.stage_activations import recomputed_layers
from tpdpdash.cost.stage_parameters import stage_parameters
from tpdpdash.cost.stages import StageKinds, stage_kinds
from tpdpdash.cost.step import stage_parts
from tpdpdash.cost.traffic import (
    data_rhythm,
    exposed_hops_s,
    gathered_parameters,
    gets_all_gradients,
    gradient_reduction_s,
    messages_of,
    reduced_bytes,
    slices_s,
    stage_hop_bytes,
    stage_hop_s,
    weight_gather_s,
)
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.frameworks import cp_comm_type
from tpdpdash.layout.groups import coordinates
from tpdpdash.layout.prediction import trained_model
from tpdpdash.layout.schedules import PAIRED_PASSES

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
    passes: float
    shown: tuple[float, float]

    def message(self, link: GroupLink, group: str, what: str, when: str, **given: float) -> Message:
        cluster = self.case.cluster
        name = cluster.network.name if link.crosses[0] else cluster.scale_up.name
        return Message(group=group, what=what, when=when, link=name, **given)


def _only(values: Numeric | Floats | Flags) -> float:
    """The figure of the only layout."""
    return float(np.ravel(values)[0])


def collectives_of(job: Job, estimate: Estimate, rank: int = 0) -> list[Message]:
    """The messages of one rank of the estimated layout in one step; groups of one rank send nothing."""
    columns = LayoutColumns.from_layouts([estimate.layout])
    stage = coordinates(estimate.layout, rank).pp
    model = trained_model(job.model, job.training)
    case = case_of(model, job.cluster, job.training, framework_habits(job.training.framework), columns)
    kinds = stage_kinds(model, columns).every_stage()
    place = _Place(
        case=case,
        kinds=kinds,
        stage=stage,
        passes=_only(passes_of(columns, job.training.global_batch_size)),
        shown=_shown(case, kinds, stage),
    )
    found = [
        *_layer_messages(place),
        *_end_messages(place),
        *_stage_messages(place, estimate),
        *_data_messages(place, estimate),
    ]
    return [message for message in found if message.times > 0 and message.seconds > 0]


def _shown(case: Case, kinds: StageKinds, stage: int) -> tuple[float, float]:
    """Share of the experts' and the stages' messages that shows in a forward and in a backward of one stage."""
    if case.columns.schedule[0] not in PAIRED_PASSES:
        return 1.0, 1.0
    held = stage_parameters(case.model, case.habits, case.columns, kinds, case.training)
    each = stage_parts(case, kinds, held)
    in_forward, in_backward = shown_in_pairs(case, kinds, each.forward, each.backward)
    return float(in_forward[0, stage]), float(in_backward[0, stage])


def _layer_messages(place: _Place) -> Iterator[Message]:
    """TP, CP and EP messages of the stage's layers, forward, backward and recompute."""
    kinds, at = place.kinds, (0, place.stage)
    recomputed = float(recomputed_layers(place.case.columns, kinds.layers)[at]) / max(float(kinds.layers[at]), 1.0)
    block = case_attention(place.case)
    for moe, layers in ((False, kinds.dense_layers), (True, kinds.moe_layers)):
        count = float(layers[at])
        if not count:
            continue
        passes = layer_passes(place.case, moe, block)
        for when, each, times in (
            ("forward", passes.forward, count),
            ("backward", passes.backward, count),
            ("recompute", passes.recompute, count * recomputed),
        ):
            if _only(each.total_s) > _only(each.compute_s):
                yield from _of_pass(place, when, each, times * place.passes, moe)


def _of_pass(place: _Place, when: str, each: PassSeconds, times: float, moe: bool) -> Iterator[Message]:
    """The messages of one pass over one layer, `times` a step."""
    case, backward, again = place.case, when == "backward", when == "recompute"
    split, twice = bool(case.columns.sequence_parallel[0]), 2 if backward else 1
    regathers = backward and bool(np.all(case.gathers_again))
    number = pairs_of(case.model, moe) * (2 + regathers if split else 1)
    of_all, share = _only(layer_tp_s(case, moe, backward=backward)), 1.0
    if again and case.columns.recompute[0] == SELECTIVE and case.training.recompute_modules:
        share = _only(modules_tp_s(case, moe)) / of_all if of_all else 0.0
    # Of these messages that many are of what MLA compresses.
    compressed = (1.0 - compressed_frac(case)) * (1 + regathers) / number if split else 0.0
    yield place.message(
        case.links.tp, "tp", "all-gather, reduce-scatter" if split else "all-reduce", when,
        bytes_each=_only(case.states_bytes) * (1 - compressed), times=share * number * times,
        seconds=share * of_all * times, exposed_s=_only(each.tp_s) * times,
    )  # fmt: skip
    what, own, count = _context_message(case, twice)
    if again and not _only(each.cp_s):
        count = 0.0
    yield place.message(
        case.links.cp, "cp", what, when, bytes_each=own, times=count * times,
        seconds=(_only(context_s(case, backward=backward)) + _only(ring_merge_s(case, backward=backward))) * times,
        exposed_s=_only(each.cp_s) * times,
    )  # fmt: skip
    if moe and not (again and not _only(each.ep_s)):
        yield place.message(
            case.links.ep, "ep", "all-to-all", when,
            bytes_each=_only(copies_bytes(case)), times=2 * times,
            seconds=_only(expert_exchange_s(case)) * times,
            exposed_s=place.shown[when != "forward"] * _only(each.ep_s) * times,
        )  # fmt: skip


def _context_message(case: Case, twice: int) -> tuple[str, float, float]:
    """(collective, bytes, how often in a layer's pass) of context parallelism. twice: 2 where gradients go as well."""
    ranks, kind = _only(case.columns.cp), cp_comm_type(case.training)
    if kind == "a2a":
        return "all-to-all (heads)", _only(divided_heads_bytes(case)), float(ranks > 1)
    if kind == "all_gather":
        return "all-gather (keys, values)", _only(kv_block_bytes(case)) * ranks, twice * float(ranks > 1)
    return "ring exchange", _only(kv_block_bytes(case)), twice * (ranks - 1)


def _end_messages(place: _Place) -> Iterator[Message]:
    """TP messages around the embedding and the head."""
    case, sent, counts = place.case, end_messages(place.case), end_message_counts(place.case)
    kind = "all-gather, reduce-scatter" if case.columns.sequence_parallel[0] else "all-reduce"
    for of, held in (("embedding", place.kinds.is_first), ("head", place.kinds.is_last)):
        if not held[0, place.stage]:
            continue
        for when in ("forward", "backward"):
            part = f"{of}_{when}_s"
            whole = _only(getattr(sent, part)) * place.passes
            yield place.message(
                case.links.tp, "tp", f"{kind} ({of})", when, bytes_each=_only(case.states_bytes),
                times=_only(counts[part]) * place.passes, seconds=whole, exposed_s=whole,
            )  # fmt: skip


def _stage_messages(place: _Place, estimate: Estimate) -> Iterator[Message]:
    """Activations and gradients between stages, and the tied embedding's gradients."""
    case = place.case
    times = _only(case.columns.parts_per_rank) * place.passes
    directions = ("send and receive activations", "forward"), ("send and receive gradients", "backward")
    for (what, when), shown in zip(directions, place.shown, strict=True):
        yield place.message(
            case.links.pp, "pp", what, when, bytes_each=_only(stage_hop_bytes(case)), times=times,
            seconds=_only(stage_hop_s(case)) * times, exposed_s=shown * _only(exposed_hops_s(case)) * place.passes,
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
    each, again = data_rhythm(case), case.habits.gathers_per_microbatch - 1
    reductions = float(place.passes if _only(each.reduces) else 1)
    gathers = float(zero > 0)
    if _only(each.gathers):
        gathers = place.passes * (1 + again * _only(each.gathers_again))
    number = messages_of(case, held, place.kinds)
    reduce_s = float(gradient_reduction_s(case, held, number)[at]) * reductions
    gather_s = float(weight_gather_s(case, held, number)[at]) * gathers
    if zero and gathers == 1.0:
        gather_s += float(slices_s(case, place.kinds)[at])
    shown = stage.data_per_step_s + stage.data_per_microbatch_s * place.passes
    share = shown / (reduce_s + gather_s) if reduce_s + gather_s else 0.0
    yield place.message(
        case.links.shard, "dp", "all-reduce" if gets_all_gradients(case)[0] else "reduce-scatter", "backward",
        bytes_each=reduced_bytes(case) * trained, times=reductions,
        seconds=reduce_s, exposed_s=share * reduce_s,
    )  # fmt: skip
    yield place.message(
        case.links.shard, "dp", "all-gather", "forward and backward" if _only(each.gathers_again) else "forward",
        bytes_each=case.rates.element_bytes * gathered, times=gathers, seconds=gather_s, exposed_s=share * gather_s,
    )  # fmt: skip
