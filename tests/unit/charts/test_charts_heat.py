"""The palette PNG and what is lost (nothing that matters) when a matrix has more rows than pixels."""

import struct
import zlib

import numpy as np
import pytest

from tpdpdash.charts import heat

COLORS = ("#F1F3F6", "#FCE6C2", "#480E03")


def decoded(png: bytes) -> tuple[int, int, bytes, bytes]:
    """Width, height, palette and pixel rows of an 8-bit palette PNG, read by hand after the PNG specification."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, parts = 8, {}
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        (check,) = struct.unpack(">I", png[at + 8 + length : at + 12 + length])
        assert check == zlib.crc32(kind + data)
        parts[kind] = data
        at += 12 + length
    width, height = struct.unpack(">II", parts[b"IHDR"][:8])
    return width, height, parts[b"PLTE"], zlib.decompress(parts[b"IDAT"])


def test_each_cell_is_one_pixel_with_its_color() -> None:
    levels = np.array([[0, 1], [2, 0], [1, 2]], dtype=np.uint8)
    width, height, palette, rows = decoded(heat.palette_png(levels, COLORS))
    assert (width, height) == (2, 3)
    assert palette[:9] == bytes.fromhex("F1F3F6FCE6C2480E03")
    assert [rows[i * 3 + 1 : i * 3 + 3] for i in range(3)] == [b"\0\1", b"\2\0", b"\1\2"]


def test_an_unknown_cell_is_transparent_and_the_median_is_the_background() -> None:
    levels = heat.heat_levels(np.array([[np.nan, 0.0, -0.2, 0.031, 0.9]]))
    assert levels.tolist() == [[8, 0, 0, 1, 7]]
    png = heat.palette_png(levels, ["#000000"] * 8)
    assert b"tRNS" + b"\xff" * 8 + b"\0" in png


def test_pooling_keeps_the_slowest_rank_of_every_row() -> None:
    values = np.zeros((1000, 3))
    values[777, 1] = 0.4
    pooled = heat.pooled_rows(values, 256)
    assert len(pooled) <= 256
    assert pooled[777 // 4].tolist() == [0.0, 0.4, 0.0]


def test_pooling_of_unknown_cells_is_unknown_only_where_all_are() -> None:
    values = np.array([[np.nan, np.nan], [0.1, np.nan], [np.nan, np.nan]])
    pooled = heat.pooled_rows(values, 2)
    assert pooled[0, 0] == pytest.approx(0.1)
    assert np.isnan(pooled[0, 1])
    assert np.isnan(pooled[1]).all()


def test_a_large_noisy_map_stays_small_on_the_wire() -> None:
    noise = np.random.default_rng(0).random((256, 200))
    assert len(heat.data_uri(heat.palette_png(heat.heat_levels(noise), ["#123456"] * 8))) < 60_000
