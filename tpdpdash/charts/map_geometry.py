"""Where the rank map's boxes, cells, links and names stand: x in cell widths, y in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tpdpdash.units import ceil_div

CELLS_ACROSS = 16
"""Cells beside each other at most: at 400 px a two-digit number still fits."""
FEWEST_ACROSS = 12
"""A small world keeps cells of ordinary width and leaves the rest of the sheet free."""
HEADER, CELL_GAP_Y, NODE_END, GUTTER, NAME_ROOM, BUS_STEP = 26, 6, 10, 34, 18, 20
LANE_STEP, LANES = 8, 3
# Links of different kinds leave a cell at different points, so that parallel ones stay apart.
OFFSETS = {"dp": 0.0, "pp": 0.18, "cp": -0.18, "ep": -0.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus:
    """One group drawn as a line under the cells with a dot for each member."""

    name: str
    """What stands on the line."""
    ranks: Sequence[int]
    """Members."""


def bus_rows(buses: Sequence[Bus]) -> list[int]:
    """Row of each bus below the cells: groups that lie beside each other share one."""
    ends: list[int] = []
    rows = []
    for bus in buses:
        row = next((i for i, end in enumerate(ends) if end < min(bus.ranks)), len(ends))
        ends[row : row + 1] = [max(bus.ranks)]
        rows.append(row)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The lines between the members of one group."""

    points: list[dict[str, Any]]
    """Corners: path, order, x, y."""
    heads: list[dict[str, Any]]
    """Arrow heads: x, y, shape."""
    labels: list[dict[str, Any]]
    """Where the kind's name stands: x, y."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapGrid:
    """Rows and columns of node boxes, each with rows and columns of cells."""

    nodes: tuple[int, ...]
    """Nodes that are drawn, in order."""
    devices_per_node: int
    """Cells of a node."""
    node_columns: int
    """Node boxes beside each other."""
    cell_columns: int
    """Cells beside each other in a node."""
    cell_height: int
    """Pixels."""
    names_height: int
    """Pixels kept above the cells for the names of groups."""
    buses_height: int
    """Pixels kept under the cells for buses."""
    block_size: int
    """Cells that stand together; a wider gap follows."""
    fewest_across: int
    """Cells across that the sheet has room for, however few there are."""
    links_below: int
    """Links that run under the last row of boxes."""
    cell_gap: float = 0.14
    """Units between cells."""
    padding: float = 0.35
    """Units between a node's frame and its cells."""
    node_gap: float = 0.45
    """Units between node boxes."""
    block_gap: float = 0.5
    """Units between blocks, on top of the gap between cells."""

    @classmethod
    def for_nodes(
        cls,
        nodes: Sequence[int],
        *,
        devices_per_node: int,
        node_columns: int | None,
        has_notes: bool,
        has_group_names: bool,
        num_bus_rows: int,
        block_size: int = 0,
    ) -> MapGrid:
        """A grid of at most 16 cells across: one row of cells a node where all fit, else rows of four."""
        if len(nodes) * devices_per_node <= CELLS_ACROSS or node_columns == 1:
            cell_columns = min(devices_per_node, CELLS_ACROSS)
        else:
            cell_columns = min(devices_per_node, 4 if devices_per_node <= CELLS_ACROSS else CELLS_ACROSS // 2)
        across = node_columns or max(1, min(len(nodes), CELLS_ACROSS // cell_columns))
        return cls(
            nodes=tuple(nodes),
            devices_per_node=devices_per_node,
            node_columns=across,
            cell_columns=cell_columns,
            cell_height=40 if has_notes else 32,
            names_height=NAME_ROOM if has_group_names else 0,
            buses_height=BUS_STEP * num_bus_rows + 14 if num_bus_rows else 0,
            block_size=block_size if 0 < block_size < cell_columns else cell_columns,
            fewest_across=FEWEST_ACROSS if node_columns is None else 0,
            links_below=0,
        )

    @property
    def cell_rows(self) -> int:
        """Rows of cells in a node."""
        return ceil_div(self.devices_per_node, self.cell_columns)

    @property
    def node_width(self) -> float:
        """Units."""
        return self._column_x(self.cell_columns - 1) + 1 + 2 * self.padding

    def _column_x(self, column: int) -> float:
        return column * (1 + self.cell_gap) + column // self.block_size * self.block_gap

    @property
    def span(self) -> float:
        """Units across the whole sheet."""
        used = self.node_columns * self.node_width + (self.node_columns - 1) * self.node_gap
        return max(used, self.fewest_across * (1 + self.cell_gap) + 2 * self.padding) + 0.1

    @property
    def domain(self) -> tuple[float, float]:
        """The x scale."""
        return (-0.05, self.span - 0.05)

    @property
    def node_height(self) -> int:
        """Pixels."""
        cells = self.cell_rows * self.cell_height + (self.cell_rows - 1) * self._gap_y
        return HEADER + self.names_height + cells + NODE_END + self.buses_height

    @property
    def _gap_y(self) -> int:
        return CELL_GAP_Y + self.names_height

    @property
    def height(self) -> int:
        """Pixels of the whole sheet."""
        rows = ceil_div(len(self.nodes), self.node_columns)
        below = 10 + LANE_STEP * min(self.links_below, LANES) if self.links_below else 2
        return rows * self.node_height + (rows - 1) * GUTTER + below

    def node_row(self, rank: int) -> int:
        """Row of boxes in which a rank's node stands."""
        return self._place(rank)[0]

    def node_of(self, rank: int) -> int:
        """Node of a rank."""
        return rank // self.devices_per_node

    def node_box(self, node: int) -> tuple[float, float, int, int]:
        """Left, right, top, bottom."""
        row, column = divmod(self.nodes.index(node), self.node_columns)
        left = column * (self.node_width + self.node_gap)
        top = 1 + row * (self.node_height + GUTTER)
        return left, left + self.node_width, top, top + self.node_height

    def cell_box(self, rank: int) -> tuple[float, float, int, int]:
        """Left, right, top, bottom."""
        left, _, top, _ = self.node_box(self.node_of(rank))
        row, column = divmod(rank % self.devices_per_node, self.cell_columns)
        x = left + self.padding + self._column_x(column)
        y = top + HEADER + self.names_height + row * (self.cell_height + self._gap_y)
        return x, x + 1, y, y + self.cell_height

    def _place(self, rank: int) -> tuple[int, int]:
        return divmod(self.nodes.index(self.node_of(rank)), self.node_columns)


def link_paths(grid: MapGrid, kind: str, members: Sequence[int]) -> Links:
    """Right-angled lines from each member to the next; PP runs through the space between node rows, with arrows."""
    points: list[dict[str, Any]] = []
    heads: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    lanes: dict[int, int] = {}
    for path, (first, second) in enumerate(pairwise(members)):
        corners = _corners(grid, kind, first, second, lanes)
        points += [{"path": path, "order": i, "x": x, "y": y} for i, (x, y) in enumerate(corners)]
        if kind == "pp":
            heads.append(_head(grid, second, corners))
        if not labels and grid.node_of(first) != grid.node_of(second):
            labels.append(_label(grid, first, corners))
    return Links(points=points, heads=heads, labels=labels)


def _corners(grid: MapGrid, kind: str, first: int, second: int, lanes: dict[int, int]) -> list[tuple[float, float]]:
    (left_a, right_a, top_a, bottom_a), (left_b, right_b, top_b, bottom_b) = map(grid.cell_box, (first, second))
    shift = OFFSETS.get(kind, 0.0)
    ax, bx = (left_a + right_a) / 2 + shift, (left_b + right_b) / 2 + shift
    ay, by = ((top_a + bottom_a) / 2 + shift * 36, (top_b + bottom_b) / 2 + shift * 36)
    same_node = grid.node_of(first) == grid.node_of(second)
    if abs(ay - by) < 1 and (same_node or kind != "pp"):
        return [(ax, ay), (bx, by)]
    if same_node:
        return [(ax, ay), (ax, by), (bx, by)]
    row = min(grid.node_row(first), grid.node_row(second))
    _, _, _, bottom = grid.node_box(grid.nodes[row * grid.node_columns])
    lane = lanes[row] = lanes.get(row, -1) + 1
    gutter = bottom + 9 + LANE_STEP * (lane % LANES)
    return [(ax, ay), (ax, gutter), (bx, gutter), (bx, by)]


def links_below(grid: MapGrid, kind: str, members: Sequence[int]) -> int:
    """How many links of this group run under the last row of boxes."""
    last = (len(grid.nodes) - 1) // grid.node_columns
    inside = [rank for rank in members if grid.node_row(rank) == last]
    return sum(len(_corners(grid, kind, a, b, {})) == 4 for a, b in pairwise(inside))


def _head(grid: MapGrid, target: int, corners: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """An arrow head at the edge of the target's cell, in the direction of the last stretch."""
    (x0, y0), (x1, y1) = corners[-2:]
    left, right, top, bottom = grid.cell_box(target)
    if abs(y1 - y0) < 1:
        forward = x1 > x0
        return {"x": left - 0.05 if forward else right + 0.05, "y": y1,
                "shape": "triangle-right" if forward else "triangle-left"}  # fmt: skip
    down = y1 > y0
    return {"x": x1, "y": top - 4 if down else bottom + 4, "shape": "triangle-down" if down else "triangle-up"}


def _label(grid: MapGrid, first: int, corners: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Over the line: in the space between two boxes of a row, or in the space under the row."""
    if len(corners) == 2:
        _, right, _, _ = grid.node_box(grid.node_of(first))
        return {"x": right + grid.node_gap / 2, "y": corners[0][1]}
    (x0, y0), (x1, _) = corners[1:3]
    if abs(x1 - x0) < 1:  # straight down: beside the line
        return {"x": x0 + 0.3, "y": y0 + 6}
    return {"x": (x0 + x1) / 2, "y": y0}


def group_boxes(grid: MapGrid, members: Sequence[int], margin: int) -> list[dict[str, Any]]:
    """Frames around a group's cells: one a node where they form a rectangle, else one for each run in a row."""
    frames: list[dict[str, Any]] = []
    for node in sorted({grid.node_of(rank) for rank in members}):
        slots = sorted(rank % grid.devices_per_node for rank in members if grid.node_of(rank) == node)
        for run in _rectangles(slots, grid.cell_columns):
            boxes = [grid.cell_box(node * grid.devices_per_node + slot) for slot in run]
            side = margin / 40
            frames.append(
                {
                    "x": min(b[0] for b in boxes) - side,
                    "x2": max(b[1] for b in boxes) + side,
                    "y": min(b[2] for b in boxes) - margin,
                    "y2": max(b[3] for b in boxes) + margin,
                }
            )
    return frames


def _rectangles(slots: Sequence[int], columns: int) -> list[list[int]]:
    rows = [slot // columns for slot in slots]
    across = [slot % columns for slot in slots]
    area = (max(rows) - min(rows) + 1) * (max(across) - min(across) + 1)
    if area == len(slots):
        return [list(slots)]
    runs: list[list[int]] = []
    for slot in slots:
        if runs and slot == runs[-1][-1] + 1 and slot % columns:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    return runs


def bus_paths(
    grid: MapGrid, buses: Sequence[Bus], chosen: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Corners of the bus lines and their drops, dots at the members, and the boxes of the names."""
    points: list[dict[str, Any]] = []
    dots: list[dict[str, Any]] = []
    names: list[dict[str, Any]] = []
    for index, (row, bus) in enumerate(zip(bus_rows(buses), buses, strict=True)):
        strong = chosen in bus.ranks
        boxes = [grid.cell_box(rank) for rank in bus.ranks]
        y = boxes[0][3] + 22 + BUS_STEP * row
        centers = [(box[0] + box[1]) / 2 for box in boxes]
        ends = ((min(centers), y), (max(centers), y))
        points += [
            {"path": f"bus{index}", "order": i, "x": x, "y": v, "strong": strong} for i, (x, v) in enumerate(ends)
        ]
        for rank, x, box in zip(bus.ranks, centers, boxes, strict=True):
            drop = ((x, box[3]), (x, y))
            points += [
                {"path": f"drop{rank}", "order": i, "x": px, "y": py, "strong": strong}
                for i, (px, py) in enumerate(drop)
            ]
            dots.append({"x": x, "y": y, "size": 90 if strong else 36})
        middle = (min(centers) + max(centers)) / 2
        names.append(
            {"x": middle, "left": middle - 0.8, "x2": middle + 0.8, "y": y - 8, "y2": y + 8,
             "middle": y, "text": bus.name}
        )  # fmt: skip
    return points, dots, names
