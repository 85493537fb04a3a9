"""Measurements of this machine → figures of the cluster file: curves fitted to samples, by the formulas that use them.

Every fit is of relative errors, so that small and large sizes count alike. Pure: reads and starts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tpdpdash.cluster.figures import DEVICE_LIMITS, LINK_LIMITS
from tpdpdash.cluster.measured import VERSION, MeasuredFile
from tpdpdash.cluster.spec import RankSpeed
from tpdpdash.compare.calibration_checks import checks_of
from tpdpdash.compare.calibration_links import fitted_link
from tpdpdash.cost.arrays import Floats
from tpdpdash.cost.builtin_time import layer_elements
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.operators import FLASH_BACKWARD_SPEED, FLASH_BACKWARD_WORK, flash_attention_flops, gemm_share
from tpdpdash.cost.optimizer import COUNTED_UPDATE_BYTES
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.fields import Limits
from tpdpdash.model.spec import ModelSpec
from tpdpdash.telemetry.measurements import Measurement, Measurements, read_measurements
from tpdpdash.units import GB, MICROSECOND, TERA

HALF_K = (0.0, *np.geomspace(1, 4096, 49))
"""Values of K0 that are tried."""
HALF_AREA = (0.0, *np.geomspace(16, 4 << 20, 57))
"""Values of A0 that are tried."""
FP32_BYTES = 4.0
LEAST_SECONDS = 1e-9


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCurve:
    """cost.operators.gemm_share, of `peak`."""

    peak_flops_per_s: float
    """Fastest product that was measured."""
    cap: float
    """Efficiency of a large product."""
    half_k: float
    """K0."""
    half_area: float
    """A0."""

    def seconds(self, rows: float, inner: float, outer: float) -> float:
        """Of one product."""
        share = gemm_share(inner, rows * outer, cap=self.cap, half_k=self.half_k, half_area=self.half_area)
        return float(2.0 * rows * inner * outer / (self.peak_flops_per_s * share))


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
    memory, misfit = _memory_and_launch(measurements, alone, curve, reached)
    link, link_misfit = fitted_link(measurements)
    fits = [(curve.seconds(*each.sizes), each.seconds) for each in products]
    return Figures(
        device=device | memory,
        links=link,
        speeds=_speeds(measurements),
        misfit={"gemm": median_misfit(fits), **misfit, **link_misfit},
    )


def median_misfit(pairs: Sequence[tuple[float, float]]) -> float:
    """Median |fitted / measured − 1|."""
    return float(np.median([abs(fitted / measured - 1) for fitted, measured in pairs])) if pairs else math.nan


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


def fitted_gemm(products: Sequence[Measurement]) -> GemmCurve:
    """The curve nearest to measured products: K0 and A0 by trying, the cap as the median of what remains."""
    rows, inner, outer = np.array([each.sizes for each in products], np.float64).T
    rates = 2.0 * rows * inner * outer / np.array([max(each.seconds, LEAST_SECONDS) for each in products])
    peak, best = float(rates.max()), (math.inf, 1.0, 0.0, 0.0)
    reached = np.log(rates / peak)
    for half_k in HALF_K:
        for half_area in HALF_AREA:
            left = reached - np.log(gemm_share(inner, rows * outer, cap=1.0, half_k=half_k, half_area=half_area))
            cap = min(1.0, math.exp(float(np.median(left))))
            misfit = float(np.abs(left - math.log(cap)).mean())
            if misfit < best[0]:
                best = (misfit, cap, float(half_k), float(half_area))
    return GemmCurve(peak_flops_per_s=peak, cap=best[1], half_k=best[2], half_area=best[3])


def _attention_flops(sizes: tuple[int, ...], *, backward: bool) -> float:
    """FLOPs of fused causal attention; backward's as many as forward would do in its time."""
    tokens, heads, width = sizes
    work = float(flash_attention_flops(tokens, tokens, heads, width, width))
    return work * (FLASH_BACKWARD_WORK / FLASH_BACKWARD_SPEED if backward else 1.0)


def fitted_attention(attention: Sequence[Measurement], peak_flops_per_s: float) -> float:
    """Share of the peak that attention reaches: geometric mean over sizes and passes."""
    shares = [
        _attention_flops(each.sizes, backward=each.what.endswith("backward"))
        / (max(each.seconds, LEAST_SECONDS) * peak_flops_per_s)
        for each in attention
    ]
    return float(np.clip(np.exp(np.mean(np.log(shares))), 0.01, 1.0))


# ---------------------------------------------------------------------------- element-wise operators and launches


