"""Predictions of published runs as residuals, and how many runs of a source the bars of all others hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tpdpdash.compare.predict import PredictedCase
from tpdpdash.compare.scores import by_key
from tpdpdash.compare.validate import Validation
from tpdpdash.cost.error_bar import nearest_runs, source_weight
from tpdpdash.cost.residuals import Residual, Residuals, run_kind

TOKENS_OF_A_MICROBATCH = frozenset({"seq_len", "micro_batch"})


def residuals_of(runs: Validation, memory: Validation, *, date: str, commit: str) -> Residuals:
    """The residuals of a table of runs and a table of memory. Figures of a paper's own formula are no measurement."""
    times = (_residual(p, p.step_s, p.case.measured_step_s) for p in runs.predictions)
    peaks = (_residual(p, p.peak_bytes, p.case.measured_peak_bytes) for p in memory.predictions if p.case.is_measured)
    return Residuals(date=date, commit=commit, time=_known(times), memory=_known(peaks))


def _known(found: Iterable[Residual | None]) -> tuple[Residual, ...]:
    return tuple(residual for residual in found if residual is not None)


def _residual(prediction: PredictedCase, predicted: float | None, measured: float | None) -> Residual | None:
    if predicted is None or measured is None:
        return None
    case, layout = prediction.case, prediction.case.layout
    return Residual(
        row=case.row,
        source=case.source,
        model=case.model.name,
        layout=layout.layout_id,
        device=case.hardware,
        kind=run_kind(case.model, case.cluster, case.training),
        world_size=layout.world_size,
        tokens_per_step=case.training.tokens_per_step,
        cp=layout.cp,
        ep=layout.ep,
        schedule=layout.schedule,
        predicted=predicted,
        measured=measured,
        is_stated=TOKENS_OF_A_MICROBATCH.isdisjoint(case.inferred),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How well bars hold runs of a source that they were not made from."""

    rows: int
    """Runs."""
    sources: int
    """Their sources."""
    rows_frac: float | None
    """Share of the runs within their bar."""
    sources_frac: float | None
    """The same for each source, in the mean over sources; one of few runs counts less."""
    width_frac: float | None
    """Half-width of a run's bar, in the mean over sources."""


def held_out_coverage(residuals: Sequence[Residual]) -> Coverage:
    """Leave one source out at a time: bars from all other sources, against its runs that say what they were."""
    residuals = [residual for residual in residuals if residual.is_stated]
    held: list[tuple[float, float, float]] = []
    rows, inside = 0, 0
    for source, own in by_key(residuals, lambda r: r.source).items():
        others = [residual for residual in residuals if residual.source != source]
        bars = {kind: nearest_runs(others, kind) for kind in {residual.kind for residual in own}}
        pairs = [(residual.miss_frac, bar.frac) for residual in own if (bar := bars[residual.kind]) is not None]
        hits = sum(miss <= frac for miss, frac in pairs)
        rows, inside = rows + len(pairs), inside + hits
        if pairs:
            weight = source_weight(len(pairs))
            held.append((weight, hits / len(pairs), sum(frac for _, frac in pairs) / len(pairs)))
    total = sum(weight for weight, _, _ in held)
    return Coverage(
        rows=rows,
        sources=len(held),
        rows_frac=inside / rows if rows else None,
        sources_frac=sum(weight * share for weight, share, _ in held) / total if held else None,
        width_frac=sum(weight * width for weight, _, width in held) / total if held else None,
    )
