"""The rank map: nodes as boxes, devices as cells, the chosen rank inverted and its groups lit and linked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import altair as alt
import pandas as pd

from tpdpdash.charts.canvas import box_layer, finish, font_that_fits, path_layer, text_layer, x_sheet, y_sheet
from tpdpdash.charts.map_geometry import Bus, MapGrid, bus_paths, bus_rows, group_boxes, link_paths, links_below
from tpdpdash.charts.palette import Theme, phase_colors, ui_colors
from tpdpdash.text import t
from tpdpdash.units import ceil_div

MAX_RANKS = 128
"""Cells that one map shows; above it only nodes of the chosen rank's groups are drawn, and the page says so."""
LINKED_KINDS = ("cp", "ep", "pp", "dp")
LIT_ORDER = ("tp", "cp", "ep", "pp", "dp")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMap:
    """What the map shows. Ranks, nodes and devices count from 0; rank r sits in node r // devices_per_node."""

    world_size: int
    """Ranks in all."""
    devices_per_node: int
    """Cells of one node box."""
    chosen: int
    """The rank that is inverted."""
    groups: Mapping[str, Sequence[int]]
    """The chosen rank's group of each kind (tp, cp, ep, pp, dp); kinds of degree 1 may be absent."""
    node_notes: Mapping[int, str] = field(default_factory=dict)
    """What stands at the right of a node's title: its stage."""
    node_titles: Mapping[int, str] = field(default_factory=dict)
    """Titles other than "node 3"."""
    labels: Mapping[int, str] = field(default_factory=dict)
    """Labels other than the rank's number: g0."""
    notes: Mapping[int, str] = field(default_factory=dict)
    """Second lines of cells: which part of W."""
    named_groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """TP groups that are outlined with their name: tp_groups[0] …"""
    buses: Sequence[Bus] = ()
    """DP groups drawn as a line below the cells, with their name."""
    block_size: int = 0
    """Cells that stand close together in a node (one TP group); 0: all alike."""
    node_columns: int | None = None
    """Node boxes beside each other; None: as many as 16 cells allow."""


