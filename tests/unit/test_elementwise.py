"""Numbers and arrays give the same figures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpdpdash.elementwise import choose, larger, rounded, smaller

FIGURES = st.floats(allow_nan=True, allow_infinity=True)


@given(FIGURES, FIGURES, st.booleans())
def test_numbers_give_what_arrays_of_one_give(left, right, flag):
    one, other = np.array([left]), np.array([right])
    np.testing.assert_array_equal([larger(left, right)], larger(one, other))
    np.testing.assert_array_equal([smaller(left, right)], smaller(one, other))
    np.testing.assert_array_equal([choose(np.bool_(flag), left, right)], choose(np.array([flag]), one, other))


@pytest.mark.parametrize("flag", [True, False])
def test_a_choice_has_the_shape_of_all_three(flag):
    column = np.arange(3.0)[:, None]
    assert choose(np.bool_(flag), 0.0, column).shape == (3, 1)
    assert choose(np.bool_(flag), np.zeros(2), column).shape == (3, 2)
    np.testing.assert_array_equal(choose(np.bool_(flag), column, -1.0), column if flag else np.full((3, 1), -1.0))


@given(st.floats(min_value=-1e3, max_value=1e3))
def test_rounding_is_numpys(value):
    assert rounded(np.float64(value), 9) == np.round(value, 9)
    assert not math.isnan(rounded(value, 9))
