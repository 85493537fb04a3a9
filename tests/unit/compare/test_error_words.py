"""Where an error bar comes from is said in words."""

from __future__ import annotations

from dataclasses import replace

from tpdpdash.compare.error_words import bar_sentence
from tpdpdash.cost.error_bar import ErrorBar
from tpdpdash.cost.residuals import RunKind

OWN = ErrorBar(
    frac=0.1, kind=RunKind(framework="builtin"), rows=8, sources=1, wider=1.0, is_of_this_machine=True
)  # fmt: skip


def test_the_bar_of_a_calibrated_machine_names_the_runs_that_checked_it():
    assert bar_sentence(OWN) == "± is what 8 short runs show with which this machine was calibrated."
    wider = bar_sentence(replace(OWN, wider=1.1))
    assert wider.startswith(bar_sentence(OWN))
    assert wider.endswith("Wider by 10.0 %: it has more ranks than they had.")


def test_the_bar_of_published_runs_names_their_kind_and_number():
    told = bar_sentence(replace(OWN, is_of_this_machine=False, sources=4))
    assert told == "± is what 8 measured runs of 4 sources show: builtin."


def test_without_a_bar_no_error_is_known():
    assert bar_sentence(None).startswith("No error is known")