def shown_nodes(spec: RankMap) -> list[int]:
    """Nodes that are drawn: all, or as many as MAX_RANKS allows of those that hold the chosen rank's groups."""
    num_nodes = ceil_div(spec.world_size, spec.devices_per_node)
    limit = max(1, MAX_RANKS // spec.devices_per_node)
    if num_nodes <= limit:
        return list(range(num_nodes))
    wanted: list[int] = [spec.chosen // spec.devices_per_node]
    for kind in LIT_ORDER:
        wanted.extend(rank // spec.devices_per_node for rank in spec.groups.get(kind, ()))
    return sorted(list(dict.fromkeys(wanted))[:limit])


def shown_ranks(spec: RankMap, nodes: Sequence[int]) -> list[int]:
    """Ranks of the nodes that are drawn."""
    return [
        rank
        for node in nodes
        for rank in range(node * spec.devices_per_node, min(spec.world_size, (node + 1) * spec.devices_per_node))
    ]


def rank_map(spec: RankMap, theme: Theme) -> Any:
    """The chart. Its selection parameter is "pick" with the field "rank"."""
    nodes = shown_nodes(spec)
    ranks = shown_ranks(spec, nodes)
    grid = _grid(spec, nodes, ranks)
    boxes, *titles = _node_layers(spec, grid, theme)
    # Titles stand over the links that run through a node's head.
    layers = [boxes, *_link_layers(spec, grid, ranks, theme), *titles]
    layers += [*_bus_layers(spec, grid, theme), *_outline_layers(spec, grid, ranks, theme)]
    layers += _cell_layers(spec, grid, ranks, theme)
    return finish(layers, height=grid.height, theme=theme, description=_description(spec, len(ranks)))


def _grid(spec: RankMap, nodes: Sequence[int], ranks: Sequence[int]) -> MapGrid:
    """The geometry, with room under the last row of boxes only where a link runs there."""
    grid = MapGrid.for_nodes(
        nodes,
        devices_per_node=min(spec.devices_per_node, spec.world_size),
        node_columns=spec.node_columns,
        has_notes=bool(spec.notes),
        has_group_names=bool(spec.named_groups),
        num_bus_rows=max(bus_rows(spec.buses), default=-1) + 1,
        block_size=spec.block_size,
    )
    linked = {kind: _linked(spec, kind, ranks) for kind in LINKED_KINDS}
    below = [links_below(grid, kind, members) for kind, members in linked.items()]
    return replace(grid, links_below=max(below))


def _linked(spec: RankMap, kind: str, ranks: Sequence[int]) -> list[int]:
    """Members of the chosen rank's group that are joined by lines: drawn ones, unless a bus shows them."""
    drawn = set(ranks)
    members = [rank for rank in spec.groups.get(kind, ()) if rank in drawn]
    is_on_bus = kind == "dp" and any(spec.chosen in bus.ranks for bus in spec.buses)
    return [] if len(members) < 2 or is_on_bus else members


def _description(spec: RankMap, num_shown: int) -> str:
    groups = "; ".join(f"{kind.upper()} {', '.join(map(str, members))}" for kind, members in spec.groups.items())
    return t(
        "Map of {shown} of {world} ranks by node. Rank {rank} is chosen; its groups: {groups}.",
        shown=num_shown,
        world=spec.world_size,
        rank=spec.chosen,
        groups=groups,
    )


def _node_layers(spec: RankMap, grid: MapGrid, theme: Theme) -> list[Any]:
    ui = ui_colors(theme)
    rows = []
    for node in grid.nodes:
        left, right, top, bottom = grid.node_box(node)
        title = spec.node_titles.get(node, t("node {node}", node=node))
        rows.append(
            {
                "x": left, "x2": right, "y": top, "y2": bottom, "fill": ui["side"], "outline": ui["line2"],
                "title": title, "note": spec.node_notes.get(node, ""),
                "title_x": left + grid.padding, "note_x": right - grid.padding, "text_y": top + 13,
                "color": ui["text"], "muted": ui["muted"],
            }
        )  # fmt: skip
    table = pd.DataFrame(rows)
    titles = table.rename(columns={"text_y": "ty"}).assign(x=table["title_x"], y=table["text_y"])
    notes = table.assign(x=table["note_x"], y=table["text_y"], color=table["muted"])
    x = x_sheet("x", grid.domain)
    fits = f"width * {grid.node_width / grid.span:.5f} > 118 ? 1 : 0"
    # A pipeline's line may come from above through the title: it is interrupted there.
    ground = titles.assign(color=ui["side"])
    return [
        box_layer(table, x=x, height=grid.height, radius=6),
        text_layer(
            ground,
            x=x,
            height=grid.height,
            text="title",
            align="left",
            baseline="middle",
            fontWeight=600,
            stroke=ui["side"],
            strokeWidth=6,
        ),
        text_layer(titles, x=x, height=grid.height, text="title", align="left", baseline="middle", fontWeight=600),
        text_layer(
            notes, x=x, height=grid.height, text="note", align="right", baseline="middle", opacity=alt.expr(fits)
        ),
    ]


def _link_layers(spec: RankMap, grid: MapGrid, ranks: Sequence[int], theme: Theme) -> list[Any]:
    colors = phase_colors(theme)
    paths: list[dict[str, Any]] = []
    heads: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    for kind in LINKED_KINDS:
        members = _linked(spec, kind, ranks)
        if not members:
            continue
        links = link_paths(grid, kind, members)
        color = colors[kind].outline
        paths += [{**point, "path": f"{kind}-{point['path']}", "color": color} for point in links.points]
        heads += [{**head, "color": color} for head in links.heads]
        labels += [{**label, "text": kind.upper(), "color": colors[kind].text} for label in links.labels]
    x = x_sheet("x", grid.domain)
    layers = []
    if paths:
        layers.append(path_layer(pd.DataFrame(paths), x=x, height=grid.height, strokeWidth=2))
    if heads:
        layers.append(_heads(pd.DataFrame(heads), grid))
    if labels:
        layers.append(
            text_layer(
                pd.DataFrame(labels), x=x, height=grid.height, fontWeight=600, fontSize=11, dy=-7,
                stroke=ui_colors(theme)["bg"], strokeWidth=0,
            )
        )  # fmt: skip
    return layers


def _heads(table: pd.DataFrame, grid: MapGrid) -> Any:
    base = alt.Chart(table).mark_point(filled=True, size=45, opacity=1)
    return base.encode(
        x=x_sheet("x", grid.domain),
        y=y_sheet("y", grid.height),
        shape=alt.Shape("shape:N", scale=None, legend=None),
        color=alt.Color("color:N", scale=None, legend=None),
        tooltip=alt.TooltipValue(None),
    )


def _outline_layers(spec: RankMap, grid: MapGrid, ranks: Sequence[int], theme: Theme) -> list[Any]:
    """The chosen TP group's outline, and the thin named ones where they are asked for."""
    drawn = set(ranks)
    tp = phase_colors(theme)["tp"]
    chosen = [rank for rank in spec.groups.get("tp", ()) if rank in drawn]
    strong = group_boxes(grid, chosen, 5) if len(chosen) > 1 else []
    thin: list[dict[str, Any]] = []
    names: list[dict[str, Any]] = []
    for name, members in spec.named_groups.items():
        boxes = group_boxes(grid, [rank for rank in members if rank in drawn], 4)
        thin += boxes
        names += [
            {"x": (box["x"] + box["x2"]) / 2, "y": box["y"] - 8, "text": name, "color": tp.text} for box in boxes[:1]
        ]
    x = x_sheet("x", grid.domain)
    layers = []
    for boxes, width in ((thin, 1.2), (strong, 2.5)):
        if boxes:
            table = pd.DataFrame(boxes).assign(fill="transparent", outline=tp.outline)
            layers.append(box_layer(table, x=x, height=grid.height, radius=7, stroke_width=width))
    if names:
        characters = max(len(str(name["text"])) for name in names)
        room = min(name_room(grid, members) for members in spec.named_groups.values())
        size = font_that_fits(grid.span, room, characters, 11.5)
        layers.append(text_layer(pd.DataFrame(names), x=x, height=grid.height, fontSize=size, fontWeight=600))
    return layers


def name_room(grid: MapGrid, members: Sequence[int]) -> float:
    """Units that a group's name may take: the width of its cells in one row."""
    return min(len(members), grid.cell_columns) * (1 + grid.cell_gap) + 0.5


def _bus_layers(spec: RankMap, grid: MapGrid, theme: Theme) -> list[Any]:
    if not spec.buses:
        return []
    dp, ui = phase_colors(theme)["dp"], ui_colors(theme)
    points, dots, names = bus_paths(grid, spec.buses, spec.chosen)
    x = x_sheet("x", grid.domain)
    table = pd.DataFrame(points).assign(color=dp.outline)
    strong = table[table["strong"]]
    layers = [path_layer(table[~table["strong"]], x=x, height=grid.height, strokeWidth=1.2)]
    layers.append(path_layer(strong, x=x, height=grid.height, strokeWidth=3))
    dot = alt.Chart(pd.DataFrame(dots).assign(color=dp.outline)).mark_point(filled=True, opacity=1)
    layers.append(
        dot.encode(
            x=x,
            y=y_sheet("y", grid.height),
            size=alt.Size("size:Q", scale=None, legend=None),
            color=alt.Color("color:N", scale=None, legend=None),
            tooltip=alt.TooltipValue(None),
        )
    )
    names_table = pd.DataFrame(names).assign(color=dp.text, fill=ui["card"], outline=ui["card"])
    layers.append(box_layer(names_table.assign(x=names_table["left"]), x=x, height=grid.height, radius=4))
    size = font_that_fits(grid.span, 1.6, 12, 11.5)
    middle = names_table.assign(y=names_table["middle"])
    layers.append(text_layer(middle, x=x, height=grid.height, fontSize=size, fontWeight=600))
    return layers


def _lit_kinds(spec: RankMap, rank: int) -> list[str]:
    return [kind for kind in LIT_ORDER if rank in spec.groups.get(kind, ()) and len(spec.groups[kind]) > 1]


def _cell_layers(spec: RankMap, grid: MapGrid, ranks: Sequence[int], theme: Theme) -> list[Any]:
    ui, colors = ui_colors(theme), phase_colors(theme)
    rows = []
    for rank in ranks:
        left, right, top, bottom = grid.cell_box(rank)
        kinds = _lit_kinds(spec, rank)
        fill, outline, color = ui["card"], ui["line2"], ui["muted"]
        if rank == spec.chosen:
            fill, outline, color = ui["text"], ui["text"], ui["bg"]
        elif kinds:
            # Where two kinds meet (an expert group lies inside the data group) the second shows as the outline.
            fill, color = colors[kinds[0]].fill, colors[kinds[0]].on
            outline = colors[kinds[-1]].outline
        rows.append(
            {
                "rank": rank, "x": left, "x2": right, "y": top, "y2": bottom, "fill": fill, "outline": outline,
                "color": color, "text": spec.labels.get(rank, str(rank)), "note": spec.notes.get(rank, ""),
                "node": rank // spec.devices_per_node, "in": ", ".join(k.upper() for k in kinds) or "-",
            }
        )  # fmt: skip
    table = pd.DataFrame(rows)
    x = x_sheet("x", grid.domain)
    pick = alt.selection_point(name="pick", fields=["rank"], empty=False)
    tips = [
        alt.Tooltip("rank:Q", title=t("rank")),
        alt.Tooltip("node:Q", title=t("node")),
        alt.Tooltip("in:N", title=t("shares a group of")),
    ]
    cells = box_layer(table, x=x, height=grid.height, radius=4, stroke_width=1.5, tooltip=tips).add_params(pick)
    middle = (table["x"] + table["x2"]) / 2
    shift = 7 if spec.notes else 0
    center = (table["y"] + table["y2"]) / 2
    characters = int(table["text"].str.len().max())
    size = font_that_fits(grid.span, 1.0, characters)
    layers = [cells]
    texts = table.assign(x=middle, y=center - shift)
    layers.append(text_layer(texts, x=x, height=grid.height, baseline="middle", fontSize=size, fontWeight=600))
    if spec.notes:
        notes = table.assign(x=middle, y=center + shift)
        size = font_that_fits(grid.span, 1.0, 4, 11)
        layers.append(text_layer(notes, x=x, height=grid.height, text="note", baseline="middle", fontSize=size))
    return layers
