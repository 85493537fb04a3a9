"""Residuals of published rows, and how many runs of a source the bars of the others hold."""

from pathlib import Path

import pytest

from tpdpdash.compare.accuracy import page
from tpdpdash.compare.residuals import held_out_coverage, residuals_of
from tpdpdash.compare.targets import figures, figures_text, packaged_figures
from tpdpdash.compare.validate import validate
from tpdpdash.cost.residuals import Residual, RunKind

GOLDEN = Path(__file__).parents[2] / "golden" / "compare"


@pytest.fixture(scope="module")
def tables():
    return validate(GOLDEN / "runs_excerpt.csv"), validate(GOLDEN / "memory_excerpt.csv")


@pytest.fixture(scope="module")
def found(tables):
    return residuals_of(*tables, date="2026-01-01", commit="abc1234")


def test_every_measured_row_becomes_a_residual(tables, found):
    runs, memory = tables
    timed = [p for p in runs.predictions if p.error is not None]
    assert [r.row for r in found.time] == [p.case.row for p in timed]
    assert [r.error for r in found.time] == pytest.approx([p.error for p in timed])
    assert len(found.memory) == sum(p.memory_error is not None and p.case.is_measured for p in memory.predictions)
    assert all(r.kind.framework and r.kind.is_moe is not None for r in (*found.time, *found.memory))


def miss(source: str, frac: float) -> Residual:
    kind = RunKind(framework="jax", architecture="hopper", is_moe=False, is_low_precision=False)
    facts = {"row": 0, "model": "m", "layout": "l", "device": "d", "world_size": 8, "cp": 1, "ep": 1}
    run = {"schedule": "none", "tokens_per_step": 1e6, "predicted": 1.0, "measured": 1 + frac}
    return Residual(source=source, kind=kind, **facts, **run)


def test_a_source_is_held_against_the_bars_of_all_others():
    alike = [miss(source, 0.1) for source in "abcdef" for _ in range(8)]
    assert held_out_coverage(alike).rows_frac == 1.0
    assert held_out_coverage(alike).width_frac == pytest.approx(0.1)
    odd = held_out_coverage([*alike, miss("odd", 0.5)])
    assert odd.rows == 49
    assert odd.rows_frac == pytest.approx(48 / 49)
    assert odd.sources_frac == pytest.approx(6 / (6 + 1 / 8)), "a source of few rows counts less"


def test_too_few_sources_leave_nothing_to_hold_one_against():
    alone = held_out_coverage([miss("a", 0.1)] * 20)
    assert (alone.rows, alone.rows_frac) == (0, None)


def test_the_page_says_when_it_was_made_how_bars_hold_and_every_figure(tables, found):
    text = page(*tables, found)
    assert "2026-01-01" in text
    assert "abc1234" in text
    assert "## Error bars" in text
    assert all(figure.what.replace("|", "\\|") in text for figure in figures(*tables))


def test_figures_are_packaged_as_they_were_found(tables):
    written = figures_text(figures(*tables))
    assert written.count("\n") == len(figures(*tables)) + 2
    packaged = packaged_figures()
    assert {f.what for f in figures(*tables)} & {f.what for f in packaged}
    assert all(f.n > 0 for f in packaged if f.value is not None)
