"""The figures that were asked for and how far each is reached on published runs; the packaged ones are targets.json.

The file is written by `python -m tpdpdash.compare.accuracy`, never by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files

from tpdpdash.compare.predict import PredictedCase
from tpdpdash.compare.scores import Score, by_key, mean, regret
from tpdpdash.compare.validate import (
    COMPLETE,
    Validation,
    memory_score,
    ran_but_does_not_fit,
    state_score,
    time_score,
)
from tpdpdash.text import t
from tpdpdash.units import format_count, format_share

FILE = "targets.json"
PEAK_SOURCES = (
    "simumax-b200",
    "zero-bubble",
    "bigscience-tr11",
    "torchtitan",
    "nanotron-playbook",
    "nanotron-old-bench",
    "mbridge-skills",
    "megatron-golden",
)
"""Sources whose peaks were measured on real runs of a stated layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table."""

    what: str
    """The set of rows and the figure."""
    value: float | None
    """Reached; a fraction unless `is_count`. None: no such row."""
    target: float | None
    """Asked for; None where nothing is."""
    n: int
    """Rows (or sources) behind it."""
    at_least: bool = False
    """The target is a lower bound."""
    is_count: bool = False
    """A number of rows."""
    is_plain: bool = False
    """A plain number, as a correlation is."""

    @property
    def is_met(self) -> bool | None:
        """Whether the target is reached; None where there is none, or no figure."""
        if self.value is None or self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


def figure_value(figure: Figure, value: float | None) -> str:
    """A figure's value, or its target, as people read it; empty where there is none."""
    if value is None:
        return ""
    if figure.is_count:
        return format_count(value)
    return f"{value:.3f}" if figure.is_plain else format_share(value)


def figures(runs: Validation, memory: Validation) -> list[Figure]:
    """Every figure of the table."""
    return [*_korthikanti(runs), *_vtrain(runs), *_simumax(runs), *_overall(runs), *_memory(runs, memory)]


# ------------------------------------------------------------------------------------------------------------- time


def _korthikanti(runs: Validation) -> list[Figure]:
    """Korthikanti 2022 (arXiv:2205.05198) table 5, by what is recomputed."""
    rows = [p for p in of_source(runs, "korthikanti-2022") if p.error is not None]
    selective = [p for p in rows if p.case.layout.recompute == "selective"]
    full = [p for p in rows if p.case.layout.recompute == "full"]
    worst = max((abs(p.error) for p in selective if p.error is not None), default=None)
    name = t("Korthikanti 2022")
    return [
        _of(t("{set}, selective recompute: mean |error|", set=name), time_score(selective), "mean_abs_error", 0.03),
        Figure(
            what=t("{set}, selective recompute: largest |error|", set=name), value=worst, target=0.06, n=len(selective)
        ),
        _of(t("{set}, full recompute: mean |error|", set=name), time_score(full), "mean_abs_error", 0.02),
    ]


def _vtrain(runs: Validation) -> list[Figure]:
    """vTrain's runs: over nodes, and in one node by (tp, micro-batch) cells, which hold its independent layer times."""
    multi, single = of_source(runs, "vtrain-multi"), of_source(runs, "vtrain-single")
    multi_score = time_score(multi)
    cells = by_key(single, lambda p: (p.case.layout.tp, p.case.layout.micro_batch_size))
    per_cell = mean(time_score(cell).mean_abs_error for cell in cells.values())
    return [
        _of("vtrain-multi: " + t("median |error|"), multi_score, "median_abs_error", 0.03),
        _of("vtrain-multi: " + t("mean |error|"), multi_score, "mean_abs_error", 0.08),
        _rank("vtrain-multi: " + t("rank correlation"), multi_score, 0.98),
        _regret("vtrain-multi: " + t("regret of the pick"), multi, 0.01),
        Figure(what="vtrain-single: " + t("mean |error| of the cells"), value=per_cell, target=0.08, n=len(cells)),
        _rank("vtrain-single: " + t("rank correlation"), time_score(single), 0.97),
        _regret("vtrain-single: " + t("regret of the pick"), single, 0.03),
    ]


