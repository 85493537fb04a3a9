"""`tpdpdash validate`: a table of measured runs, predicted row by row and scored by source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpdpdash.compare.case import Skipped, read_cases
from tpdpdash.compare.predict import PredictedCase, predict
from tpdpdash.compare.scores import Score, by_key, mean, score
from tpdpdash.compare.table import Table, TableKind, read_table

COMPLETE = 2
"""Rows that state everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Predictions of a table and how good they are."""

    kind: TableKind
    """What the table measures."""
    rows: int
    """Data rows."""
    skipped: tuple[Skipped, ...]
    """Rows that could not be predicted."""
    predictions: tuple[PredictedCase, ...]
    """The others, in their order."""

    @property
    def by_source(self) -> dict[str, Score]:
        """The score of each source: of step times; of peaks where the table measures memory only."""
        groups = by_key(self.predictions, lambda p: p.case.source)
        scored = memory_score if self.kind == "memory" else time_score
        return {str(source): scored(group) for source, group in sorted(groups.items(), key=lambda item: str(item[0]))}

    @property
    def mean_of_sources(self) -> Score:
        """Every source weighing the same."""
        each = [one for one in self.by_source.values() if one.n]
        return Score(
            n=sum(one.n for one in each),
            median_abs_error=mean(one.median_abs_error for one in each),
            mean_abs_error=mean(one.mean_abs_error for one in each),
            bias=None,
            spearman=None,
        )

    def worst(self, count: int) -> list[PredictedCase]:
        """The rows with the largest absolute error, worst first."""
        wrong = [(abs(error), p) for p in self.predictions if (error := self._error(p)) is not None]
        return [p for _, p in sorted(wrong, key=lambda pair: -pair[0])[:count]]

    def to_json(self) -> dict[str, Any]:
        """docs/reference.md's `validate --json`."""
        by_source = self.by_source
        sizes = [abs(e) for p in self.predictions if (e := self._error(p)) is not None]
        return {
            "kind": self.kind,
            "rows": self.rows,
            "predicted": len(self.predictions),
            "skipped": [asdict(skip) for skip in self.skipped],
            "predictions": [prediction.to_json() for prediction in self.predictions],
            "by_source": {source: asdict(each) for source, each in by_source.items()},
            "median_abs_error": float(np.median(sizes)) if sizes else None,
            "mean_of_source_medians": mean(each.median_abs_error for each in by_source.values()),
            "memory": self._memory(),
            "complete": self._complete(),
        }

    def _error(self, prediction: PredictedCase) -> float | None:
        return prediction.memory_error if self.kind == "memory" else prediction.error

    def _memory(self) -> dict[str, Any]:
        """Errors of measured peaks and states, by source."""
        groups = by_key(self.predictions, lambda p: p.case.source)
        peaks = {str(source): memory_score(group) for source, group in groups.items()}
        states = {str(source): state_score(group) for source, group in groups.items()}
        return {
            "peak_by_source": {source: asdict(each) for source, each in peaks.items() if each.n},
            "mean_of_source_medians": mean(each.median_abs_error for each in peaks.values()),
            "states_by_source": {source: asdict(each) for source, each in states.items() if each.n},
            "ran_but_does_not_fit": [p.case.row for p in self.predictions if ran_but_does_not_fit(p)],
        }

    def _complete(self) -> dict[str, Any]:
        """The same over rows that state everything, where the table says which."""
        rows = [p for p in self.predictions if p.case.complete == COMPLETE]
        medians = [time_score(group).median_abs_error for group in by_key(rows, lambda p: p.case.source).values()]
        return {
            "n": time_score(rows).n,
            "sources": sum(m is not None for m in medians),
            "mean_of_source_medians": mean(medians),
        }


def validate(path: Path) -> Validation:
    """Predict every row of a CSV. Raises InvalidInputError for a file that is no such table."""
    return validate_table(read_table(path))


def validate_table(table: Table) -> Validation:
    """The same for a table that is read already."""
    cases, skipped = read_cases(table.rows)
    return Validation(kind=table.kind, rows=len(table.rows), skipped=tuple(skipped), predictions=tuple(predict(cases)))


def time_score(predictions: Iterable[PredictedCase]) -> Score:
    """Of step times, where they were measured and predicted."""
    pairs = [(p.step_s, p.case.measured_step_s) for p in predictions]
    return _of_pairs([(a, b) for a, b in pairs if a is not None and b is not None])


def memory_score(predictions: Iterable[PredictedCase]) -> Score:
    """Of peaks that were measured (a formula's figures are no measurement)."""
    pairs = [(p.peak_bytes, p.case.measured_peak_bytes) for p in predictions if p.case.is_measured]
    return _of_pairs([(a, b) for a, b in pairs if b is not None])


def state_score(predictions: Iterable[PredictedCase]) -> Score:
    """Of measured bytes of weights, gradients and optimizer states."""
    measured = [(dict(p.case.measured_state_bytes), p.state_errors) for p in predictions if p.case.is_measured]
    return _of_pairs([(sizes[name] * (1 + e), sizes[name]) for sizes, errors in measured for name, e in errors.items()])


def ran_but_does_not_fit(prediction: PredictedCase) -> bool:
    """A run that took place, of which the model says that it cannot."""
    case = prediction.case
    ran = case.is_measured and (case.measured_step_s is not None or case.measured_peak_bytes is not None)
    return ran and prediction.fits is False


def _of_pairs(pairs: Sequence[tuple[float, float]]) -> Score:
    return score([a for a, _ in pairs], [b for _, b in pairs])
