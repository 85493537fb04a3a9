"""The building blocks of every screen: head, verdict, cards, faults, chips, and text that came from outside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from tpdpdash.faults import Fault
from tpdpdash.text import fault_text, t
from tpdpdash.units import format_count

if TYPE_CHECKING:
    import pandas as pd

    from tpdpdash.charts.palette import Theme

MAX_LITERAL_CHARS = 120
MIN_CARD_PX = 150

# ------------------------------------------------------------------------- text that came from outside

_JOINER = "\N{WORD JOINER}"
# What streamlit's markdown replaces in plain text *after* parsing, so that no backslash keeps it out:
# :emoji: and :material/icons:, arrows and dashes, bare links and mail addresses.
_REPLACED_LATER = re.compile(
    r":(?=[\w+/-]+:)|:(?=[a-z-]+\[)|(?<=[-<>~=])(?=[-<>=])|(?<=http)(?=s?://)|(?<=https)(?=://)|(?<=www)(?=\.)|(?=@)"
)
_SYNTAX = re.compile(r"([\\`*_{}\[\]()#+\-.!|~<>$&\"'^=])")


def plain(text: object) -> str:
    """Text from a config, a host or a log as printable characters of bounded length: for tables, titles and charts."""
    shown = str(text)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)
    return shown if len(shown) <= MAX_LITERAL_CHARS else f"{shown[: MAX_LITERAL_CHARS - 20]}… ({len(shown)} characters)"


def literal(text: object) -> str:
    """The same for places that streamlit reads as markdown: no link, formula, emoji, HTML or emphasis comes of it."""
    joined = _REPLACED_LATER.sub(lambda found: found[0] + _JOINER, plain(text))
    return _SYNTAX.sub(r"\\\1", joined)


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """A table for download; a text that a spreadsheet would run as a formula is quoted with an apostrophe."""
    safe = frame.copy()
    for column in safe.columns:
        safe[column] = [_csv_cell(value) for value in safe[column]]
    return safe.to_csv(index=False).encode("utf-8")


def _csv_cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    shown = plain(value)
    return f"'{shown}" if shown.lstrip().startswith(("=", "+", "-", "@", "\\t", "\\r")) else shown


# ------------------------------------------------------------------------------------ head and verdict


def page_head(title: str, question: str, chip: str = "") -> DeltaGenerator:
    """Title, the page's question in grey, an optional chip; returns the place at its right for actions."""
    row = st.container(horizontal=True, vertical_alignment="center", gap="small")
    row.title(title, anchor=False, width="content")
    row.markdown(f":gray[{question}] {chip}".rstrip(), width="stretch")
    return row.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center", width="content")


Kind = Literal["good", "warning", "bad", "info"]
_BOXES = {
    "good": (st.success, ":material/check_circle:"),
    "warning": (st.warning, ":material/warning:"),
    "bad": (st.error, ":material/error:"),
    "info": (st.info, ":material/info:"),
}


def verdict(kind: Kind, text: str, detail: str = "") -> None:
    """The answer of the page in one sentence (markdown), with a quieter second line."""
    box, icon = _BOXES[kind]
    box(f"{text}  \n:small[{detail}]" if detail else text, icon=icon)


def faults(found: Iterable[Fault], kind: Kind = "bad") -> None:
    """Every fault as one line; values are shown as text."""
    lines = [literal_sentence(fault) for fault in found]
    if not lines:
        return
    box, icon = _BOXES[kind]
    box(lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines), icon=icon)


def literal_sentence(fault: Fault) -> str:
    """A fault's sentence, safe for markdown (its values come from a person's files)."""
    return literal_text(fault_text(fault))


def literal_text(text: str) -> str:
    """`literal` without its bound on length: the sentence is ours, its values are bounded already."""
    joined = _REPLACED_LATER.sub(lambda found: found[0] + _JOINER, text)
    return _SYNTAX.sub(r"\\\1", joined)


# ------------------------------------------------------------------------------------------------ cards


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One card of the row under the verdict. All texts are ours, or went through `literal`."""

    label: str
    """What is measured."""
    value: str
    """The figure: "147", "20.9 s", "unknown"."""
    unit: str = ""
    """Small and grey beside it: "GiB", "± 9", "of 79.2 GiB"."""
    note: str = ""
    """One short line under it."""
    trend: Sequence[float] | None = None
    """Recent values for a sparkline (≤ 60)."""
    help: str = ""
    """What it means and where it comes from."""


def cards(metrics: Sequence[Metric]) -> None:
    """The metrics side by side; in pairs on a narrow window."""
    grid = st.grid(columns=len(metrics), min_column_width=MIN_CARD_PX)
    for metric in metrics:
        value = f"{metric.value} :small[:gray[{metric.unit}]]" if metric.unit else metric.value
        grid.metric(
            metric.label,
            value,
            None,
            delta_color="blue",
            delta_description=metric.note or None,
            border=True,
            help=metric.help or None,
            height="stretch",
            chart_data=list(metric.trend) if metric.trend and len(metric.trend) > 1 else None,
        )


@contextmanager
def card(title: str, caption: str = "", *, key: str | None = None, fill: bool = True) -> Iterator[DeltaGenerator]:
    """A bordered container with a title, a grey caption, and a place at its right for controls (what is yielded).

    `fill`: as high as its row; else as its content.
    """
    with st.container(border=True, key=key, height="stretch" if fill else "content"):
        head = st.container(horizontal=True, vertical_alignment="center", gap="small")
        head.subheader(title, anchor=False, width="content")
        head.caption(caption, width="stretch")
        yield head.container(horizontal=True, horizontal_alignment="right", width="content")


def table(frame: pd.DataFrame, *, hide_header: bool = False, is_markdown: bool = False) -> None:
    """A short table that is read, not sorted. Cells are shown as text unless they are our own markdown."""
    shown = frame if is_markdown else frame.map(lambda cell: literal(cell) if isinstance(cell, str) else cell)
    st.table(shown, border="horizontal", hide_index=True, hide_header=hide_header)


def truncated(shown: int, total: int) -> str:
    """What a cut table says of itself: "showing 8 of 3,162"; empty when nothing was cut."""
    return (
        t("showing {shown} of {total}", shown=format_count(shown), total=format_count(total)) if shown < total else ""
    )


# ------------------------------------------------------------------------------------------------ states

_STATE_COLORS = {
    "created": "blue",
    "starting": "blue",
    "running": "green",
    "stopping": "orange",
    "finished": "gray",
    "stopped": "gray",
    "failed": "red",
    "lost": "orange",
    "damaged": "red",
}


def state_chip(state: str) -> str:
    """A run's state as a coloured chip (markdown)."""
    return f":{_STATE_COLORS.get(state, 'gray')}-badge[● {t(state)}]"


def theme() -> Theme:
    """The appearance that this person has chosen."""
    return "dark" if st.context.theme.type == "dark" else "light"
