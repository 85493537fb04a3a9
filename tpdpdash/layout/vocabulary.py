"""Padding of the vocabulary: rows that a framework adds so that the embedding divides over TP. Never an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.frameworks import MEGATRON, known_framework

if TYPE_CHECKING:
    from tpdpdash.units import Numeric

MEGATRON_ROWS = 128
"""Megatron-LM's default --make-vocab-size-divisible-by."""


def padded_vocab_size(vocab_size: int, tp: Numeric, framework: str) -> Numeric:
    """Rows of the embedding after padding.

    Megatron rounds up to a multiple of 128·tp, nanotron to a multiple of tp; the others keep the rows and shard
    unevenly. Source: Megatron-LM _vocab_size_with_padding; 151,669 at tp 4 becomes 152,064.
    """
    known = known_framework(framework)
    if known in MEGATRON:
        step = MEGATRON_ROWS * np.asarray(tp, np.float64)
    elif known == "nanotron":
        step = np.asarray(tp, np.float64)
    else:
        step = np.ones_like(np.asarray(tp, np.float64))
    padded = np.ceil(vocab_size / step) * step
    return padded if padded.ndim else float(padded)
