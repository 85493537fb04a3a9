"""Where an error bar comes from, in words: for the command line and the screens alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpdpdash.text import t
from tpdpdash.units import format_count, format_share

if TYPE_CHECKING:
    from tpdpdash.cost.error_bar import ErrorBar
    from tpdpdash.cost.residuals import RunKind

UNKNOWN_ERROR = "No error is known: nothing like this was measured and published."


def kind_words(kind: RunKind) -> str:
    """What runs have in common: megatron-core, Hopper, dense, 16 bit."""
    shared = [] if kind.framework is None else [kind.framework]
    if kind.architecture:
        shared.append(kind.architecture.capitalize())
    if kind.is_moe is not None:
        shared.append(t("mixture of experts") if kind.is_moe else t("dense"))
    if kind.is_low_precision is not None:
        shared.append(t("fp8 or fp4") if kind.is_low_precision else t("16 bit"))
    if kind.is_lora:
        shared.append("LoRA")
    return ", ".join(shared) or t("of any kind")


def bar_sentence(bar: ErrorBar | None) -> str:
    """How the error of an estimate is known."""
    if bar is None:
        return t(UNKNOWN_ERROR)
    if bar.is_of_this_machine:
        return _own_sentence(bar)
    told = t(
        "± is what {runs} measured runs of {sources} sources show: {kind}.",
        runs=format_count(bar.rows),
        sources=bar.sources,
        kind=kind_words(bar.kind),
    )
    if bar.wider == 1:
        return told
    more = t("Wider by {share}: nothing measured has its framework, device, schedule and size.",
             share=format_share(bar.wider - 1))  # fmt: skip
    return f"{told} {more}"


def _own_sentence(bar: ErrorBar) -> str:
    """Of a bar that this machine's calibration found."""
    told = t("± is what {runs} short runs show with which this machine was calibrated.", runs=format_count(bar.rows))
    if bar.wider == 1:
        return told
    return told + " " + t("Wider by {share}: it has more ranks than they had.", share=format_share(bar.wider - 1))
