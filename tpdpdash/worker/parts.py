"""Which parts of the model a pipeline rank holds: one in a plain pipeline, one a chunk where stages are cut finer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from tpdpdash.layout.layout import Layout
from tpdpdash.layout.schedules import SCHEDULE_FACTS, part_of
from tpdpdash.layout.stages import chunk_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Consecutive layers that run as one pipeline stage."""

    index: int
    """Its place in the pipeline, from 0."""
    layers: range
    """Its layers, counted over the whole model."""
    is_first: bool
    """It has the embedding."""
    is_last: bool
    """It has the head and the loss."""


def parts_of(layout: Layout, pp_rank: int) -> tuple[Part, ...]:
    """The parts of a rank, first chunk first."""
    facts = SCHEDULE_FACTS[layout.schedule]
    num_chunks = facts.num_model_chunks or layout.num_model_chunks
    per_rank = chunk_layers(
        layout.layers_per_stage,
        num_chunks,
        account_for_embedding=layout.account_for_embedding,
        account_for_loss=layout.account_for_loss,
        folded=facts.placement == "fold",
    )
    sizes = [0] * (layout.pp * num_chunks)
    for rank, chunks in enumerate(per_rank):
        for chunk, size in enumerate(chunks):
            sizes[part_of(facts.placement, layout.pp, rank, chunk)] = size
    ends = list(accumulate(sizes))
    return tuple(
        Part(
            index=index,
            layers=range(ends[index] - sizes[index], ends[index]),
            is_first=index == 0,
            is_last=index == len(sizes) - 1,
        )
        for index in (part_of(facts.placement, layout.pp, pp_rank, chunk) for chunk in range(num_chunks))
    )
