"""How far to trust an estimate: published runs beside their predictions as sentences and plain tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from tpdpdash.compare.residuals import Coverage
from tpdpdash.compare.scores import Score, by_key, mean, score
from tpdpdash.compare.targets import Figure, figure_value
from tpdpdash.cost.residuals import Residual, Residuals, What
from tpdpdash.text import t
from tpdpdash.ui import parts
from tpdpdash.units import (
    format_count,
    format_difference,
    format_memory,
    format_share,
    format_time,
    gib,
    percent,
)

ALL = "all"
WORST_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which runs a person looks at."""

    what: What
    """Step times, or peaks of memory."""
    source: str
    """One source, or ALL."""
    device: str
    """One device as the rows name it, or ALL."""

    def holds(self, run: Residual) -> bool:
        """Whether a run is among them."""
        return self.source in (ALL, run.source) and self.device in (ALL, run.device)


def names_of(found: Residuals, what: What, name: Callable[[Residual], str]) -> tuple[str, ...]:
    """ALL, then every source (or device) there is."""
    return (ALL, *sorted({name(run) for run in found.of(what)}))


def scored(runs: Sequence[Residual]) -> Score:
    """Errors of runs."""
    return score([run.predicted for run in runs], [run.measured for run in runs])


def answer(runs: Sequence[Residual], what: What) -> str:
    """How good the predictions are, in one sentence (markdown)."""
    sources = by_key(runs, lambda run: run.source)
    middle = mean(scored(group).median_abs_error for group in sources.values())
    quantity = t("step time") if what == "time" else t("peak memory")
    if len(sources) == 1:
        return t(
            "**Half of {count} runs of {source} are predicted within {median} of their {quantity}.**",
            count=format_count(len(runs)),
            source=parts.literal(runs[0].source),
            median=format_share(middle),
            quantity=quantity,
        )
    return t(
        "**{count} published runs of {sources} sources: the typical error of {quantity} is {median}.** "
        "Typical is the mean of the sources' medians, so that a source of many rows does not decide.",
        count=format_count(len(runs)),
        sources=len(sources),
        median=format_share(middle),
        quantity=quantity,
    )


def detail(found: Residuals, coverage: Coverage) -> str:
    """Whether error bars hold what they promise, and when all this was measured."""
    held = t(
        "Error bars made without a source hold {share} of its runs, in the mean over sources.",
        share=format_share(coverage.sources_frac),
    )
    return f"{held} {t('Taken on {date} at commit {commit}.', date=found.date, commit=found.commit)}"


def agreement_table(runs: Sequence[Residual], chosen: Sequence[Residual], what: What) -> pd.DataFrame:
    """Columns measured, predicted, chosen, worst, name, shown, error: one row a run."""
    own, marked = {id(run) for run in chosen}, {id(run) for run in worst(chosen)}
    rows = [
        {
            "measured": _plotted(run.measured, what),
            "predicted": _plotted(run.predicted, what),
            "chosen": id(run) in own,
            "worst": id(run) in marked,
            "name": _name(run),
            "shown": f"{_written(run.predicted, what)}, {_written(run.measured, what)}",
            "error": format_difference(run.error),
        }
        for run in runs
    ]
    return pd.DataFrame(rows)


def _plotted(value: float, what: What) -> float:
    return value if what == "time" else gib(value)


def _written(value: float, what: What) -> str:
    return format_time(value) if what == "time" else format_memory(value)


def _name(run: Residual) -> str:
    return parts.plain(f"{run.source}, row {run.row}: {run.model}, {run.layout}, {run.device}")


def worst(runs: Sequence[Residual]) -> list[Residual]:
    """The runs with the largest error, the largest first."""
    return sorted(runs, key=lambda run: -abs(run.error))[:WORST_SHOWN]


def worst_table(runs: Sequence[Residual], what: What) -> pd.DataFrame:
    """The worst runs by name."""
    return pd.DataFrame(
        [
            {
                t("Error"): format_difference(run.error),
                t("Source"): run.source,
                t("Row"): run.row,
                t("Model"): parts.plain(run.model),
                t("Layout"): run.layout,
                t("Device"): run.device,
                t("Predicted"): _written(run.predicted, what),
                t("Measured"): _written(run.measured, what),
            }
            for run in worst(runs)
        ]
    )


def score_table(runs: Sequence[Residual], title: str, name: Callable[[Residual], str]) -> pd.DataFrame:
    """Errors by source or by device: median and mean as numbers of hundredths for their bars, most runs first."""
    groups = sorted(by_key(runs, name).items(), key=lambda item: (-len(item[1]), str(item[0])))
    scores = [(str(key), scored(group)) for key, group in groups]
    return pd.DataFrame(
        {
            title: [key for key, _ in scores],
            t("Runs"): [each.n for _, each in scores],
            median_column(): [percent(each.median_abs_error or 0.0) for _, each in scores],
            t("Mean"): [format_share(each.mean_abs_error) for _, each in scores],
            t("Bias"): [format_difference(each.bias) for _, each in scores],
            t("Rank correlation"): ["" if each.spearman is None else f"{each.spearman:.3f}" for _, each in scores],
        }
    )


def median_column() -> str:
    """Title of the column that has bars."""
    return t("Median error, %")


def targets_table(figures: Sequence[Figure]) -> pd.DataFrame:
    """Every figure that was asked for, what is reached, and whether that is enough."""
    met = {True: t("met"), False: t("missed"), None: ""}
    asked = [figure for figure in figures if figure.target is not None]
    return pd.DataFrame(
        {
            "": [met[figure.is_met] for figure in asked],
            t("Figure"): [t(figure.what) for figure in asked],
            t("Reached"): [figure_value(figure, figure.value) for figure in asked],
            t("Asked"): [f"{'≥' if f.at_least else '≤'} {figure_value(f, f.target)}" for f in asked],
            t("Runs"): [figure.n for figure in asked],
        }
    )


def target_widths() -> dict[str, int]:
    """Pixels of the columns of short entries, so that whether a target is met is not cut off beside long names."""
    return {t("Reached"): 70, t("Asked"): 70, "": 72, t("Runs"): 60}


def targets_words() -> str:
    """What the figures' names mean."""
    return t(
        "Regret: by how much the layout that the planner picks is slower than the best measured one. Rank correlation: "
        "1 where layouts are predicted in their measured order."
    )


def targets_caption(figures: Sequence[Figure]) -> str:
    """How many are met."""
    known = [figure.is_met for figure in figures if figure.is_met is not None]
    return t("{met} of {all} met", met=sum(known), all=len(known))
