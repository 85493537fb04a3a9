"""Columns of text."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows (the first is the head) as aligned columns; numbers read from the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = [all(row[i][:1].isdigit() or row[i][:1] in "$−" for row in rows[1:] if row[i]) for i in range(len(widths))]
    cells = [
        [cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)] for row in rows
    ]
    return ["  ".join(row).rstrip() for row in cells]
