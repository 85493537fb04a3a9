"""How far the *ratio* of two layouts' step times may be off: what one error bar has in common with the next cancels.

Layouts of one job share the model, the device and the framework, and with them most of what is wrong with both
estimates. Two layouts nearer than this are a tie.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

from tpdpdash.cost.error_bar import COVERED_FRAC, FULL_SOURCE_ROWS, weighted_quantile
from tpdpdash.cost.residuals import Residual, packaged_residuals


def comparison_frac(residuals: Sequence[Residual]) -> float | None:
    """The error that COVERED_FRAC of the comparisons of published runs keep within, every source weighing the same.

    Compared are runs of one source, model, device, world and batch that follow each other in predicted time:
    |(measured b / measured a) / (predicted b / predicted a) − 1|. Sources with fewer than FULL_SOURCE_ROWS comparisons
    are left out; None where none has so many.
    """
    errors = list(_comparisons(residuals))
    count = Counter(source for source, _ in errors)
    found = [(error, 1 / count[source]) for source, error in errors if count[source] >= FULL_SOURCE_ROWS]
    return weighted_quantile(found, COVERED_FRAC) if found else None


def _comparisons(residuals: Sequence[Residual]) -> Iterator[tuple[str, float]]:
    """(source, error) of each comparison."""
    jobs: dict[tuple[object, ...], list[Residual]] = defaultdict(list)
    for run in residuals:
        jobs[run.source, run.model, run.device, run.world_size, run.tokens_per_step, run.kind].append(run)
    for runs in jobs.values():
        ordered = sorted(runs, key=lambda run: run.predicted)
        for a, b in pairwise(ordered):
            if a.predicted < b.predicted:
                yield a.source, abs((b.measured / a.measured) / (b.predicted / a.predicted) - 1)


@cache
def tie_frac() -> float | None:
    """The same of the packaged residuals: layouts nearer than this are not called faster or slower."""
    return comparison_frac(packaged_residuals().time)
