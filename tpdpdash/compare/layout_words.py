"""Degrees that a table writes as words in one cell: "TP8 PP4 DP2", "tp=8, pp=4", "TP8-CP2-EP4"."""

from __future__ import annotations

import re

from tpdpdash.compare.table import Row

COLUMNS = ("layout", "parallelism", "strategy", "parallel_config")
"""Columns in which a layout stands in words."""
WORDS = {
    **{name: name for name in ("tp", "pp", "vpp", "dp", "cp", "ep")},
    "vp": "vpp",
    "mbs": "micro_batch",
    "gbs": "global_batch",
}
"""The columns that the words stand for."""
_WORD = re.compile(rf"(?<![a-z])({'|'.join(sorted(WORDS, key=len, reverse=True))})[ _]*[=:]?[ _]*(\d+)(?![\d.])", re.I)


def with_layout_words(row: Row) -> Row:
    """The row with what its layout's words state in the columns of that name; a column that says something counts
    before the words, and of a degree that stands twice the first counts."""
    stated: dict[str, str] = {}
    for column in COLUMNS:
        for word, number in _WORD.findall(row.get(column, "")):
            stated.setdefault(WORDS[word.lower()], number)
    missing = {column: number for column, number in stated.items() if not row.get(column)}
    return {**row, **missing} if missing else row
