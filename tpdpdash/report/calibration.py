"""Answers of `tpdpdash calibrate`: what was measured, beside what stood there before."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tpdpdash.cluster.catalogue import catalogue_device
from tpdpdash.cluster.figures import device_figures
from tpdpdash.cluster.measured import config_path
from tpdpdash.report.lines import table
from tpdpdash.text import t
from tpdpdash.units import format_share, format_time

if TYPE_CHECKING:
    from tpdpdash.cluster.measured import Correction, MeasuredFile
    from tpdpdash.compare.calibration import Figures

LOADED = 1.2
"""Clock time per CPU time from which on it is said that others used the cores."""


def calibration_document(file: MeasuredFile, figures: Figures | None = None) -> dict[str, Any]:
    """`calibrate --json`."""
    fit = {} if figures is None else {"misfit": figures.misfit, "stretch": figures.stretch}
    return {
        "file": str(config_path()), "date": file.date, "run": file.run, "device": file.device, "cores": file.cores,
        "figures": dict(file.figures), "links": dict(file.links), "ranks": [asdict(each) for each in file.speeds],
        "corrections": [asdict(each) for each in file.corrections],
        "checks": [asdict(each) for each in file.checks], **fit,
    }  # fmt: skip


def calibration_rows(file: MeasuredFile) -> list[list[str]]:
    """Each measured figure beside the catalogue's."""
    before = device_figures(catalogue_device(file.device))
    return [
        [key, f"{value:.4g}", f"{before[key]:.4g}" if key in before else "–"]
        for key, value in {**file.figures, **file.links}.items()
    ]


def share_lines(file: MeasuredFile) -> list[str]:
    """How ranks share the machine."""
    return [
        t(
            "{n} ranks at once: {compute} of the speed of one alone, {memory} of its memory bandwidth",
            n=each.ranks,
            compute=format_share(each.compute_frac),
            memory=format_share(each.memory_frac),
        )
        for each in file.speeds
        if each.ranks > 1
    ]


def check_rows(file: MeasuredFile) -> list[list[str]]:
    """The short runs beside what the figures say of them, under a head: what the error bar of this machine is made
    of."""
    return [
        [t("Short run"), t("Predicted"), t("Measured"), t("Predicted is off by")],
        *(
            [
                t("{layout}, hidden size {size}", layout=each.layout, size=each.hidden_size),
                format_time(each.predicted_s),
                format_time(each.measured_s),
                f"{each.predicted_s / each.measured_s - 1:+.1%}",
            ]
            for each in file.checks
        ),
    ]


def calibration_lines(file: MeasuredFile, figures: Figures | None = None) -> list[str]:
    """Each figure beside the catalogue's, and where they are kept."""
    rows = calibration_rows(file)
    lines = table([[t("figure"), t("measured"), t("catalogue")], *rows])
    lines += [*share_lines(file), *(correction_line(each) for each in file.corrections)]
    lines += table(check_rows(file)) if file.checks else []
    if figures is not None:
        fits = ", ".join(f"{name} {format_share(off)}" for name, off in figures.misfit.items())
        lines.append(t("the curves miss what was measured by (median): {fits}", fits=fits))
        if figures.stretch > LOADED:
            share = format_share(1 / figures.stretch)
            lines.append(
                t(
                    "others used the cores meanwhile: a rank had {share} of one; messages and steps are slower by it",
                    share=share,
                )
            )
    return [*lines, t('measured on {date}; device "local" uses {path} from now on', date=file.date, path=config_path())]


def correction_line(correction: Correction) -> str:
    """What a trusted run changed."""
    return t(
        "corrected on {date} by run {run}: computation × {compute}, messages × {messages}",
        date=correction.date,
        run=correction.run,
        compute=f"{correction.compute:.2f}",
        messages=f"{correction.messages:.2f}",
    )
