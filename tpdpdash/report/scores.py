"""Answers of `validate`: errors by source, and the rows that are predicted worst."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tpdpdash import units
from tpdpdash.faults import Fault
from tpdpdash.report.lines import table
from tpdpdash.text import fault_text, t

if TYPE_CHECKING:
    from tpdpdash.compare.predict import Prediction
    from tpdpdash.compare.scores import Score
    from tpdpdash.compare.validate import Validation


def validation_lines(found: Validation, worst: int = 10) -> list[str]:
    """Errors by source, and the rows that are predicted worst."""
    counts = {"rows": found.rows, "predicted": len(found.predictions), "skipped": len(found.skipped)}
    lines = [t("{rows} rows, {predicted} predicted, {skipped} skipped.", **counts), ""]
    what = t("of peak memory") if found.kind == "memory" else t("of step time")
    head = [t("source"), t("rows"), t("median |error| {what}", what=what), t("mean"), t("bias"), t("rank correlation")]
    rows = [_score_row(source, each) for source, each in found.by_source.items()]
    lines += table([head, *rows, _score_row(t("mean of the sources"), found.mean_of_sources)])
    rows = [_miss_row(prediction) for prediction in found.worst(worst)]
    if rows:
        head = [t("worst rows"), t("source"), t("model"), t("layout"), t("predicted"), t("measured"), t("error")]
        lines += ["", *table([head, *rows])]
    reasons = Counter(fault_text(Fault(code=s.reason, field=s.column, value=s.value)) for s in found.skipped)
    rows = [[units.format_count(count), reason] for reason, count in reasons.most_common(worst)]
    return [*lines, "", *table([[t("skipped"), t("reason")], *rows])] if rows else lines


def _score_row(source: str, each: Score) -> list[str]:
    if not each.n:
        return [source, "0", "", "", "", ""]
    correlation = "" if each.spearman is None else f"{each.spearman:.3f}"
    errors = [units.format_share(each.median_abs_error), units.format_share(each.mean_abs_error)]
    bias = "" if each.bias is None else units.format_difference(each.bias)
    return [source, str(each.n), *errors, bias, correlation]


def _miss_row(prediction: Prediction) -> list[str]:
    case = prediction.case
    if prediction.error is None:
        figures = [units.format_memory(size) for size in (prediction.peak_bytes, case.measured_peak_bytes)]
        error = prediction.memory_error
    else:
        figures = [units.format_time(seconds) for seconds in (prediction.step_s, case.measured_step_s)]
        error = prediction.error
    facts = [str(case.row), case.source_id, case.model.name, case.layout.layout_id]
    return [*facts, *figures, units.format_difference(error)]
