"""Pictures of boxes: how a weight is split over a TP group, and what devices do in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tpdpdash.charts.canvas import box_layer, finish, font_that_fits, text_layer, x_sheet
from tpdpdash.charts.palette import Theme, phase_colors, ui_colors
from tpdpdash.text import t

SPLIT_HEIGHT, SPLIT_TOP = 84, 22
MAX_SLICES = 16
PASS_LANE, PASS_BOX, PASS_TOP = 46, 32, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One weight, cut into slices: a TP group's columns, rows or heads."""

    title: str
    """What it is: "W up: columns"."""
    direction: str
    """"columns", "rows", or "whole" (not split)."""
    labels: Sequence[str]
    """One a slice; above 16 slices only the first ones and the chosen one carry theirs."""
    chosen: Sequence[int]
    """Slices that are lit."""
    note: str = ""
    """Under the picture."""


def weight_splits(splits: Sequence[Split], theme: Theme, *, joints: Sequence[str] = ()) -> Any:
    """The splits beside each other; `joints` are signs between them (×, →)."""
    width, gap = 1.0, 0.34 if joints else 0.16
    span = len(splits) * width + (len(splits) - 1) * gap
    has_notes = any(split.note for split in splits)
    height = SPLIT_TOP + SPLIT_HEIGHT + (24 if has_notes else 4)
    x = x_sheet("x", (-0.01, span + 0.01))
    ui = ui_colors(theme)
    boxes: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    for i, split in enumerate(splits):
        left = i * (width + gap)
        boxes += [{**box, "split": i} for box in _split_boxes(split, left, width, theme)]
        texts.append({"x": left, "y": 9, "text": split.title, "color": ui["text"], "weight": "title"})
        texts.append({"x": left, "y": height - 9, "text": split.note, "color": ui["muted"], "weight": "note"})
        if i < len(joints):
            middle = {"x": left + width + gap / 2, "y": SPLIT_TOP + SPLIT_HEIGHT / 2}
            texts.append({**middle, "text": joints[i], "color": ui["muted"], "weight": "joint"})
    table, words = pd.DataFrame(boxes), pd.DataFrame(texts)
    inner = table.assign(x=(table["x"] + table["x2"]) / 2, y=(table["y"] + table["y2"]) / 2)
    lengths = words["text"].str.len().groupby(words["weight"]).max()
    sizes = {kind: font_that_fits(span, width + gap * 0.8, int(most), 12) for kind, most in lengths.items()}
    layers = [box_layer(table, x=x, height=height, radius=2)]
    for _, told in inner[inner["text"] != ""].groupby("split", sort=False):
        room = float((told["x2"] - table.loc[told.index, "x"]).min())
        tallest = 0.82 * float((told["y2"] - table.loc[told.index, "y"]).min())
        fits = font_that_fits(span, room, int(told["text"].str.len().max()), min(12.0, tallest))
        labels = text_layer(told, x=x, height=height, baseline="middle", fontWeight=600, fontSize=fits)
        layers.append(labels.transform_filter(f"width * {room / span:.5f} > 4.4 * length(datum.text)"))
    for weight, mark in (
        ("title", {"align": "left", "fontWeight": 600, "fontSize": sizes["title"]}),
        ("note", {"align": "left", "fontSize": sizes["note"]}),
        ("joint", {"align": "center", "fontSize": 16}),
    ):
        part = words[words["weight"] == weight]
        if len(part):
            layers.append(text_layer(part, x=x, height=height, baseline="middle", **mark))
    described = "; ".join(f"{split.title}: {', '.join(split.labels[:MAX_SLICES])}" for split in splits)
    return finish(layers, height=height, theme=theme, description=t("How weights are split. {text}", text=described))


