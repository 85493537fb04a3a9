"""Text from configs, hosts and logs is shown as text (rows b29, b31, b32, b33 and r133 of the bad inputs)."""

import pandas as pd
import pytest

from tpdpdash.ui import parts

NASTY = {
    "b29": "\ud800",
    "b31": "<script>alert(1)</script>",
    "b32": r"[x](javascript:alert(1)) $\frac{1}{2}$ :smile: **b**",
    "r133": "<img src=x onerror=alert(1)>",
    "arrows": "a -> b <- c -- d :material/home: :red[x] http://a.b www.c.d e@f.g",
}
JOINER = "\N{WORD JOINER}"


@pytest.mark.parametrize("row", NASTY)
def test_every_character_of_markdown_is_escaped(row: str) -> None:
    shown = parts.literal(NASTY[row])
    shown.encode("utf-8")
    for i, character in enumerate(shown):
        if character in "[]()<>*_$`#|!":
            assert shown[i - 1] == "\\", f"{character} at {i} of {shown!r}"


@pytest.mark.parametrize("row", NASTY)
def test_without_escapes_the_text_reads_as_it_was(row: str) -> None:
    shown = parts.literal(NASTY[row]).replace(JOINER, "")
    unescaped = "".join(
        c for i, c in enumerate(shown) if not (c == "\\" and shown[i + 1 : i + 2] in "\\`*_{}[]()#+-.!|~<>$&\"'^=")
    )
    assert unescaped.replace("\\", "") == parts.plain(NASTY[row]).replace("\\", "")


def test_what_markdown_replaces_after_parsing_is_broken_up() -> None:
    shown = parts.literal(NASTY["arrows"])
    for whole in (":material/home:", "->", "--", "http://", "www.", ":red["):
        assert whole not in shown.replace("\\", "")


def test_a_lone_surrogate_is_shown_escaped() -> None:
    assert parts.plain(NASTY["b29"]) == r"\ud800"


def test_a_very_long_name_is_cut_and_says_so() -> None:
    assert parts.plain("x" * 5000) == "x" * 100 + "… (5000 characters)"


@pytest.mark.parametrize("cell", ['=HYPERLINK("http://x","y")', "+1", "-1", "@a", "\t=1", " =1"])
def test_b33_a_cell_that_a_spreadsheet_would_run_is_quoted(cell: str) -> None:
    text = parts.csv_bytes(pd.DataFrame({"name": [cell], "n": [-1.5]})).decode()
    line = text.splitlines()[1]
    assert line.lstrip('"').startswith("'")
    assert line.endswith(",-1.5")
