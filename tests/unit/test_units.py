"""How quantities are written, and the whole-number helpers."""

import math

import numpy as np
import pytest

from tpdpdash import units


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (20.9, "20.9 s"),
        (0.843, "843 ms"),
        (12.4e-6, "12.4 µs"),
        (119.0, "119 s"),
        (35 * 60, "35 min"),
        (86 * 60, "1 h 26 min"),
        (23.1 * 86400, "23.1 days"),
        (0, "0 s"),
        (None, "unknown"),
        (math.nan, "unknown"),
        (0.9999, "1.00 s"),
    ],
)
def test_time_is_written_with_three_digits_in_the_unit_of_its_size(seconds, written):
    assert units.format_time(seconds) == written


def test_memory_held_is_binary_and_bytes_sent_are_decimal():
    assert units.format_memory(72.1 * 2**30) == "72.1 GiB"
    assert units.format_memory_of(72.1 * 2**30, 79.2 * 2**30) == "72.1 of 79.2 GiB"
    assert units.format_memory(3 * 2**20) == "3.0 MiB"
    assert units.format_sent(67.1e6) == "67.1 MB"
    assert units.format_bandwidth(450e9) == "450 GB/s"


def test_differences_carry_their_sign_and_a_true_minus():
    assert units.format_difference(0.15) == "+ 15 %"
    assert units.format_difference(-0.005) == "− 0.5 %"
    assert units.format_difference(0.0001) == "0 %"


def test_unknown_is_written_as_unknown_by_every_format():
    for name in dir(units):
        if name.startswith("format_") and name != "format_memory_of":
            assert getattr(units, name)(None) == "unknown", name
    assert units.format_memory_of(2**30, None) == "1.0 GiB of unknown"


def test_large_counts_money_energy_and_shares():
    assert units.format_large(300e9) == "300 B"
    assert units.format_large(150e3) == "150 k"
    assert units.format_large(147) == "147"
    assert units.format_money(1.13e6) == "$1.13 M"
    assert units.format_energy(204e3) == "204 MWh"
    assert units.format_share(0.506) == "50.6 %"
    assert units.format_count(3162) == "3,162"
    assert units.format_flops(312e12) == "312 TFLOP/s"


def test_ceil_div_rounds_up_on_scalars_and_arrays():
    assert units.ceil_div(7, 2) == 4
    assert units.ceil_div(8, 2) == 4
    assert units.ceil_div(np.array([7.0, 8.0]), np.array([2.0, 2.0])).tolist() == [4, 4]


def test_divisors_and_nearest_multiples():
    assert units.divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert units.divisors(1) == [1]
    assert units.nearest_multiples(10, 12) == (12,)
    assert units.nearest_multiples(256, 14) == (252, 266)


@pytest.mark.parametrize(
    ("written", "frac", "shown"),
    [
        ("20.9 s", 0.063, "20.9 ± 1.3 s"),
        ("147", 0.063, "147 ± 9"),
        ("50.6 %", 0.06, "50.6 ± 3.0 %"),
        ("$1.13 M", 0.06, "$1.13 ± 0.07 M"),
        ("23.1 days", 0.06, "23.1 ± 1.4 days"),
        ("72.1 of 79.2 GiB", 0.05, "72.1 ± 3.6 of 79.2 GiB"),
        ("1 h 26 min", 0.1, "1 h 26 min ± 9 min"),
        ("35 min", 0.2, "35 ± 7 min"),
        ("8,345", 0.21, "8,345 ± 1,800"),
        ("147", 0.001, "147 ± 0.1"),
        ("0 s", 0.1, "0 ± 0 s"),
        ("20.9 s", None, "20.9 s"),
        ("20.9 s", math.nan, "20.9 s"),
        ("unknown", 0.1, "unknown"),
    ],
)
def test_an_error_has_the_unit_of_its_figure_and_two_digits_at_most(written, frac, shown):
    assert units.with_error(written, frac) == shown
    assert units.plus_minus(written, frac) in shown