def _split_boxes(split: Split, left: float, width: float, theme: Theme) -> list[dict[str, Any]]:
    ui, tp = ui_colors(theme), phase_colors(theme)["tp"]
    count = len(split.labels)
    boxes = []
    for i, label in enumerate(split.labels):
        lit = i in split.chosen
        start, end = i / count, (i + 1) / count
        if split.direction == "rows":
            place = (left, left + width, SPLIT_TOP + start * SPLIT_HEIGHT, SPLIT_TOP + end * SPLIT_HEIGHT)
        else:
            place = (left + start * width, left + end * width, SPLIT_TOP, SPLIT_TOP + SPLIT_HEIGHT)
        told = lit or count <= MAX_SLICES
        boxes.append(
            {
                "x": place[0], "x2": place[1], "y": place[2] + 1, "y2": place[3] - 1,
                "fill": tp.fill if lit else ui["side"], "outline": ui["card"] if lit else ui["line2"],
                "text": label if told else "", "color": tp.on if lit else ui["muted"],
            }
        )  # fmt: skip
    return boxes


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBox:
    """One thing that happens in a pass: work of one device, or a message that several take part in."""

    lanes: tuple[int, int]
    """First and last lane it covers."""
    start: float
    """Where it begins, in steps."""
    steps: float
    """How long it is."""
    text: str
    """First line."""
    phase: str
    """Whose colour: forward, backward, tp, dp, pp."""
    note: str = ""
    """Second line."""
    is_message: bool = False
    """Outlined instead of filled."""


def pass_picture(lanes: Sequence[str], boxes: Sequence[PassBox], theme: Theme, *, description: str) -> Any:
    """Lanes (one a device) with boxes along time; nothing is to scale."""
    ui, colors = ui_colors(theme), phase_colors(theme)
    span = max(box.start + box.steps for box in boxes)
    height = PASS_TOP + PASS_LANE * len(lanes)
    x = x_sheet("x", (-0.62, span + 0.02))
    rows: list[dict[str, Any]] = []
    for i, lane in enumerate(lanes):
        top = PASS_TOP + i * PASS_LANE + 7
        rows.append(
            {"x": -0.6, "x2": -0.08, "y": top, "y2": top + PASS_BOX, "fill": ui["card"], "outline": ui["line2"],
             "text": lane, "note": "", "color": ui["text"], "characters": 8}
        )  # fmt: skip
    for box in boxes:
        look = colors[box.phase]
        top = PASS_TOP + box.lanes[0] * PASS_LANE + (1 if box.is_message else 7)
        bottom = PASS_TOP + box.lanes[1] * PASS_LANE + (PASS_LANE - 1 if box.is_message else 7 + PASS_BOX)
        rows.append(
            {"x": box.start, "x2": box.start + box.steps - 0.05, "y": top, "y2": bottom,
             "fill": ui["card"] if box.is_message else look.fill, "outline": look.outline, "text": box.text,
             "note": box.note, "color": look.text if box.is_message else look.on, "characters": 0}
        )  # fmt: skip
    table = pd.DataFrame(rows)
    middle = table.assign(
        x=(table["x"] + table["x2"]) / 2,
        y=(table["y"] + table["y2"]) / 2 - table["note"].map(lambda note: 8 if note else 0),
    )
    notes = middle[middle["note"] != ""].assign(y=lambda m: m["y"] + 16)
    narrowest = min((b.steps - 0.05) / max(len(b.text), len(b.note)) for b in boxes)
    size = font_that_fits(span + 0.64, narrowest, 1, 12)
    clock = pd.DataFrame([{"x": 0.0, "y": 10, "text": t("time →"), "color": ui["muted"]}])
    layers = [
        box_layer(table, x=x, height=height, radius=4, stroke_width=1.8),
        text_layer(middle, x=x, height=height, baseline="middle", fontSize=size, fontWeight=600),
        text_layer(clock, x=x, height=height, align="left", baseline="middle"),
    ]
    if len(notes):
        layers.append(text_layer(notes, x=x, height=height, text="note", baseline="middle", fontSize=size))
    return finish(layers, height=height, theme=theme, description=description)
