"""The only unit arithmetic: factors, whole-number helpers, and how quantities are written for people.

Inside the package everything is bytes, seconds, FLOPs, watts and fractions. Human units appear in catalogue
files, widgets and labels only, and are converted here, once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeGuard, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numeric = float | NDArray[np.float64]

KIB, MIB, GIB = 2**10, 2**20, 2**30
KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
TERA = 1e12
BILLION = 1e9
BITS_PER_BYTE = 8
MILLISECOND, MICROSECOND = 1e-3, 1e-6
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
JOULES_PER_KWH = 3.6e6

N = TypeVar("N", int, float, "NDArray[np.float64]", "NDArray[np.int64]")
F = TypeVar("F", float, "NDArray[np.float64]")


def ceil_div(numerator: N, denominator: N) -> N:
    """Whole-number division rounded up, on scalars and on arrays."""
    return -(-numerator // denominator)


def divisors(number: int) -> list[int]:
    """All divisors of a whole number ≥ 1, ascending."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def nearest_multiples(number: int, step: int) -> tuple[int, ...]:
    """The multiples of `step` on both sides of `number` (positive ones only), nearest legal values of a size."""
    below = number // step * step
    return tuple(m for m in (below, below + step) if m > 0)


# ---------------------------------------------------------------- how quantities are written

THIN = " "
MINUS = "\N{MINUS SIGN}"


def _three_digits(value: float) -> str:
    """Three significant digits without an exponent: 1.23, 12.3, 123, 1,234."""
    size = abs(value)
    decimals = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{value:,.{decimals}f}"


def _scaled(value: float, steps: Sequence[tuple[float, str]]) -> str:
    """Write a value in the largest unit that leaves at least one before the point."""
    for factor, unit in steps:
        if abs(value) >= factor * 0.9995:
            return f"{_three_digits(value / factor)}{THIN}{unit}"
    factor, unit = steps[-1]
    return f"{_three_digits(value / factor)}{THIN}{unit}"


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


UNKNOWN = "unknown"


def format_time(seconds: float | None) -> str:
    """Time in the form people say it: 12.4 µs, 843 ms, 20.9 s, 35 min, 1 h 26 min, 23.1 days."""
    if not _is_known(seconds):
        return UNKNOWN
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 2 * MINUTE_S:
        return _scaled(seconds, ((1, "s"), (MILLISECOND, "ms"), (MICROSECOND, "µs")))
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    if seconds < 2 * DAY_S:
        hours, minutes = divmod(round(seconds / MINUTE_S), 60)
        return f"{hours} h {minutes} min"
    return f"{_three_digits(seconds / DAY_S)} days"


def format_memory(held_bytes: float | None) -> str:
    """Memory held: GiB with one decimal; small amounts in MiB."""
    if not _is_known(held_bytes):
        return UNKNOWN
    if held_bytes and abs(held_bytes) < 0.05 * GIB:
        return f"{held_bytes / MIB:,.1f} MiB"
    return f"{held_bytes / GIB:,.1f} GiB"


def format_memory_of(held_bytes: float | None, capacity_bytes: float | None) -> str:
    """Memory held *of* capacity, both in GiB."""
    if _is_known(held_bytes) and _is_known(capacity_bytes):
        return f"{held_bytes / GIB:,.1f} of {capacity_bytes / GIB:,.1f} GiB"
    return f"{format_memory(held_bytes)} of {format_memory(capacity_bytes)}"


def format_sent(sent_bytes: float | None) -> str:
    """Bytes sent: decimal units."""
    if not _is_known(sent_bytes):
        return UNKNOWN
    return _scaled(sent_bytes, ((TB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "kB"), (1, "B")))


def format_bandwidth(bytes_per_s: float | None) -> str:
    """A rate in decimal bytes a second, per device and direction."""
    return f"{format_sent(bytes_per_s)}/s" if _is_known(bytes_per_s) else UNKNOWN


def format_flops(flops_per_s: float | None) -> str:
    """A compute rate: TFLOP/s."""
    if not _is_known(flops_per_s):
        return UNKNOWN
    return f"{_three_digits(flops_per_s / TERA)} TFLOP/s"


