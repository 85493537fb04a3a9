"""What measured messages say of a link, by the formulas that price them: bandwidth, latency, what a message takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpdpdash.compare.calibration_curves import LEAST_SECONDS
from tpdpdash.cost.arrays import Floats
from tpdpdash.cost.collectives import GroupLink, all_gather_s, all_reduce_s, reduce_scatter_s
from tpdpdash.telemetry.measurements import Measurement, Measurements
from tpdpdash.units import GB, MICROSECOND

RATES = np.geomspace(1e7, 1e12, 151)
"""Bandwidths that are tried [bytes/s]."""
LATENCIES = np.geomspace(1e-7, 1e-2, 151)
"""Latencies that are tried [s]."""
MESSAGES = (0.0, *np.geomspace(1e-5, 1e-2, 46))
"""What a collective over gloo takes besides, that is tried [s]; elsewhere the host's launches are that (cost.layer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCurve:
    """A link as its messages tell it."""

    bytes_per_s: float
    """Bandwidth."""
    latency_s: float
    """Of a hop."""
    message_s: float
    """What a collective takes besides."""
    misfit: float
    """Median |fitted / measured − 1|."""


def fitted_link(measurements: Measurements) -> tuple[dict[str, float], dict[str, float]]:
    """(figures of [cluster.links], misfit): what best prices all messages; nothing where none was measured."""
    messages = [each for each in measurements.taken if each.what in _PRICES]
    if not messages:
        return {}, {}
    curve = fitted_messages(messages, over_gloo=measurements.is_cpu)
    figures = {
        "scale_up_gb_per_s": curve.bytes_per_s / GB,
        "scale_up_efficiency": 1.0,
        "scale_up_latency_us": curve.latency_s / MICROSECOND,
    }
    if measurements.is_cpu:
        figures["scale_up_message_us"] = curve.message_s / MICROSECOND
    return figures, {"messages": curve.misfit}


def fitted_messages(messages: Sequence[Measurement], *, over_gloo: bool) -> LinkCurve:
    """The curve of the least mean |log(fitted / measured)|, by trying."""
    measured = np.log(np.array([max(each.seconds, LEAST_SECONDS) for each in messages]))
    best, curve = np.inf, (0.0, 0.0, 0.0)
    for rate in RATES:
        for message_s in MESSAGES if over_gloo else MESSAGES[:1]:
            found = np.array([_seconds(each, rate, LATENCIES, message_s, over_gloo) for each in messages])
            off = np.abs(np.log(found) - measured[:, None]).mean(axis=0)
            at = int(off.argmin())
            if off[at] < best:
                best, curve = float(off[at]), (float(rate), float(LATENCIES[at]), float(message_s))
    rate, latency_s, message_s = curve
    fitted = [float(_seconds(each, rate, np.array([latency_s]), message_s, over_gloo)[0]) for each in messages]
    misfit = float(np.median(np.abs(np.array(fitted) / np.exp(measured) - 1)))
    return LinkCurve(bytes_per_s=rate, latency_s=latency_s, message_s=message_s, misfit=misfit)


def _link(size: int, rate: float, latency_s: Floats, message_s: float, over_gloo: bool) -> GroupLink:
    """A group inside one machine, a row a latency."""
    one = np.ones_like(latency_s)
    return GroupLink(
        size=size * one,
        members=size * one,
        bytes_per_s=rate * one,
        ring_latency_s=size * latency_s,
        tree_latency_s=np.ceil(np.log2(size)) * latency_s,
        message_s=message_s,
        scatters_whole=over_gloo,
    )


_PRICES = {"all_reduce": all_reduce_s, "all_gather": all_gather_s, "reduce_scatter": reduce_scatter_s, "send": None}


def _seconds(each: Measurement, rate: float, latency_s: Floats, message_s: float, over_gloo: bool) -> Floats:
    """One message at each latency; a measured send has an answer: two hops."""
    price, size = _PRICES[each.what], float(each.sizes[0])
    if price is None:
        return size / rate + 2 * latency_s
    return np.asarray(price(size, _link(each.busy, rate, latency_s, message_s, over_gloo)))
