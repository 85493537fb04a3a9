"""Layers of each pipeline stage against Megatron's own, and the split that is the Job's default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpdpdash.faults import InvalidInputError
from tpdpdash.layout.stages import (
    chunk_layers,
    cost_balanced_stage_layers,
    even_stage_layers,
    megatron_stage_layers,
    pinned_stage_layers,
    stage_columns,
)
from tpdpdash.text import fault_lines

GOLDEN = Path(__file__).parents[2] / "golden" / "layout" / "stage_layers.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
REFUSED = {
    "s05": "chunks_not_divisible",
    "s06": "layers_not_divisible",
    "s14": "layers_not_divisible",
    "s17": "layers_not_divisible",
    "s20": "chunks_not_divisible",
    "s21": "layers_not_divisible",
    "s22": "stage_pin_without_pipeline",
    "s25": "stage_layers_left_over",
    "s30": "conflicting_keys",
}


def _split(row: dict[str, Any]) -> list[list[int]]:
    return megatron_stage_layers(
        row["layers"],
        row["pp"],
        row["vpp"] or 1,
        row["first"],
        row["last"],
        row["account_embedding"],
        row["account_loss"],
    )


@pytest.mark.parametrize("row", [pytest.param(r, id=r["id"]) for r in ROWS if r["expect"] == "ok"])
def test_stage_layers_equal_megatron(row: dict[str, Any]) -> None:
    chunks = _split(row)
    assert chunks == row["per_rank_chunks"]
    assert [sum(rank) for rank in chunks] == row["per_rank"]
    assert sum(row["per_rank"]) == row["layers"]


@pytest.mark.parametrize("row", [pytest.param(r, id=r["id"]) for r in ROWS if r["expect"] != "ok"])
def test_what_megatron_refuses_or_silently_shortens_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as refused:
        _split(row)
    assert [fault.code for fault in refused.value.faults] == [REFUSED[row["id"]]]
    assert fault_lines(refused.value.faults)


def test_every_golden_row_has_its_expectation() -> None:
    assert len(ROWS) == 18
    assert {row["id"] for row in ROWS if row["expect"] != "ok"} == set(REFUSED)


@pytest.mark.parametrize(
    ("layers", "pp", "first", "last"),
    [(20, 2, 5, 5), (20, 2, None, 25), (8, 4, 9, None), (8, 4, 0, None), (8, 1, 8, None)],
)
def test_megatron_pins_that_do_not_add_up_are_refused(
    layers: int, pp: int, first: int | None, last: int | None
) -> None:
    with pytest.raises(InvalidInputError):
        megatron_stage_layers(layers, pp, first=first, last=last)


def test_a_negative_first_chunk_is_refused() -> None:
    with pytest.raises(InvalidInputError) as refused:
        megatron_stage_layers(6, 8, account_for_embedding=True, account_for_loss=True, num_model_chunks=2)
    assert refused.value.faults[0].code == "chunks_not_divisible"


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [
        pytest.param(30, 4, (7, 8, 8, 7), id="r048"),
        pytest.param(40, 16, (2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 2), id="r051"),
        pytest.param(61, 8, (7, 7, 8, 8, 8, 8, 8, 7), id="61-layers"),
        pytest.param(126, 8, (15, 16, 16, 16, 16, 16, 16, 15), id="126-layers"),
        pytest.param(32, 4, (8, 8, 8, 8), id="even"),
        pytest.param(7, 1, (7,), id="one-stage"),
        pytest.param(7, 2, (4, 3), id="the-last-stage-has-the-head"),
    ],
)
def test_the_default_split_is_even_or_most_even_and_drops_no_layer(
    layers: int, pp: int, expected: tuple[int, ...]
) -> None:
    assert even_stage_layers(layers, pp) == expected
    assert sum(expected) == layers


def test_the_embedding_and_the_loss_count_as_layers_where_asked() -> None:
    assert even_stage_layers(70, 12, account_for_embedding=True, account_for_loss=True) == (5, *[6] * 10, 5)
    assert even_stage_layers(27, 4, account_for_embedding=True) == (6, 7, 7, 7)


def test_pinned_ends_leave_the_rest_as_even_as_it_goes() -> None:
    assert pinned_stage_layers(61, 8, last=5) == (8, 8, 8, 8, 8, 8, 8, 5)
    assert pinned_stage_layers(28, 4, first=7, last=8) == (7, 7, 6, 8)
    assert pinned_stage_layers(10, 2, first=4, last=6) == (4, 6)


@pytest.mark.parametrize(("first", "last"), [(8, None), (None, 7), (5, 4), (4, None)])
def test_pins_that_leave_a_stage_without_layers_are_refused(first: int | None, last: int | None) -> None:
    pp = 2 if first == 5 else 8
    with pytest.raises(InvalidInputError) as refused:
        pinned_stage_layers(10 if first == 5 else 8, pp, first=first, last=last)
    assert refused.value.faults[0].code == "stage_layers_left_over"


def test_r052_stage_pins_without_a_pipeline_are_refused() -> None:
    with pytest.raises(InvalidInputError) as refused:
        pinned_stage_layers(20, 1, last=1)
    assert refused.value.faults[0].code == "stage_pin_without_pipeline"


def test_chunks_take_the_embedding_and_the_loss_off_the_first_and_last_model_part() -> None:
    split = even_stage_layers(14, 2, account_for_embedding=True, account_for_loss=True)
    assert chunk_layers(split, 2, account_for_embedding=True, account_for_loss=True) == [[3, 4], [4, 3]]
    assert chunk_layers(split, 2, account_for_embedding=True, account_for_loss=True) == megatron_stage_layers(
        14, 2, 2, account_for_embedding=True, account_for_loss=True
    )


def test_rows_of_different_pipelines_are_split_at_once() -> None:
    layers, mask = stage_columns(30, np.array([1, 4, 7]))
    assert layers.shape == (3, 7)
    assert mask.sum(axis=1).tolist() == [1, 4, 7]
    for row, pp in enumerate((1, 4, 7)):
        assert tuple(layers[row][mask[row]]) == even_stage_layers(30, pp)


def test_nanotron_splits_by_the_parameters_of_its_blocks():
    """16 layers and a head of 4 layers' size on 2 stages: a stage takes blocks until it exceeds its half."""
    assert cost_balanced_stage_layers(16, 2, 4.0) == (11, 5)
    assert cost_balanced_stage_layers(28, 2, 3.56) == (16, 12)
    assert cost_balanced_stage_layers(24, 8, 2.45) == (4, 3, 3, 4, 3, 3, 4, 0)
    assert sum(cost_balanced_stage_layers(80, 32, 1.1)) == 80
