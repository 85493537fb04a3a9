"""Scores and the worst predictions as cells of a table: for the command line and docs/accuracy.md alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpdpdash.text import t
from tpdpdash.units import format_difference, format_memory, format_share, format_time

if TYPE_CHECKING:
    from tpdpdash.compare.predict import PredictedCase
    from tpdpdash.compare.scores import Score


def score_cells(source: str, each: Score) -> list[str]:
    """Source, n, median and mean |error|, bias, rank correlation; empty where nothing was measured."""
    if not each.n:
        return [source, "0", "", "", "", ""]
    correlation = "" if each.spearman is None else f"{each.spearman:.3f}"
    errors = [format_share(each.median_abs_error), format_share(each.mean_abs_error)]
    bias = "" if each.bias is None else format_difference(each.bias)
    return [source, str(each.n), *errors, bias, correlation]


def miss_head(first: str) -> list[str]:
    """Names of the cells of `miss_cells`."""
    return [first, t("source"), t("model"), t("layout"), t("predicted"), t("measured"), t("error")]


def miss_cells(prediction: PredictedCase) -> list[str]:
    """Row, source, model, layout, predicted, measured, error: of the step time, or of the peak where it has none."""
    case = prediction.case
    if prediction.error is None:
        figures = [format_memory(size) for size in (prediction.peak_bytes, case.measured_peak_bytes)]
        error = prediction.memory_error
    else:
        figures = [format_time(seconds) for seconds in (prediction.step_s, case.measured_step_s)]
        error = prediction.error
    facts = [str(case.row), case.source_id, case.model.name, case.layout.layout_id]
    return [*facts, *figures, format_difference(error)]
