"""Parts of the model on the ranks of a pipeline: every layer once, in order, as the estimate counts them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpdpdash.layout.layout import Layout, Schedule
from tpdpdash.worker.parts import parts_of


def layout_of(schedule: Schedule, layers_per_stage: tuple[int, ...], num_model_chunks: int = 1) -> Layout:
    """A pipeline of as many ranks as entries."""
    return Layout(
        pp=len(layers_per_stage),
        schedule=schedule,
        layers_per_stage=layers_per_stage,
        num_model_chunks=num_model_chunks,
    )


@pytest.mark.parametrize(
    "layout",
    [
        layout_of("none", (5,)),
        layout_of("1f1b", (3, 2, 4)),
        layout_of("zb-1p", (1, 4)),
        layout_of("interleaved", (6, 3, 9), 3),
        layout_of("zb-v", (5, 2, 4), 2),
        layout_of("dualpipe-v", (2, 3), 2),
        replace(layout_of("interleaved", (3, 4, 3), 2), account_for_embedding=True, account_for_loss=True),
    ],
    ids=lambda layout: layout.schedule,
)
def test_every_layer_is_in_one_part_and_a_rank_has_its_own_number(layout: Layout) -> None:
    ranks = [parts_of(layout, rank) for rank in range(layout.pp)]
    assert tuple(sum(len(part.layers) for part in parts) for parts in ranks) == layout.layers_per_stage
    parts = sorted((part for parts in ranks for part in parts), key=lambda part: part.index)
    assert [part.index for part in parts] == list(range(layout.pp * layout.num_model_chunks))
    assert [layer for part in parts for layer in part.layers] == list(range(sum(layout.layers_per_stage)))
    assert [part.is_first for part in parts] == [True] + [False] * (len(parts) - 1)
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]


def test_chunks_go_round_the_ranks_and_in_a_v_back() -> None:
    looped, folded = layout_of("interleaved", (2, 2), 2), layout_of("zb-v", (2, 2), 2)
    assert [[part.index for part in parts_of(looped, rank)] for rank in range(2)] == [[0, 2], [1, 3]]
    assert [[part.index for part in parts_of(folded, rank)] for rank in range(2)] == [[0, 3], [1, 2]]
