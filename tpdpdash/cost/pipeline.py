"""What a pipeline schedule makes of its stages' times: backward cut in two, messages hidden in pairs, seconds of all
microbatches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpdpdash.cost.arrays import Floats, column, floats, of_rows
from tpdpdash.cost.case import Case
from tpdpdash.cost.distinct import runs_of
from tpdpdash.cost.ends import case_ends_s, end_messages
from tpdpdash.cost.passes import slowest_rank
from tpdpdash.cost.stages import StageKinds
from tpdpdash.elementwise import choose, larger, smaller, somewhere
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.schedules import (
    FOLDED,
    MIRRORED,
    PAIRED_PASSES,
    SPLIT_BACKWARD,
    ends_meet,
    is_among,
    validates_after_update,
)
from tpdpdash.schedule.closed_form import paired_frac, pipeline_seconds
from tpdpdash.schedule.split_forms import ChunkSeconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.units import Numeric

HIDDEN_IN_PAIRS = ("ep_s", "pp_s")
"""Messages that run beside the other pass of a pair: DeepSeek-V3 (arXiv:2412.19437) §3.2.1 hides the experts'
all-to-all and the stages' messages."""
CARRIED_FRAC = 20 / 132
"""Processors that carry those messages and do not compute meanwhile: 20 of an H800's 132 (the same, §3.2.2)."""
Parts = dict[str, Floats]
"""Seconds by part; all but data parallel messages, which come on top."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EndPasses:
    """Embedding and head of one microbatch with their messages [s], each (n, 1)."""

    embedding_forward_s: Floats
    """Look-up."""
    embedding_backward_s: Floats
    """Scattered addition: a weight gradient."""
    embedding_weight_gradient_s: Floats
    """The part of it that is computation."""
    head_forward_s: Floats
    """Norm, logits, loss."""
    head_backward_s: Floats
    """Both gradients."""
    head_weight_gradient_s: Floats
    """The one of the matrix, part of the backward."""


def end_passes(case: Case) -> EndPasses:
    """What the ends of the model add to the stages that hold them."""
    ends, sent, slowest = case_ends_s(case), end_messages(case), slowest_rank(case.columns.world_size)

    def both(compute_s: Numeric, messages_s: Floats | float = 0.0) -> Floats:
        return column(slowest * of_rows(compute_s, case.tokens) + messages_s)

    return EndPasses(
        embedding_forward_s=both(ends.embedding_forward_s, sent.embedding_forward_s),
        embedding_backward_s=both(ends.embedding_backward_s, sent.embedding_backward_s),
        embedding_weight_gradient_s=both(ends.embedding_backward_s),
        head_forward_s=both(ends.head_forward_s, sent.head_forward_s),
        head_backward_s=both(ends.head_backward_s, sent.head_backward_s),
        head_weight_gradient_s=both(ends.head_weight_gradient_s),
    )


def passes_of(columns: LayoutColumns, global_batch_size: int) -> Floats:
    """How often a rank runs all it holds in a step (n,): once a microbatch; under DualPipe each of its two stages for
    half of them."""
    share = choose(is_among(columns.schedule, MIRRORED), 0.5, 1.0)
    return floats(share * columns.num_microbatches(global_batch_size))


def second_chunk(case: Case, kinds: StageKinds, whole: ChunkSeconds) -> ChunkSeconds:
    """The part of a rank's times that is its second chunk's, (n, stages): half of the layers (the smaller half of a
    V's), and the head where both ends of the model are on the rank. Left out: layers of different kinds, and DualPipe's
    two stages of different size."""
    ends = end_passes(case)
    stages = whole.forward_s.shape[1]
    halves = choose(column(is_among(case.columns.schedule, FOLDED)), np.floor(kinds.layers / 2), kinds.layers / 2)
    spread = kinds.spread(kinds.is_first, kinds.is_last, halves / larger(kinds.layers, 1.0))
    first, last, share = (each[:, :stages] for each in spread)

    def part(whole_s: Floats, embedding_s: Floats, head_s: Floats) -> Floats:
        return share * (whole_s - first * embedding_s - last * head_s) + last * head_s

    embedding_w, head_w = ends.embedding_weight_gradient_s, ends.head_weight_gradient_s
    return ChunkSeconds(
        forward_s=part(whole.forward_s, ends.embedding_forward_s, ends.head_forward_s),
        input_gradient_s=part(
            whole.input_gradient_s, ends.embedding_backward_s - embedding_w, ends.head_backward_s - head_w
        ),
        weight_gradient_s=part(whole.weight_gradient_s, embedding_w, head_w),
    )


def all_microbatches_s(
    case: Case, kinds: StageKinds, forward_s: Floats, backward_s: Floats, weight_gradient_s: Floats
) -> Floats:
    """The pipeline's seconds of a step (n,), from times of stage kinds (n, kinds); once for each run of rows with the
    same times."""
    columns, second = case.columns, None
    schedule, microbatches = columns.schedule, columns.num_microbatches(case.training.global_batch_size)
    chunks, group = columns.num_model_chunks, columns.microbatch_group_size_per_vp_stage
    compared: list[NDArray[Any]] = [
        schedule,
        chunks,
        group,
        microbatches,
        kinds.pipeline,
        forward_s,
        backward_s,
        weight_gradient_s,
    ]
    if somewhere(ends_meet(schedule)):
        f, b, w = kinds.spread(forward_s, backward_s, weight_gradient_s)
        second = second_chunk(case, kinds, ChunkSeconds(forward_s=f, input_gradient_s=b - w, weight_gradient_s=w))
        compared += [second.forward_s, second.input_gradient_s, second.weight_gradient_s]
    splits = somewhere(is_among(schedule, SPLIT_BACKWARD))
    runs = runs_of(compared)
    few = runs.firsts(kinds)
    forward, backward, put_off = few.spread(*(runs.firsts(each) for each in (forward_s, backward_s, weight_gradient_s)))
    pipeline_s = pipeline_seconds(
        schedule=runs.firsts(schedule),
        forward_s=forward,
        backward_s=backward,
        weight_gradient_s=put_off if splits else None,
        second_chunk=None if second is None else runs.firsts(second),
        stage_mask=few.stage_exists,
        num_microbatches=runs.firsts(microbatches),
        num_model_chunks=runs.firsts(chunks),
        group=runs.firsts(group),
        skewed=runs.firsts(validates_after_update(schedule, case.training.framework)),
    )
    return runs.spread(pipeline_s)


def shown_in_pairs(case: Case, kinds: StageKinds, forward: Parts, backward: Parts) -> tuple[Floats, Floats]:
    """Share of the HIDDEN_IN_PAIRS messages of a forward and of a backward that still show, each (n, kinds): in a pair
    they run beside the other pass's computation, which CARRIED_FRAC of the processors are taken from; passes that run
    alone show all."""
    columns = case.columns
    paired = choose(
        column(is_among(columns.schedule, PAIRED_PASSES)),
        paired_frac(
            column(columns.schedule),
            column(columns.pp),
            column(columns.num_microbatches(case.training.global_batch_size)),
            kinds.index,
        ),
        0.0,
    )
    shown = []
    for own, other in ((forward, backward), (backward, forward)):
        sent = sum((own[name] for name in HIDDEN_IN_PAIRS), np.zeros_like(kinds.count))
        beside = other["compute_s"] + other["recompute_s"]
        covered = smaller(sent, beside) / choose(sent > 0, sent, 1.0)
        shown.append(1 - paired * covered * (1 - CARRIED_FRAC))
    return shown[0], shown[1]
