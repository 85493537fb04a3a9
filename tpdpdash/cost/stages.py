"""Kinds of pipeline stages: the few stages of a row that differ, with how many there are of each.

A pipeline of 64 stages has at most a handful of different ones: the first (embedding), the last (head and loss) and
middle stages that differ in their layers. Formulas are evaluated once per kind. Of equal middle stages the earliest
stands for all: no schedule keeps more microbatches on a later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, get_args

import numpy as np

from tpdpdash.cost.arrays import Flags, Floats, rows_of
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import SCHEDULES
from tpdpdash.layout.schedules import SCHEDULE_FACTS, Placement, ranks_of_ends
from tpdpdash.model.spec import ModelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageKinds:
    """Stage kinds of n layouts. Arrays are (n, kinds) unless said; a kind with count 0 is padding."""

    index: Floats
    """The earliest stage of this kind, from 0."""
    latest: Floats
    """The latest stage of this kind."""
    count: Floats
    """Stages of this kind."""
    dense_layers: Floats
    """Dense layers on one such stage, all its chunks together."""
    moe_layers: Floats
    """Mixture-of-experts layers on one such stage."""
    is_first: Floats
    """1 where the stage holds the embedding; in a V its rank 0 has both ends."""
    is_last: Floats
    """1 where the stage holds the head and the loss."""
    pipeline: NDArray[np.intp]
    """Row of `of_stage` (n,)."""
    of_stage: NDArray[np.intp]
    """Kind of every stage of each different pipeline (pipelines, stages); −1 where there is none."""

    @property
    def layers(self) -> Floats:
        """Layers on one stage of each kind."""
        return self.dense_layers + self.moe_layers

    @property
    def exists(self) -> Flags:
        """False for padding."""
        return self.count > 0

    @property
    def stage_exists(self) -> Flags:
        """Which stages exist (n, stages)."""
        return (self.of_stage >= 0).T.take(self.pipeline, axis=1).T

    def spread(self, *values: Floats) -> tuple[Floats, ...]:
        """Values of kinds, each (n, kinds), given to every stage (n, stages); 0 where there is none."""
        kind, rows = self.of_stage.T.take(self.pipeline, axis=1), len(self.pipeline)
        exists, place = kind >= 0, np.maximum(kind, 0) * rows + np.arange(rows)
        found = (each.T.take(place) for each in values)
        return tuple(each.T if exists.all() else np.where(exists, each, 0.0).T for each in found)

    def take(self, index: NDArray[np.intp] | Flags) -> StageKinds:
        """The rows of an index or a mask."""
        rows = rows_of({name: getattr(self, name) for name in (*_FIELDS, "pipeline")}, index)
        return StageKinds(**rows, of_stage=self.of_stage)

    def every_stage(self) -> StageKinds:
        """One kind a stage, in order."""
        exists = self.stage_exists
        order = np.arange(exists.shape[1])
        return StageKinds(
            index=np.where(exists, order, 0.0),
            latest=np.where(exists, order, 0.0),
            count=exists.astype(np.float64),
            pipeline=self.pipeline,
            of_stage=np.where(self.of_stage >= 0, order, -1),
            **dict(zip(_SPREAD, self.spread(*(getattr(self, name) for name in _SPREAD)), strict=True)),
        )


_SPREAD = ("dense_layers", "moe_layers", "is_first", "is_last")
_FIELDS = ("index", "latest", "count", *_SPREAD)
Row = tuple[float, float, float, float, float, float, float]


def moe_layers_before(model: ModelSpec) -> Floats:
    """How many of the first i layers are mixtures of experts, for i = 0 … num_layers."""
    flags = [model.is_moe_layer(layer) for layer in range(model.num_layers)]
    return np.concatenate([[0.0], np.cumsum(np.asarray(flags, np.float64))])


@lru_cache(maxsize=256)
def layer_types(model: ModelSpec) -> tuple[bool, ...]:
    """Whether the model has dense layers (False) and mixtures of experts (True)."""
    return tuple(moe for moe in (False, True) if any(model.is_moe_layer(i) == moe for i in range(model.num_layers)))


def stage_rows(
    model: ModelSpec, stage_layers: Floats, num_model_chunks: int, placement: Placement = "loop"
) -> list[Row]:
    """Every pipeline rank's stage: (index, index, 1, dense layers, MoE layers, has the embedding, has the head).

    Chunk c of stage s follows chunk c of stage s − 1, in a V (fold) the second chunk that of stage s + 1; a stage's
    layers are spread evenly over its chunks, an odd one of a V to the first. Under mirror rank r holds stages r and
    p − 1 − r. Prediction modules are layers like the model's last one, on the stage with the head.
    """
    before = moe_layers_before(model)
    pp, v = len(stage_layers), num_model_chunks
    per_chunk = np.asarray(stage_layers, np.float64) / v
    turns = [per_chunk] * v
    if placement == "fold":
        turns = [np.ceil(per_chunk), np.floor(per_chunk)[::-1]]
    ends = np.cumsum(np.concatenate(turns)).reshape(v, pp)
    marks = np.arange(len(before), dtype=np.float64)
    moe_of = np.interp(ends, marks, before) - np.interp(ends - np.array(turns), marks, before)
    if placement == "fold":
        moe_of[1] = moe_of[1, ::-1]
    layers, moe = np.array(stage_layers, np.float64), moe_of.sum(axis=0)
    if placement == "mirror":
        layers, moe = layers + layers[::-1], moe + moe[::-1]
    firsts, lasts = ranks_of_ends(placement, pp)
    layers[list(lasts)] += model.mtp_num_layers
    moe[list(lasts)] += model.mtp_num_layers * model.is_moe_layer(model.num_layers - 1)
    return [
        (float(s), float(s), 1.0, float(layers[s] - moe[s]), float(moe[s]), float(s in firsts), float(s in lasts))
        for s in range(pp)
    ]


def merged(rows: list[Row]) -> tuple[list[Row], list[int]]:
    """Equal stages joined, with the earliest and the latest index and their number; and the kind of each stage."""
    kinds: dict[tuple[float, ...], Row] = {}
    for row in rows:
        known = kinds.get(row[3:])
        kinds[row[3:]] = row if known is None else (known[0], row[1], known[2] + 1, *row[3:])
    places = {key: place for place, key in enumerate(kinds)}
    return list(kinds.values()), [places[row[3:]] for row in rows]


def stage_kinds(model: ModelSpec, columns: LayoutColumns) -> StageKinds:
    """Stage kinds of n layouts."""
    first_of, pipeline = _pipelines(columns)
    splits = columns.splits
    chunks = columns.num_model_chunks[first_of].tolist()
    cases = zip(columns.split[first_of].tolist(), chunks, columns.schedule[first_of].tolist(), strict=True)
    tables = [
        _kinds_of(model, splits[split], int(number), SCHEDULE_FACTS[SCHEDULES[schedule]].placement)
        for split, number, schedule in cases
    ]
    width = max((len(rows) for rows, _ in tables), default=1)
    most = max((len(which) for _, which in tables), default=1)
    table = np.zeros((len(_FIELDS), width, len(tables)))
    of_stage = np.full((len(tables), most), -1, np.intp)
    for place, (rows, which) in enumerate(tables):
        table[:, : len(rows), place] = np.transpose(rows)
        of_stage[place, : len(which)] = which
    arrays = {name: table[k].take(pipeline, axis=1).T for k, name in enumerate(_FIELDS)}
    return StageKinds(pipeline=pipeline, of_stage=of_stage, **arrays)


@lru_cache(maxsize=4096)
def _kinds_of(
    model: ModelSpec, layers: tuple[int, ...], num_model_chunks: int, placement: Placement
) -> tuple[list[Row], list[int]]:
    """Kinds of one pipeline, and the kind of each stage: every chunk of a search asks for the same few."""
    return merged(stage_rows(model, np.array(layers, np.float64), num_model_chunks, placement))


PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
_PLACED = np.array([PLACEMENTS.index(SCHEDULE_FACTS[name].placement) for name in SCHEDULES], np.intp)
"""Placement of each schedule code."""


def _pipelines(columns: LayoutColumns) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(row of each different pipeline, pipeline of each row): a split with its chunks and their placement."""
    chunks = columns.num_model_chunks.astype(np.intp) * len(PLACEMENTS) + _PLACED[columns.schedule]
    mark = columns.split * (int(chunks.max(initial=0)) + 1) + chunks
    row_of = np.full(int(mark.max(initial=0)) + 1, -1, np.intp)
    row_of[mark] = np.arange(len(mark))
    found = np.flatnonzero(row_of >= 0)
    place = np.zeros(len(row_of), np.intp)
    place[found] = np.arange(len(found))
    return row_of[found], place[mark]
