"""What element-wise operators and launches take beside products and attention: fitted to layers, updates and copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tpdpdash.compare.calibration_curves import GemmCurve, attention_flops, median_misfit
from tpdpdash.cost.arrays import Floats
from tpdpdash.cost.builtin_time import layer_elements
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.optimizer import COUNTED_UPDATE_BYTES
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.model.spec import ModelSpec
from tpdpdash.telemetry.measurements import Measurement, Measurements
from tpdpdash.units import GB, MICROSECOND

FP32_BYTES = 4.0


def memory_and_launch(
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
            _products_s(curve, h, f, tokens, 0) + attention_flops((tokens, heads, h // heads), backward=False) / peak
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
                known_s=forward_s + products + attention_flops((tokens, heads, h // heads), backward=True) / peak,
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
