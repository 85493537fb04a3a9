"""Action lists against Megatron's warm-up counts, tables and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import dense_model, layout_of, training_of

from tpdpdash.layout.layout import SCHEDULES
from tpdpdash.layout.rules import check_layout
from tpdpdash.schedule.action import Action
from tpdpdash.schedule.actions import schedule_actions, schedule_table
from tpdpdash.schedule.closed_form import microbatches_in_flight, warmup_forwards
from tpdpdash.schedule.timeline import simulate

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
        code = SCHEDULES.index(_schedule(row))
        counted = warmup_forwards(code, row["pp"], m, v, group, rank["rank"])
        assert counted + row["moe_overlap"] == rank["warmup"]  # Megatron overlaps expert messages by one more
        assert (rank["total"], rank["remaining"]) == (m * v, m * v - rank["warmup"])


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
def test_bubbles_of_the_simulation_equal_the_golden_ones(row: dict[str, Any]) -> None:
    ideal = 3 * row["microbatches"]
    total = simulate(_actions(row), [1.0] * row["pp"], [2.0] * row["pp"]).total_s
    assert total / ideal - 1 == pytest.approx(row["bubble_over_ideal"], abs=1e-6)
    assert 1 - ideal / total == pytest.approx(row["bubble_of_total"], abs=1e-6)


@pytest.mark.parametrize("row", [pytest.param(r, id=r["id"]) for r in ROWS if r["expect"] == "error"])
def test_what_megatron_refuses_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no action lists"):
        _actions(row)
    pp, chunks = row["pp"], row["vpp"] or 1
    degrees = {"pp": pp, "num_model_chunks": chunks, "microbatch_group_size_per_vp_stage": row["group"] or pp}
    layout = layout_of(pp * chunks, **degrees)
    training = training_of(global_batch_size=row["microbatches"])
    found = check_layout(dense_model(num_layers=pp * chunks), training, None, layout)
    assert [fault.code for fault in found] == [REFUSED[row["id"]]]


def test_every_golden_row_is_read() -> None:
    assert len(ROWS) == 17
    assert {row["id"] for row in ROWS if row["expect"] == "error"} == set(REFUSED)


def test_gpipe_runs_all_forwards_first() -> None:
    for actions in schedule_actions("gpipe", 3, 2):
        assert actions == [Action("F", 0, 0), Action("F", 0, 1), Action("B", 0, 0), Action("B", 0, 1)]
    assert microbatches_in_flight(SCHEDULES.index("gpipe"), 3, 5, 1, 2) == 5
    assert microbatches_in_flight(SCHEDULES.index("none"), 1, 5, 1, 0) == 1


@pytest.mark.parametrize(
    ("schedule", "pp", "chunks"),
    [
        *(("zb-1p", 4, 2), ("zb-v", 4, 1), ("dualpipe-v", 5, 2), ("dualpipe", 3, 1), ("dualpipe", 6, 1)),
        *(("interleaved", 1, 2), ("1f1b", 2, 2), ("1f1b", 0, 1)),
    ],
)
def test_what_has_no_action_list_is_refused_by_name(schedule: str, pp: int, chunks: int) -> None:
    with pytest.raises(ValueError, match=f"schedule='{schedule}' has no action lists for pp={pp}"):
        schedule_actions(schedule, pp, 8, chunks)


def test_r076_a_larger_micro_batch_makes_fewer_microbatches_and_a_larger_bubble() -> None:
    ones = [1.0] * 8
    assert simulate(schedule_actions("1f1b", 8, 64), ones, ones).total_s / (2 * 64) - 1 == pytest.approx(0.109375)
    total = simulate(schedule_actions("1f1b", 8, 16), ones, ones).total_s
    assert total / (2 * 16) - 1 == pytest.approx(0.4375)
    assert 1 - 2 * 16 / total == pytest.approx(0.3043, abs=5e-5)
