"""Action lists against Megatron's warm-up counts, tables and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpdpdash.faults import InvalidInputError
from tpdpdash.layout.layout import SCHEDULES
from tpdpdash.schedule.actions import Action, schedule_actions, schedule_table, warmup_microbatches
from tpdpdash.schedule.closed_form import bubble_over_ideal, microbatches_in_flight, warmup_forwards
from tpdpdash.schedule.timeline import simulate
from tpdpdash.text import fault_lines

GOLDEN = Path(__file__).parents[2] / "golden" / "schedule" / "pp_schedules.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
LEGAL = [pytest.param(row, id=row["id"]) for row in ROWS if row["expect"] == "ok"]
REFUSED = {"p10": "group_remainder", "p15": "interleaved_few_microbatches"}


def _schedule(row: dict[str, Any]) -> str:
    return "interleaved" if row["vpp"] else "1f1b"


def _actions(row: dict[str, Any]) -> list[list[Action]]:
    return schedule_actions(_schedule(row), row["pp"], row["microbatches"], row["vpp"] or 1, row["group"])


def _most_in_flight(actions: list[Action]) -> int:
    """Chunks whose forward is done and whose backward is not, at most."""
    changes = [1 if action.kind == "F" else -1 for action in actions]
    return int(np.cumsum(changes).max())


@pytest.mark.parametrize("row", LEGAL)
def test_warm_up_counts_equal_megatron(row: dict[str, Any]) -> None:
    m, v, group = row["microbatches"], row["vpp"] or 1, row["group"]
    for rank in row["ranks"]:
        counted = warmup_microbatches(row["pp"], rank["rank"], m, v, group, overlap_expert_messages=row["moe_overlap"])
        assert counted == rank["warmup"]
        assert (rank["total"], rank["remaining"]) == (m * v, m * v - counted)
        code = SCHEDULES.index(_schedule(row))
        if not row["moe_overlap"]:
            assert warmup_forwards(code, row["pp"], m, v, group, rank["rank"]) == rank["warmup"]


@pytest.mark.parametrize("row", [p for p in LEGAL if not p.values[0]["moe_overlap"]])
def test_orders_equal_megatron(row: dict[str, Any]) -> None:
    m, v = row["microbatches"], row["vpp"] or 1
    table = schedule_table(m, v, row["group"])
    if "table" in row:  # the longest rows carry counts only
        assert table == [tuple(pair) for pair in row["table"]]
    for rank, actions in zip(row["ranks"], _actions(row), strict=True):
        assert [(a.microbatch, a.chunk) for a in actions if a.kind == "F"] == table
        assert [(a.microbatch, v - 1 - a.chunk) for a in actions if a.kind == "B"] == table
        warmup, remaining = rank["warmup"], rank["remaining"]
        kinds = "F" * warmup + "FB" * remaining + "B" * warmup
        assert "".join(action.kind for action in actions) == kinds


@pytest.mark.parametrize("row", [p for p in LEGAL if not p.values[0]["moe_overlap"]])
def test_peaks_in_flight_equal_megatron(row: dict[str, Any]) -> None:
    m, v = row["microbatches"], row["vpp"] or 1
    code = SCHEDULES.index(_schedule(row))
    stages = np.arange(row["pp"])
    in_flight = microbatches_in_flight(code, row["pp"], m, v, stages, row["group"])
    assert (in_flight * v).tolist() == [rank["peak_in_flight"] for rank in row["ranks"]]
    assert [_most_in_flight(actions) for actions in _actions(row)] == [r["peak_in_flight"] for r in row["ranks"]]


@pytest.mark.parametrize("row", LEGAL)
def test_bubbles_equal_the_golden_ones_and_the_simulation(row: dict[str, Any]) -> None:
    m, v = row["microbatches"], row["vpp"] or 1
    ideal = float(bubble_over_ideal(row["pp"], m, v))
    assert ideal == pytest.approx(row["bubble_over_ideal"], abs=1e-6)
    assert ideal / (1 + ideal) == pytest.approx(row["bubble_of_total"], abs=1e-6)
    total = simulate(_actions(row), [1.0] * row["pp"], [2.0] * row["pp"]).total_s
    assert total == pytest.approx(3 * m * (1 + ideal), rel=1e-12)


@pytest.mark.parametrize("row", [pytest.param(r, id=r["id"]) for r in ROWS if r["expect"] == "error"])
def test_what_megatron_refuses_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as refused:
        _actions(row)
    assert [fault.code for fault in refused.value.faults] == [REFUSED[row["id"]]]
    assert fault_lines(refused.value.faults)


def test_every_golden_row_is_read() -> None:
    assert len(ROWS) == 17
    assert {row["id"] for row in ROWS if row["expect"] == "error"} == set(REFUSED)


def test_gpipe_runs_all_forwards_first() -> None:
    for actions in schedule_actions("gpipe", 3, 2):
        assert actions == [Action("F", 0, 0), Action("F", 0, 1), Action("B", 0, 0), Action("B", 0, 1)]
    assert microbatches_in_flight(SCHEDULES.index("gpipe"), 3, 5, 1, 2) == 5
    assert microbatches_in_flight(SCHEDULES.index("none"), 1, 5, 1, 0) == 1


@pytest.mark.parametrize(
    ("schedule", "pp", "chunks", "code"),
    [
        ("zb-1p", 4, 1, "schedule_not_priced"),
        ("dualpipe-v", 4, 2, "schedule_not_priced"),
        ("interleaved", 1, 2, "interleaved_without_pipeline"),
        ("1f1b", 2, 2, "chunks_without_interleaving"),
        ("1f1b", 0, 1, "out_of_range"),
    ],
)
def test_what_has_no_action_list_is_refused_by_name(schedule: str, pp: int, chunks: int, code: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        schedule_actions(schedule, pp, 8, chunks)
    assert [fault.code for fault in refused.value.faults] == [code]
    assert fault_lines(refused.value.faults)


def test_r076_a_larger_micro_batch_makes_fewer_microbatches_and_a_larger_bubble() -> None:
    assert bubble_over_ideal(8, 64 / 1) == pytest.approx(0.109375)
    quarter = float(bubble_over_ideal(8, 64 / 4))
    assert quarter == pytest.approx(0.4375)
    assert quarter / (1 + quarter) == pytest.approx(0.3043, abs=5e-5)