def _memory_and_launch(
    measurements: Measurements, alone: Sequence[Measurement], curve: GemmCurve, attention: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Bandwidth of element-wise operators and the host's time of one. On a CPU from whole layers, where both add up,
    against what the optimizer's update streams; on a GPU from copies and launches themselves."""
    if not measurements.is_cpu:
        copies = [2.0 * each.sizes[0] / each.seconds for each in alone if each.what == "copy"]
        launches = [each.seconds for each in alone if each.what == "launch"]
        found = {"memory_gb_per_s": max(copies) / GB, "memory_efficiency": 1.0} if copies else {}
        return found | ({"launch_us": launches[0] / MICROSECOND} if launches else {}), {}
    samples, streamed = layer_samples(alone, curve, attention), _streamed_bytes_per_s(alone)
    bandwidth, launch = fitted_host(samples)
    bandwidth = min(bandwidth, streamed)
    figures = {
        "memory_gb_per_s": streamed / GB,
        "memory_efficiency": bandwidth / streamed,
        "launch_us": launch / MICROSECOND,
    }
    fits = [(each.known_s + each.moved / bandwidth + each.launches * launch, each.seconds) for each in samples]
    return figures, {"layers": median_misfit(fits)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """seconds = known_s + moved / bandwidth + launches · launch."""

    seconds: float
    """Measured."""
    known_s: float
    """Of products and attention, by their own curves."""
    moved: float
    """Bytes that element-wise operators read and write."""
    launches: float
    """Operators."""


def layer_samples(alone: Sequence[Measurement], curve: GemmCurve, attention: float) -> list[HostSample]:
    """Passes over one built-in layer: forward alone, and forward with backward."""
    habits, samples = framework_habits("builtin"), []
    for each in alone:
        if each.what not in ("layer_forward", "layer_both"):
            continue
        h, f, heads, tokens = each.sizes
        model = ModelSpec(
            name="measured", num_layers=1, hidden_size=h, num_attention_heads=heads, num_kv_heads=heads,
            head_dim=h // heads, ffn_hidden_size=f, vocab_size=2,
        )  # fmt: skip
        counted = layer_elements(model, tp=1.0, split=1.0, is_cpu=True)
        peak = curve.peak_flops_per_s * attention
        forward_s = (
            _products_s(curve, h, f, tokens, 0) + _attention_flops((tokens, heads, h // heads), backward=False) / peak
        )
        sample = HostSample(
            seconds=each.seconds,
            known_s=forward_s,
            moved=FP32_BYTES * tokens * float(counted.forward),
            launches=habits.layer_kernels,
        )
        if each.what == "layer_both":
            products = _products_s(curve, h, f, tokens, 1) + _products_s(curve, h, f, tokens, 2)
            weights = 4.0 * h * h + 3.0 * h * f
            sample = HostSample(
                seconds=each.seconds,
                known_s=forward_s + products + _attention_flops((tokens, heads, h // heads), backward=True) / peak,
                moved=sample.moved
                + FP32_BYTES * tokens * float(counted.backward)
                + habits.accumulation_bytes * weights,
                launches=sample.launches * (1 + habits.backward_kernels),
            )
        samples.append(sample)
    return samples


def _products_s(curve: GemmCurve, h: int, f: int, tokens: int, turn: int) -> float:
    """The layer's products as cost.layer has them (QKV in one, gate and up in one): forward 0, input gradients 1,
    weight gradients 2."""
    shapes = ((tokens, h, 3 * h), (tokens, h, h), (tokens, h, 2 * f), (tokens, f, h))
    turned: Callable[[int, int, int], tuple[int, int, int]] = (
        lambda m, k, n: (m, k, n),
        lambda m, k, n: (m, n, k),
        lambda m, k, n: (k, m, n),
    )[turn]
    return sum(curve.seconds(*turned(*shape)) for shape in shapes)


def _streamed_bytes_per_s(alone: Sequence[Measurement]) -> float:
    """Bandwidth of AdamW's update of flat buffers, in the mean over sizes."""
    rates = [COUNTED_UPDATE_BYTES["adamw"] * each.sizes[0] / each.seconds for each in alone if each.what == "update"]
    if not rates:
        raise InvalidInputError([Fault(code="too_few_measurements", field="calibrate", value=0)])
    return float(np.exp(np.mean(np.log(rates))))


def fitted_host(samples: Sequence[HostSample]) -> tuple[float, float]:
    """(bandwidth, seconds of one launch), least squares of relative errors, both positive."""
    if not samples:
        raise InvalidInputError([Fault(code="too_few_measurements", field="calibrate", value=0)])
    weight = np.array([1.0 / each.seconds for each in samples])
    matrix = np.array([[each.moved, each.launches] for each in samples]) * weight[:, None]
    wanted = np.array([each.seconds - each.known_s for each in samples]) * weight
    per_byte, launch = nonnegative(matrix, wanted)
    return 1.0 / max(per_byte, 1e-13), launch


def nonnegative(matrix: Floats, wanted: Floats) -> tuple[float, float]:
    """Least squares of two unknowns, neither below 0: the inner solution, or the better one on an edge."""
    first, second = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    if first >= 0 and second >= 0:
        return float(first), float(second)
    edges = []
    for at in (0, 1):
        column = matrix[:, at]
        value = max(0.0, float(column @ wanted) / max(float(column @ column), 1e-300))
        edges.append((float(np.square(column * value - wanted).sum()), (value, 0.0) if at == 0 else (0.0, value)))
    return min(edges)[1]


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
