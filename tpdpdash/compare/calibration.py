"""Measurements of this machine → figures of the cluster file: curves fitted to samples, by the formulas that use them.

Every fit is of relative errors, so that small and large sizes count alike. Pure: reads and starts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tpdpdash.cluster.figures import DEVICE_LIMITS, LINK_LIMITS
from tpdpdash.cluster.measured import VERSION, MeasuredFile
from tpdpdash.cluster.spec import RankSpeed
from tpdpdash.compare.calibration_checks import checks_of
from tpdpdash.compare.calibration_curves import LEAST_SECONDS, GemmCurve, fitted_attention, fitted_gemm, median_misfit
from tpdpdash.compare.calibration_host import memory_and_launch
from tpdpdash.compare.calibration_links import fitted_link
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.fields import Limits
from tpdpdash.telemetry.measurements import Measurement, Measurements, read_measurements
from tpdpdash.units import TERA


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the measurements say, in the human units of the cluster file."""

    device: dict[str, float]
    """Keys of DeviceFigures."""
    links: dict[str, float]
    """Keys of LinkFigures."""
    speeds: tuple[RankSpeed, ...]
    """How CPU ranks share the machine; empty for GPUs."""
    misfit: dict[str, float]
    """Median |fitted / measured − 1| of each curve."""
    stretch: float = 1.0
    """Clock time per CPU time while it was measured: how much of the cores others had."""


def fitted_figures(measurements: Measurements) -> Figures:
    """All figures. Raises InvalidInputError where too little was measured."""
    alone = [each for each in measurements.taken if each.busy == 1]
    main = "fp32" if measurements.is_cpu else "bf16"
    products = [each for each in alone if each.what == "gemm" and each.precision == main]
    attention = [each for each in alone if each.what.startswith("attention")]
    if len(products) < 3 or not attention:
        raise InvalidInputError([Fault(code="too_few_measurements", field="calibrate", value=len(alone))])
    curve = fitted_gemm(products)
    device = {
        **_peaks(alone, curve, main),
        "gemm_efficiency": curve.cap,
        "gemm_half_k": curve.half_k,
        "gemm_half_area": curve.half_area,
    }
    reached = fitted_attention(attention, curve.peak_flops_per_s)
    device |= {"attention_efficiency": reached, "portable_attention_efficiency": reached}
    memory, misfit = memory_and_launch(measurements, alone, curve, reached)
    link, link_misfit = fitted_link(measurements)
    fits = [(curve.seconds(*each.sizes), each.seconds) for each in products]
    return Figures(
        device=device | memory,
        links=link,
        speeds=_speeds(measurements),
        misfit={"gemm": median_misfit(fits), **misfit, **link_misfit},
    )


def _peaks(alone: Sequence[Measurement], curve: GemmCurve, main: str) -> dict[str, float]:
    """Fastest product in each precision; fp16 is taken to run as bf16. On a GPU torch multiplies fp32 in full, which
    says nothing of the TF32 peak: torch.backends.cuda.matmul.allow_tf32 is false by default."""
    fastest = {main: curve.peak_flops_per_s}
    for each in alone:
        if each.what == "gemm" and each.precision != main:
            rows, inner, outer = each.sizes
            rate = 2.0 * rows * inner * outer / max(each.seconds, LEAST_SECONDS)
            fastest[each.precision] = max(fastest.get(each.precision, 0.0), rate)
    if main != "fp32" and "fp32" in fastest:
        fastest["fp32_simt"] = fastest.pop("fp32")
    return {f"peak_{precision}_tflops": rate / TERA for precision, rate in fastest.items()}


# --------------------------------------------------------------------------------------------- ranks at once


def _speeds(measurements: Measurements) -> tuple[RankSpeed, ...]:
    """What each of several busy ranks reaches against one alone: products for computation, updates for memory."""
    if not measurements.is_cpu:
        return ()
    counts = sorted({each.busy for each in measurements.taken if each.what == "gemm"})
    return tuple(
        RankSpeed(
            ranks=busy,
            compute_frac=_speed(measurements.taken, busy, ("gemm", "layer_forward", "layer_both")),
            memory_frac=_speed(measurements.taken, busy, ("update",)),
        )
        for busy in counts
    )


def _speed(taken: Sequence[Measurement], busy: int, kinds: tuple[str, ...]) -> float:
    """Median over sizes of the time alone by the time with `busy` ranks."""
    alone = {(each.what, each.sizes, each.precision): each.seconds for each in taken if each.busy == 1}
    ratios = [
        alone[key] / max(each.seconds, LEAST_SECONDS)
        for each in taken
        if each.busy == busy and each.what in kinds and (key := (each.what, each.sizes, each.precision)) in alone
    ]
    return float(np.clip(np.median(ratios), 0.01, 1.0)) if ratios else 1.0


def stretch_of(measurements: Measurements) -> float:
    """Clock time per CPU time while it was measured: how much of the cores others had."""
    return float(np.median([each.stretch for each in measurements.taken if each.what == "gemm"]))


def at_limits(figures: dict[str, float], limits: Limits) -> dict[str, float]:
    """Figures within what the cluster file may hold, rounded to what was measured: four digits."""
    return {key: float(f"{min(max(value, limits[key][0]), limits[key][1]):.4g}") for key, value in figures.items()}


def rounded(speed: RankSpeed) -> RankSpeed:
    """Shares with three digits."""
    return replace(speed, compute_frac=round(speed.compute_frac, 3), memory_frac=round(speed.memory_frac, 3))


def cluster_file(folder: Path, *, run_id: str, device: str, cores: int, date: str) -> tuple[MeasuredFile, Figures]:
    """The cluster file that a finished calibration says, and how well its curves fit. Raises InvalidInputError."""
    try:
        measurements = read_measurements(folder)
    except (OSError, ValueError) as wrong:
        values = {"reason": str(wrong)}
        raise InvalidInputError([Fault(code="no_measurements", field="run", value=run_id, values=values)]) from wrong
    figures = fitted_figures(measurements)
    file = MeasuredFile(
        v=VERSION,
        date=date,
        run=run_id,
        device=device,
        cores=cores,
        figures=at_limits(figures.device, DEVICE_LIMITS),
        links=at_limits(figures.links, LINK_LIMITS),
        speeds=tuple(rounded(speed) for speed in figures.speeds),
    )
    return replace(file, checks=checks_of(file, measurements)), replace(figures, stretch=stretch_of(measurements))
