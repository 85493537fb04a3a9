"""Kinds of pipeline stages: the few stages of a row that differ, with how many there are of each.

A pipeline of 64 stages has at most a handful of different ones: the first (embedding), the last (head and loss) and
middle stages that differ in their layers. Formulas are evaluated once per kind. Of equal middle stages the earliest
stands for all: no schedule keeps more microbatches on a later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cost.arrays import Flags, Floats
from tpdpdash.model.spec import ModelSpec
from tpdpdash.units import ceil_div

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageKinds:
    """Stage kinds of n layouts. Arrays are (n, kinds) unless said; a kind with count 0 is padding."""

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
    of_stage: NDArray[np.intp]
    """Kind of every stage (n, stages), stages padded to a multiple of STAGE_STEP; 0 where there is none."""
    stage_exists: Flags
    """Which stages exist (n, stages)."""

    @property
    def layers(self) -> Floats:
        """Layers on one stage of each kind."""
        return self.dense_layers + self.moe_layers

    @property
    def exists(self) -> Flags:
        """False for padding."""
        return self.count > 0

    def spread(self, values: Floats) -> Floats:
        """Values of kinds (n, kinds), given to every stage (n, stages); 0 where there is none."""
        rows = np.arange(len(values))[:, None]
        return np.where(self.stage_exists, values[rows, self.of_stage], 0.0)

    def every_stage(self) -> StageKinds:
        """One kind a stage, in order."""
        stages = self.stage_exists.shape[1]
        order = np.broadcast_to(np.arange(stages), self.stage_exists.shape)
        parts = {name: self.spread(getattr(self, name)) for name in _SPREAD}
        return StageKinds(
            index=np.where(self.stage_exists, order, 0.0),
            count=self.stage_exists.astype(np.float64),
            of_stage=np.where(self.stage_exists, order, 0),
            stage_exists=self.stage_exists,
            **parts,
        )


STAGE_STEP = 8
"""numpy adds rows in eights: padded so, a row's sum does not depend on how many stages other rows have."""
_SPREAD = ("dense_layers", "moe_layers", "is_first", "is_last")
_FIELDS = ("index", "count", *_SPREAD)
Row = tuple[float, float, float, float, float, float]


def moe_layers_before(model: ModelSpec) -> Floats:
    """How many of the first i layers are mixtures of experts, for i = 0 … num_layers."""
    flags = [model.is_moe_layer(layer) for layer in range(model.num_layers)]
    return np.concatenate([[0.0], np.cumsum(np.asarray(flags, np.float64))])


def stage_rows(model: ModelSpec, stage_layers: Floats, num_model_chunks: int) -> list[Row]:
    """Every stage of one pipeline: (index, 1, dense layers, MoE layers, is first, is last).

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


def merged(rows: list[Row]) -> tuple[list[Row], list[int]]:
    """Equal stages joined, with the earliest index and their number; and the kind of each stage."""
    kinds: dict[tuple[float, ...], Row] = {}
    for row in rows:
        known = kinds.get(row[2:])
        kinds[row[2:]] = row if known is None else (known[0], known[1] + 1, *row[2:])
    places = {key: place for place, key in enumerate(kinds)}
    return list(kinds.values()), [places[row[2:]] for row in rows]


def stage_kinds(model: ModelSpec, stage_layers: Floats, pp: Floats, num_model_chunks: Floats) -> StageKinds:
    """Stage kinds of n layouts. stage_layers: (n, stages), 0 beyond a row's pp."""
    first_of, structure = _distinct(stage_layers, pp, num_model_chunks)
    tables = [merged(stage_rows(model, stage_layers[i, : int(pp[i])], int(num_model_chunks[i]))) for i in first_of]
    width = max((len(rows) for rows, _ in tables), default=1)
    stages = ceil_div(stage_layers.shape[1], STAGE_STEP) * STAGE_STEP
    table = np.zeros((len(tables), width, len(_FIELDS)))
    of_stage = np.zeros((len(tables), stages), np.intp)
    for place, (rows, which) in enumerate(tables):
        table[place, : len(rows)] = rows
        of_stage[place, : len(which)] = which
    return StageKinds(
        of_stage=of_stage[structure],
        stage_exists=np.arange(stages) < pp[:, None],
        **{name: table[structure, :, k] for k, name in enumerate(_FIELDS)},
    )


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
