"""Answers about a run taken to account: its figures, the verdict, prediction beside measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpdpdash import units
from tpdpdash.compare.verdict_words import evidence, gap_sentence, headline, next_step, part_word
from tpdpdash.report.history import run_document, run_lines
from tpdpdash.report.lines import table
from tpdpdash.report.profiles import kept_document, kept_lines
from tpdpdash.text import t

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpdpdash.compare.account import Account
    from tpdpdash.compare.attribution import Attribution
    from tpdpdash.run.history import RunView
    from tpdpdash.telemetry.profile_file import KeptProfile


def shown_document(view: RunView, account: Account | None, profiles: Sequence[KeptProfile]) -> dict[str, Any]:
    """`show --json`: the status; measured, verdict and prediction (null before there is a step); deep profiles."""
    nothing = {"measured": None, "verdict": None, "prediction": None}
    judged = nothing if account is None else account.to_json()
    return {**run_document(view), **judged, "profiles": kept_document(profiles)}


def shown_lines(view: RunView, account: Account | None, profiles: Sequence[KeptProfile] = ()) -> list[str]:
    """One run, in words: state, figures, verdict, prediction beside measurement, deep profiles."""
    return [*run_lines(view), *([] if account is None else account_lines(account)), *kept_lines(profiles)]


def account_lines(account: Account) -> list[str]:
    """Figures, verdict, and the parts of the step."""
    measured, verdict = account.measured, account.verdict
    figures = t("step {step}, {speed} tokens/s, loss {loss}", step=units.format_time(measured.step_s),
                speed=units.format_large(measured.tokens_per_s),
                loss=t(units.UNKNOWN) if measured.loss is None else f"{measured.loss:.3f}")  # fmt: skip
    said = [figures, "", headline(verdict), evidence(verdict), next_step(verdict)]
    lines = [line for line in said if line or line == ""]
    if account.attribution is not None:
        head = [t("part of the step"), t("predicted"), t("measured"), t("gap")]
        lines += ["", gap_sentence(account.attribution), *table([head, *part_rows(account.attribution)])]
        lines += ["", *table(_memory_rows(account.attribution))]
    return lines


def part_rows(found: Attribution) -> list[list[str]]:
    """Each part of the step, then the step: predicted, measured, gap."""
    rows = [(part_word(part.part), part.predicted_s, part.measured_s) for part in found.parts]
    rows.append((t("step"), found.predicted_step_s, found.measured_step_s))
    return [[name, *beside(predicted_s, measured_s, units.format_time)] for name, predicted_s, measured_s in rows]


def beside(predicted: float | None, measured: float | None, form: Callable[[float | None], str]) -> list[str]:
    """Predicted, measured, and the gap where both are known."""
    gap = "" if predicted is None or measured is None else units.signed(measured - predicted, form)
    return [form(predicted), form(measured), gap]


def _memory_rows(found: Attribution) -> list[list[str]]:
    rows = [[t("memory of stage"), t("predicted"), t("measured, fullest rank")]]
    return rows + [
        [str(m.stage), units.format_memory(m.predicted_bytes), units.format_memory(m.measured_bytes)]
        for m in found.memory
    ]
