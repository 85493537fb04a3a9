"""A matrix as one 8-bit palette PNG: a heat map is one image in a chart, whatever its number of cells.

64 × 200 cells as marks cost a browser seconds; the same as an image costs it one mark and the wire a few kilobytes.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tpdpdash.units import ceil_div

LEVEL_EDGES = (0.03, 0.06, 0.10, 0.15, 0.22, 0.32, 0.50)
"""Shares above the median at which the next of the ramp's eight colours begins."""
MAX_HEAT_ROWS = 256
"""Rows that one image shows; above it each row is the slowest of several ranks."""


NOISE_QUANTILE = 0.98


def noise_floor(excess_frac: NDArray[np.float64]) -> float:
    """Share above the median that a (rank, step) matrix reaches by its step-to-step noise; NaN = unknown cells.

    The 98th percentile of |x(t) − x(t−1)|: a rank that is slow, or becomes it, is a level or one jump of its row and
    raises neither; a single outlier in a hundred steps still stands out.
    """
    jumps = np.abs(np.diff(excess_frac, axis=1))
    known = jumps[np.isfinite(jumps)]
    return float(np.quantile(known, NOISE_QUANTILE)) if len(known) else 0.0


def heat_levels(excess_frac: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Index into the ramp for each cell of a (rank, step) matrix of shares above the median; unknown = one past it."""
    known = np.isfinite(excess_frac)
    levels = np.digitize(np.where(known, excess_frac, 0.0), LEVEL_EDGES)
    return np.where(known, levels, len(LEVEL_EDGES) + 1).astype(np.uint8)


def pooled_rows(values: NDArray[np.float64], max_rows: int = MAX_HEAT_ROWS) -> NDArray[np.float64]:
    """At most `max_rows` rows, each the largest of the rows it stands for (so that no slow rank is averaged away)."""
    num_rows = len(values)
    if num_rows <= max_rows:
        return values
    size = ceil_div(num_rows, max_rows)
    padded = np.full((ceil_div(num_rows, size) * size, values.shape[1]), np.nan)
    padded[:num_rows] = values
    grouped = padded.reshape(-1, size, values.shape[1])
    pooled = np.max(np.where(np.isnan(grouped), -np.inf, grouped), axis=1)
    return np.where(np.isneginf(pooled), np.nan, pooled)


def palette_png(levels: NDArray[np.uint8], colors: Sequence[str]) -> bytes:
    """A PNG with one pixel a cell; `colors` are #RRGGBB, and an index past them is transparent."""
    height, width = levels.shape
    scanlines = np.zeros((height, width + 1), dtype=np.uint8)
    scanlines[:, 1:] = levels
    palette = b"".join(bytes.fromhex(color.lstrip("#")) for color in colors) + b"\0\0\0"
    opacity = b"\xff" * len(colors) + b"\0"
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    body = [
        _chunk(b"IHDR", header),
        _chunk(b"PLTE", palette),
        _chunk(b"tRNS", opacity),
        _chunk(b"IDAT", zlib.compress(scanlines.tobytes(), 6)),
        _chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_uri(png: bytes) -> str:
    """The image as a chart takes it."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
