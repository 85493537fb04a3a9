"""docs/accuracy.md and the data behind error bars: how far estimates hold on published runs.

python -m tpdpdash.compare.accuracy RUNS.csv MEMORY.csv [--out docs/accuracy.md]

Writes the page, cost/residuals.json (error bars, the screen of accuracy) and compare/targets.json (the same screen).
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from tpdpdash.compare import targets
from tpdpdash.compare.residuals import Coverage, held_out_coverage, residuals_of
from tpdpdash.compare.score_cells import miss_cells, miss_head, score_cells
from tpdpdash.compare.scores import Score
from tpdpdash.compare.targets import Figure, figure_value, figures, figures_text
from tpdpdash.compare.validate import Validation, validate
from tpdpdash.cost import residuals as bars
from tpdpdash.cost.error_bar import COVERED_FRAC
from tpdpdash.cost.residuals import Residuals, What, residuals_text
from tpdpdash.text import t
from tpdpdash.units import format_count, format_share

WORST_ROWS = 25
QUANTITIES: dict[str, What] = {"step time": "time", "peak memory": "memory"}

# ------------------------------------------------------------------------------------------------------------- page


def page(runs: Validation, memory: Validation, found: Residuals) -> str:
    """docs/accuracy.md."""
    lines = [
        f"# {t('Accuracy')}",
        "",
        t(
            "How near the estimates come to published measurements. Made on {date} at commit {commit} by "
            "`python -m tpdpdash.compare.accuracy RUNS.csv MEMORY.csv`; not to be edited by hand. Errors are predicted "
            "/ measured − 1. `tpdpdash validate FILE.csv` does the same with runs of your own.",
            date=found.date,
            commit=found.commit,
        ),
        "",
        *_markdown([t("figure"), t("reached"), t("asked"), "", "n"], [_figure_row(f) for f in figures(runs, memory)]),
        "",
        f"## {t('Error bars')}",
        "",
        *_coverage(found),
        "",
        f"## {t('Step time by source')}",
        "",
        *_by_source(runs.by_source),
        "",
        f"## {t('Peak memory by source')}",
        "",
        *_by_source(memory.by_source),
        "",
        f"## {t('Worst rows')}",
        "",
        *_worst(runs),
        "",
        *_worst(memory),
        "",
    ]
    return "\n".join(lines)


def _coverage(found: Residuals) -> list[str]:
    """How many runs of each source lie within bars that were made from all other sources."""
    head = ["", t("runs"), t("sources"), t("within their bar"), t("mean of the sources"), t("mean half-width")]
    rows = [_coverage_row(name, held_out_coverage(found.of(what))) for name, what in QUANTITIES.items()]
    told = t(
        "A bar is meant to hold {share} of the runs of a source that nobody has seen: a quantile of "
        "|measured / estimate − 1| over the nearest kind of run, sources weighing the same; runs "
        "that do not say how many tokens a microbatch has make none. Each source in turn against "
        "the bars that all *other* sources make:",
        share=format_share(COVERED_FRAC),
    )
    return [told, "", *_markdown(head, rows)]


def _coverage_row(name: str, found: Coverage) -> list[str]:
    shares = map(format_share, (found.rows_frac, found.sources_frac, found.width_frac))
    return [t(name), format_count(found.rows), format_count(found.sources), *shares]


def _figure_row(figure: Figure) -> list[str]:
    sign = "≥" if figure.at_least else "≤"
    target = "" if figure.target is None else f"{sign} {figure_value(figure, figure.target)}"
    met = {True: t("met"), False: t("missed"), None: ""}[figure.is_met]
    return [figure.what, figure_value(figure, figure.value), target, met, str(figure.n)]


def _by_source(scores: dict[str, Score]) -> list[str]:
    head = [t("source"), "n", t("median |error|"), t("mean |error|"), t("bias"), t("rank correlation")]
    return _markdown(head, [score_cells(source, each) for source, each in scores.items() if each.n])


def _worst(found: Validation) -> list[str]:
    return _markdown(miss_head(t("row")), map(miss_cells, found.worst(WORST_ROWS)))


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def current_commit() -> str:
    """The commit of the working directory, or "unknown"."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main() -> None:
    """Read both tables, write the page and the packaged data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("memory", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/accuracy.md"))
    asked = parser.parse_args()
    runs, memory = validate(asked.runs), validate(asked.memory)
    found = residuals_of(runs, memory, date=datetime.now(UTC).date().isoformat(), commit=current_commit())
    text = page(runs, memory, found)
    asked.out.write_text(text, encoding="utf-8")
    for room, name, data in (
        ("cost", bars.FILE, residuals_text(found)),
        ("compare", targets.FILE, figures_text(figures(runs, memory))),
    ):
        Path(str(files(f"tpdpdash.{room}").joinpath(name))).write_text(data, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