def _simumax(runs: Validation) -> list[Figure]:
    rows = of_source(runs, "simumax-b200")
    return [
        _of("simumax-b200: " + t("median |error| of time"), time_score(rows), "median_abs_error", 0.03),
        _of("simumax-b200: " + t("median |error| of peak memory"), memory_score(rows), "median_abs_error", 0.01),
    ]


def _overall(runs: Validation) -> list[Figure]:
    """All sources alike, and mixtures of experts alone."""
    complete = [p for p in runs.predictions if p.case.complete == COMPLETE]
    experts = [p for p in runs.predictions if p.case.model.is_moe]
    complete_experts = [p for p in complete if p.case.model.is_moe]
    return [
        _mean_of_sources(t("complete rows: mean of the sources' median |error|"), complete, time_score, 0.05),
        _mean_of_sources(t("all rows: mean of the sources' median |error|"), runs.predictions, time_score, None),
        _of(t("mixtures of experts: median |error|"), time_score(experts), "median_abs_error", 0.10),
        _of(
            t("mixtures of experts, complete rows: median |error|"),
            time_score(complete_experts),
            "median_abs_error",
            0.10,
        ),
    ]


# ----------------------------------------------------------------------------------------------------------- memory


def _memory(runs: Validation, memory: Validation) -> list[Figure]:
    """Measured peaks, what is called too large, and states."""
    rows = [p for p in memory.predictions if p.case.source in PEAK_SOURCES]
    refused = sum(map(ran_but_does_not_fit, (*runs.predictions, *memory.predictions)))
    states = [p for p in memory.predictions if p.case.measured_state_bytes and p.case.is_measured]
    return [
        _mean_of_sources(
            t("peak memory of the sources asked about: mean of their median |error|"), rows, memory_score, 0.04
        ),
        Figure(
            what=t("rows that ran and are called too large"),
            value=refused,
            target=0,
            n=len(runs.predictions) + len(memory.predictions),
            is_count=True,
        ),
        _of(t("state bytes: median |error|"), state_score(states), "median_abs_error", 0.005),
        *(
            _of(
                t("state bytes, {source}: median |error|", source=source), state_score(group), "median_abs_error", 0.005
            )
            for source, group in by_key(states, lambda p: p.case.source).items()
        ),
    ]


# --------------------------------------------------------------------------------------------------------- one line


def of_source(found: Validation, source: str) -> list[PredictedCase]:
    """The predictions of one source."""
    return [p for p in found.predictions if p.case.source == source]


def _of(what: str, score: Score, name: str, target: float | None) -> Figure:
    return Figure(what=what, value=getattr(score, name), target=target, n=score.n)


def _rank(what: str, score: Score, target: float) -> Figure:
    return Figure(what=what, value=score.spearman, target=target, n=score.n, at_least=True, is_plain=True)


def _mean_of_sources(
    what: str, rows: Iterable[PredictedCase], scored: Callable[[list[PredictedCase]], Score], target: float | None
) -> Figure:
    scores = [scored(group) for group in by_key(rows, lambda p: p.case.source).values()]
    medians = [each.median_abs_error for each in scores if each.n]
    return Figure(what=what, value=mean(medians), target=target, n=len(medians))


def _regret(what: str, rows: Sequence[PredictedCase], target: float) -> Figure:
    """Mean regret over the choices that a planner has: the same model, devices and batch, several layouts."""
    timed = [p for p in rows if p.step_s is not None and p.case.measured_step_s is not None]
    choices = by_key(timed, lambda p: (p.case.model, p.case.layout.world_size, p.case.training.global_batch_size))
    lost = [
        regret([p.step_s or 0.0 for p in group], [p.case.measured_step_s or 0.0 for p in group])
        for group in choices.values()
        if len(group) > 1
    ]
    return Figure(what=what, value=mean(lost), target=target, n=len(lost))


# ------------------------------------------------------------------------------------------------------------- file


def figures_text(found: Sequence[Figure]) -> str:
    """The JSON text that `packaged_figures` reads: one figure a line."""
    return "[\n" + ",\n".join(json.dumps(asdict(figure), ensure_ascii=False) for figure in found) + "\n]\n"


@cache
def packaged_figures() -> tuple[Figure, ...]:
    """The figures that came with this version, read once."""
    text = files("tpdpdash.compare").joinpath(FILE).read_text(encoding="utf-8")
    return tuple(Figure(**figure) for figure in json.loads(text))