def gib(held_bytes: F) -> F:
    """Bytes as GiB, for an axis whose title says so."""
    return held_bytes / GIB


def percent(fraction: F) -> F:
    """A share as a number of hundredths, for a bar or an axis that says so."""
    return 100 * fraction


def format_power(watts: float | None) -> str:
    """Power: 71 W, 1,070 W."""
    return f"{watts:,.0f} W" if _is_known(watts) else UNKNOWN


def format_temperature(celsius: float | None) -> str:
    """Temperature: 31 °C."""
    return f"{celsius:.0f} °C" if _is_known(celsius) else UNKNOWN


def format_count(count: float | None) -> str:
    """A whole count with thousands separated: 3,162."""
    if not _is_known(count):
        return UNKNOWN
    return f"{count:,.0f}"


def format_large(count: float | None) -> str:
    """A large count in three digits: 175 B parameters, 3.15 M tokens, 150 k."""
    if not _is_known(count):
        return UNKNOWN
    if abs(count) < 1e4:
        return _three_digits(count) if count % 1 else f"{count:,.0f}"
    return _scaled(count, ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")))


def format_share(fraction: float | None) -> str:
    """A share with one decimal: 50.6 %."""
    if not _is_known(fraction):
        return UNKNOWN
    return f"{100 * fraction:.1f} %"


def format_difference(fraction: float | None) -> str:
    """A signed difference with a true minus: + 15 %, − 0.5 %."""
    if not _is_known(fraction):
        return UNKNOWN
    percent = 100 * fraction
    digits = f"{abs(percent):.0f}" if abs(percent) >= 9.95 else f"{abs(percent):.1f}"
    if float(digits) == 0:
        return "0 %"
    return f"{'+' if percent > 0 else MINUS} {digits} %"


def signed(value: float, form: Callable[[float], str]) -> str:
    """A signed quantity with a true minus, in the form of its kind: + 1.20 s, − 0.3 GiB."""
    return form(0.0) if value == 0 else f"{'+' if value > 0 else MINUS} {form(abs(value))}"


def format_money(dollars: float | None) -> str:
    """Money in dollars: $940, $12.3 k, $1.13 M."""
    return f"${format_large(dollars)}" if _is_known(dollars) else UNKNOWN


def format_energy(kwh: float | None) -> str:
    """Energy: 204 MWh, 12.0 kWh."""
    if not _is_known(kwh):
        return UNKNOWN
    return _scaled(kwh, ((1e6, "GWh"), (1e3, "MWh"), (1, "kWh")))


# ---------------------------------------------------------------- figures with their error

_FIGURE = re.compile(r"([\d,]+)(\.\d+)?")
_HOURS = re.compile(r"(\d+) h (\d+) min")


def plus_minus(written: str, error_frac: float | None) -> str:
    """The half-width of an error bar in the unit in which the figure is written, its last place aligned and of two
    digits at most: "± 1.3" for "20.9 s". Empty where no error is known, or no figure.

    error_frac: half-width as a share of the figure.
    """
    hours, figure = _HOURS.search(written), _FIGURE.search(written)
    if not _is_known(error_frac) or figure is None:
        return ""
    if hours is not None:
        minutes = 60 * int(hours[1]) + int(hours[2])
        return f"± {format_time(max(1.0, round(minutes * error_frac)) * MINUTE_S)}"
    size = float(figure[0].replace(",", "")) * error_frac
    decimals = len(figure[2]) - 1 if figure[2] else 0
    if round(size, decimals) == 0:  # smaller than the last place that is shown: one digit of it
        return f"± {size:.1g}" if size else "± 0"
    digits = max(0, math.floor(math.log10(size)) - 1)
    return f"± {round(size, -digits):,.0f}" if digits else f"± {size:,.{decimals}f}"


def with_error(written: str, error_frac: float | None) -> str:
    """A figure with its error, the unit after both: 20.9 ± 1.3 s, $1.13 ± 0.07 M. As it is where no error is known."""
    error, hours, figure = plus_minus(written, error_frac), _HOURS.search(written), _FIGURE.search(written)
    if not error or figure is None:
        return written
    end = len(written) if hours is not None else figure.end()
    return f"{written[:end]} {error}{written[end:]}"
