"""Answers of `validate`: errors by source, and the rows that are predicted worst."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tpdpdash.compare.score_cells import miss_cells, miss_head, score_cells
from tpdpdash.faults import Fault
from tpdpdash.report.lines import table
from tpdpdash.text import fault_text, t
from tpdpdash.units import format_count

if TYPE_CHECKING:
    from tpdpdash.compare.validate import Validation

ROWS_SHOWN = 10
"""Worst rows, and reasons of skipped ones."""
INFERRED_SHOWN = 12
"""Fields that rows did not state."""


def validation_lines(found: Validation) -> list[str]:
    """Errors by source, and the rows that are predicted worst."""
    counts = {"rows": found.rows, "predicted": len(found.predictions), "skipped": len(found.skipped)}
    lines = [t("{rows} rows, {predicted} predicted, {skipped} skipped.", **counts), ""]
    what = t("of peak memory") if found.kind == "memory" else t("of step time")
    head = [t("source"), t("rows"), t("median |error| {what}", what=what), t("mean"), t("bias"), t("rank correlation")]
    rows = [score_cells(source, each) for source, each in found.by_source.items()]
    lines += table([head, *rows, score_cells(t("mean of the sources"), found.mean_of_sources)])
    rows = [miss_cells(prediction) for prediction in found.worst(ROWS_SHOWN)]
    if rows:
        lines += ["", *table([miss_head(t("worst rows")), *rows])]
    lines += _inferred_lines(found)
    reasons = Counter(fault_text(Fault(code=s.reason, field=s.column, value=s.value)) for s in found.skipped)
    rows = [[format_count(count), reason] for reason, count in reasons.most_common(ROWS_SHOWN)]
    return [*lines, "", *table([[t("skipped"), t("reason")], *rows])] if rows else lines


def _inferred_lines(found: Validation) -> list[str]:
    """What rows did not state, or contradicted, and was inferred: the fields, by the number of their rows."""
    fields = Counter(name for prediction in found.predictions for name in prediction.case.inferred)
    if not fields:
        return []
    named = ", ".join(f"{name} ({format_count(count)})" for name, count in fields.most_common(INFERRED_SHOWN))
    more = len(fields) - INFERRED_SHOWN
    return ["", t("Inferred, by rows: {named}", named=named) + (t(" and {more} more", more=more) if more > 0 else "")]
