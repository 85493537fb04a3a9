"""The palette: one colour a phase and a group kind, the same on every screen, light and dark.

The values stand in palette.json with the contrast and colour-blindness figures they were chosen by; nothing here
computes a colour. Hollow marks (a pale fill with an outline) mean that nothing is computed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from tpdpdash.text import t

Theme = Literal["light", "dark"]
FONT = '"Source Sans", sans-serif'
CODE_FONT = '"Source Code Pro", monospace'


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """How one phase, group kind or memory part is drawn. Colours are #RRGGBB."""

    fill: str
    """Colour of the mark."""
    outline: str
    """Colour of its 1 px outline; equals `fill` unless the mark is hollow."""
    on: str
    """Colour of text on the mark."""
    text: str
    """Colour of text about the mark on a plain surface."""

    @property
    def hollow(self) -> bool:
        """Whether the mark means that nothing is computed."""
        return self.outline != self.fill


# The messages stand here and are translated when they are asked for, so a change of language needs no reload.
PHASE_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "data": "data",
        "forward": "forward",
        "loss": "loss",
        "backward": "backward",
        "recompute": "recompute",
        "tp": "tensor (TP)",
        "cp": "context (CP)",
        "ep": "experts (EP)",
        "pp": "pipeline (PP)",
        "bubble": "bubble",
        "dp": "gradients (DP)",
        "optimizer": "optimizer",
        "idle": "waiting",
        "unattributed": "unattributed",
    }
)
MEMORY_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "weights": "weights",
        "gradients": "gradients",
        "optimizer": "optimizer",
        "activations": "activations",
        "logits": "logits",
        "buffers": "buffers",
        "overhead": "overhead",
    }
)
PHASE_ORDER: tuple[str, ...] = tuple(PHASE_LABELS)
MEMORY_ORDER: tuple[str, ...] = tuple(MEMORY_LABELS)


def phase_label(phase: str) -> str:
    """The phase in the reader's language."""
    return t(PHASE_LABELS[phase])


def memory_label(part: str) -> str:
    """The memory part in the reader's language."""
    return t(MEMORY_LABELS[part])


@cache
def _palette() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(files("tpdpdash.charts").joinpath("palette.json").read_text("utf-8"))
    return loaded


@cache
def phase_colors(theme: Theme) -> Mapping[str, Fill]:
    """Colours of every phase, in stack order; a group kind has the colour of its messages."""
    phases = _palette()[theme]["phases"]
    return MappingProxyType({name: _fill(phases[name]) for name in PHASE_ORDER})


@cache
def memory_colors(theme: Theme) -> Mapping[str, Fill]:
    """Colours of the memory parts, which borrow those of phases (weights = forward, gradients = backward …)."""
    borrowed = _palette()["memory_parts"]
    return MappingProxyType({part: phase_colors(theme)[borrowed[part]] for part in MEMORY_ORDER})


@cache
def ui_colors(theme: Theme) -> Mapping[str, str]:
    """Colours of everything that is no phase: text, muted, line, axis, grid, primary, ok, warn, bad, card, side …"""
    return MappingProxyType(dict(_palette()[theme]["ui"]))


@cache
def heat_ramp(theme: Theme) -> tuple[str, ...]:
    """The one-way ramp of heat maps: median = background, later = slower."""
    return tuple(_palette()[theme]["heat"])


def _fill(entry: Mapping[str, Any]) -> Fill:
    return Fill(fill=entry["fill"], outline=entry.get("stroke", entry["fill"]), on=entry["on"], text=entry["text"])


def chart_theme(theme: Theme) -> dict[str, Any]:
    """Vega-Lite's config for every chart: fonts, sizes, grid and axis colours, and no background of its own."""
    ui = ui_colors(theme)
    axis = {
        "labelFont": FONT, "titleFont": FONT, "labelFontSize": 12, "titleFontSize": 12,
        "labelColor": ui["muted"], "titleColor": ui["muted"], "titleFontWeight": "normal",
        "gridColor": ui["grid"], "domainColor": ui["axis"], "tickColor": ui["axis"], "labelPadding": 4,
    }  # fmt: skip
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        # A chart tells a screen reader what it shows; its marks would read out pixels and colours, hundreds of them.
        "mark": {"aria": False},
        "axis": axis,
        "text": {"font": FONT, "fontSize": 12, "color": ui["text"]},
        "title": {"font": FONT, "fontSize": 12, "color": ui["text"], "anchor": "start", "fontWeight": 600},
        "header": {"labelFont": FONT, "labelColor": ui["text"], "titleColor": ui["muted"]},
        "legend": {"labelFont": FONT, "titleFont": FONT, "labelColor": ui["muted"], "titleColor": ui["muted"]},
        "bar": {"color": ui["primary"]},
        "rule": {"color": ui["axis"]},
        "line": {"color": ui["primary"]},
    }
