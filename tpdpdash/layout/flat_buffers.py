"""Layout of the built-in worker's flat buffers: one for all weights of a rank, one of the same length for gradients."""

from __future__ import annotations

from tpdpdash.units import N, ceil_div

ALIGNMENT = 32
"""Elements to which each weight starts in a flat buffer, so that vectorised kernels see aligned views."""


def aligned(elements: N) -> N:
    """Elements that one weight takes."""
    return -(-elements // ALIGNMENT) * ALIGNMENT


def buffer_length(elements: N, dp: N) -> N:
    """Elements of the whole buffer, which each of dp ranks has an aligned share of."""
    step: N = dp * ALIGNMENT
    return ceil_div(elements, step) * step
