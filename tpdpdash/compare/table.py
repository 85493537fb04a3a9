"""A CSV of measured runs, read whole and checked as a file: encoding, header, size."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.units import MIB

Row = Mapping[str, str]
TableKind = Literal["runs", "memory"]
FIELD = "FILE.csv"
MAX_TABLE_BYTES = 64 * MIB
MAX_CELL = 100_000
"""Characters of one cell: beyond it a quote was left open, or it is no table."""
NEEDED = ("num_layers", "hidden")
"""Without these columns, or PRESET, no row has a model."""
PRESET = "model_name"
SEPARATORS = (",", ";", "\t", "|")
_HEADER = re.compile(r"\s*([^\r\n]*)")
_DECIMAL_COMMA = re.compile(r"(-?\d{1,3}(?:\.\d{3})+|-?\d+),(\d+)")
"""A number as it is written where cells are set apart by semicolons because the comma is taken."""
TOTAL_SPEED = "tokens_per_sec"
"""Of all devices together."""
TIME_COLUMNS = ("step_time_s", "tokens_per_sec_per_gpu", TOTAL_SPEED)
MEMORY_COLUMNS = (
    "peak_gib",
    "weights_gib",
    "grads_gib",
    "optimizer_gib",
    "weights_optimizer_gib",
    "activations_gib",
)
OVERFLOW = "\0overflow"
"""Key under which the cells of a row beyond the header are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of one file."""

    kind: TableKind
    """runs: a time is measured (and perhaps a peak); memory: only memory is."""
    rows: tuple[Row, ...]
    """Cells by column name in lower case, stripped; a cell that a short row lacks is empty."""


def read_table(path: Path) -> Table:
    """The table in a file. Raises InvalidInputError with every fault of the file and its header."""
    return parse_table(_read_bytes(path))


def parse_table(data: bytes) -> Table:
    """The table in the bytes of a CSV file. Raises InvalidInputError."""
    text = _decoded(data)
    if not text.strip():
        raise InvalidInputError([Fault(code="file_empty", field=FIELD)])
    if text.lstrip()[:1] == "<":
        raise InvalidInputError([Fault(code="csv_is_markup", field=FIELD)])
    csv.field_size_limit(MAX_CELL)
    separator = _separator(text)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    try:
        lines = [line for line in reader if any(cell.strip() for cell in line)]
    except csv.Error as wrong:
        values: dict[str, object] = {"line": reader.line_num, "reason": str(wrong)}
        raise InvalidInputError([Fault(code="csv_broken", field=FIELD, values=values)]) from wrong
    header = [name.strip().lower() for name in lines[0]]
    kind, faults = _kind(header)
    if faults:
        raise InvalidInputError(faults)
    if separator == ";":
        lines = [[_with_point(cell) for cell in line] for line in lines]
    return Table(kind=kind, rows=tuple(_row(header, line) for line in lines[1:]))


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:  # a device or a pipe has no size: what is read is bounded
            data = file.read(MAX_TABLE_BYTES + 1)
        if len(data) <= MAX_TABLE_BYTES:
            return data
        values: dict[str, object] = {"size": max(path.stat().st_size, len(data)), "limit": MAX_TABLE_BYTES}
        raise InvalidInputError([Fault(code="file_too_large", field=FIELD, value=str(path), values=values)])
    except FileNotFoundError as missing:
        raise InvalidInputError([Fault(code="file_missing", field=FIELD, value=str(path))]) from missing
    except OSError as wrong:
        reason = {"reason": wrong.strerror or str(wrong)}
        raise InvalidInputError([Fault(code="file_unreadable", field=FIELD, value=str(path), values=reason)]) from wrong


def _decoded(data: bytes) -> str:
    """UTF-8, with or without a byte order mark, or UTF-16 with one, as spreadsheets export it. Raises
    InvalidInputError: anything else, NUL bytes included."""
    encoding = "UTF-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "UTF-8"
    try:
        text = data.decode("utf-16" if encoding == "UTF-16" else "utf-8-sig")
    except UnicodeDecodeError as wrong:
        values = {"encoding": encoding, "position": wrong.start}
        raise InvalidInputError([Fault(code="not_utf8", field=FIELD, values=values)]) from wrong
    if "\0" in text:
        values = {"encoding": encoding, "position": text.index("\0")}
        raise InvalidInputError([Fault(code="not_utf8", field=FIELD, values=values)])
    return text


def _separator(text: str) -> str:
    """What sets the cells apart: what makes most columns that are known here, in the first line that says anything."""
    known, found = {*NEEDED, PRESET, *TIME_COLUMNS, *MEMORY_COLUMNS}, _HEADER.match(text)
    header = found[1] if found else ""
    return max(SEPARATORS, key=lambda sign: len(known & {name.strip(' "').lower() for name in header.split(sign)}))


def _with_point(cell: str) -> str:
    """A number with a decimal comma as one with a point; anything else as it is."""
    number = _DECIMAL_COMMA.fullmatch(cell.strip())
    return f"{number[1].replace('.', '')}.{number[2]}" if number else cell


def _kind(header: list[str]) -> tuple[TableKind, list[Fault]]:
    """What is measured, by the header; faults for columns that are missing or stand twice."""
    twice = dict.fromkeys(name for name in header if name and header.count(name) > 1)
    faults = [Fault(code="csv_duplicate_column", field=FIELD, value=name) for name in twice]
    if PRESET not in header:
        faults += [Fault(code="csv_missing_column", field=FIELD, value=name) for name in NEEDED if name not in header]
    timed = any(name in header for name in TIME_COLUMNS)
    kept = any(name in header for name in MEMORY_COLUMNS)
    if not (timed or kept or "peak_mem_gib_per_gpu" in header):
        values = {"columns": (*TIME_COLUMNS, "peak_mem_gib_per_gpu", *MEMORY_COLUMNS)}
        faults.append(Fault(code="csv_nothing_measured", field=FIELD, values=values))
    return ("memory" if kept and not timed else "runs"), faults


def _row(header: list[str], line: list[str]) -> Row:
    cells = [cell.strip() for cell in line]
    row = {name: (cells[i] if i < len(cells) else "") for i, name in enumerate(header) if name}
    if any(cells[len(header) :]):
        row[OVERFLOW] = ",".join(cells[len(header) :])
    return row
