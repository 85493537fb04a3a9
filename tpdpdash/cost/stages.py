"""Kinds of pipeline stages: the few stages of a row that differ, with how many there are of each.

A pipeline of 64 stages has at most a handful of different ones: the first (embedding), the last (head and loss) and
middle stages that differ in their layers. Formulas are evaluated once per kind. Of equal middle stages the earliest
stands for all: no schedule keeps more microbatches on a later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.model.spec import ModelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKinds:
    """Stage kinds of n layouts, every array (n, kinds); a kind with count 0 is padding."""

    index: Floats
    """The earliest stage of this kind, from 0."""
    count: Floats
    """Stages of this kind."""
    dense_layers: Floats
    """Dense layers on one such stage, all its chunks together."""
    moe_layers: Floats
    """Mixture-of-experts layers on one such stage."""
    is_first: Floats
    """1 where the stage holds the embedding."""
    is_last: Floats
    """1 where the stage holds the head and the loss."""

    @property
    def layers(self) -> Floats:
        """Layers on one stage of each kind."""
        return self.dense_layers + self.moe_layers

    @property
    def exists(self) -> NDArray[np.bool_]:
        """False for padding."""
        return self.count > 0


_FIELDS = ("index", "count", "dense_layers", "moe_layers", "is_first", "is_last")
Row = tuple[float, float, float, float, float, float]


def moe_layers_before(model: ModelSpec) -> Floats:
    """How many of the first i layers are mixtures of experts, for i = 0 … num_layers."""
    flags = [model.is_moe_layer(layer) for layer in range(model.num_layers)]
    return np.concatenate([[0.0], np.cumsum(np.asarray(flags, np.float64))])


def stage_rows(model: ModelSpec, stage_layers: Floats, num_model_chunks: int) -> list[Row]:
    """Every stage of one pipeline, as rows of StageKinds with count 1.

    Chunk c of stage s follows chunk c of stage s − 1; a stage's layers are spread evenly over its chunks.
    """
    before = moe_layers_before(model)
    pp, v = len(stage_layers), num_model_chunks
    per_chunk = np.asarray(stage_layers, np.float64) / v
    ends = np.cumsum(np.tile(per_chunk, v)).reshape(v, pp)
    starts = ends - per_chunk
    marks = np.arange(len(before), dtype=np.float64)
    moe = (np.interp(ends, marks, before) - np.interp(starts, marks, before)).sum(axis=0)
    return [
        (float(s), 1.0, float(stage_layers[s] - moe[s]), float(moe[s]), float(s == 0), float(s == pp - 1))
        for s in range(pp)
    ]


def merged(rows: list[Row]) -> list[Row]:
    """Equal middle stages joined: the earliest index, and the number of them."""
    kinds: dict[tuple[float, ...], Row] = {}
    for row in rows:
        key = row[2:]
        known = kinds.get(key)
        kinds[key] = row if known is None else (known[0], known[1] + 1, *row[2:])
    return list(kinds.values())


def stage_kinds(
    model: ModelSpec, stage_layers: Floats, pp: Floats, num_model_chunks: Floats, *, every_stage: bool = False
) -> StageKinds:
    """Stage kinds of n layouts.

    stage_layers: (n, stages), 0 beyond a row's pp. every_stage: no joining, one kind a stage, in order.
    """
    first_of, structure = _distinct(stage_layers, pp, num_model_chunks)
    tables = []
    for i in first_of:
        rows = stage_rows(model, stage_layers[i, : int(pp[i])], int(num_model_chunks[i]))
        tables.append(rows if every_stage else merged(rows))
    width = max((len(rows) for rows in tables), default=1)
    padding = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    table = np.array([[*rows, *[padding] * (width - len(rows))] for rows in tables]).reshape(len(tables), width, 6)
    return StageKinds(**{name: table[structure, :, k] for k, name in enumerate(_FIELDS)})


def _distinct(
    stage_layers: Floats, pp: Floats, num_model_chunks: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row of each distinct stage split, split of each row). Splits are told apart by all their figures."""
    weights = np.sqrt(np.arange(2.0, 2.0 + stage_layers.shape[1]))
    mark = (stage_layers * weights).sum(axis=1) + np.sqrt(np.pi) * pp + np.sqrt(np.e) * 1e3 * num_model_chunks
    _, first_of, structure = np.unique(mark, return_index=True, return_inverse=True)
    same = (stage_layers == stage_layers[first_of[structure]]).all(axis=1)
    same &= (pp == pp[first_of[structure]]) & (num_model_chunks == num_model_chunks[first_of[structure]])
    if same.all():
        return first_of, structure
    full = np.column_stack([stage_layers, pp, num_model_chunks])
    _, first_of, structure = np.unique(full, axis=0, return_index=True, return_inverse=True)
    return first_of, structure.reshape(-1)
