"""Rules about the layers of each pipeline stage, and how chunks divide them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.prediction import loss_units
from tpdpdash.layout.rule import Explained, Facts, Rule, flags
from tpdpdash.layout.stages import even_stage_layers, stage_sum_fault, stage_units
from tpdpdash.layout.world import nearest_of
from tpdpdash.units import divisors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.layout.columns import LayoutColumns
    from tpdpdash.layout.layout import Layout

    Flags = NDArray[np.bool_]


def _too_many_stages(facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.pp > facts.model.num_layers)


def _explain_too_many_stages(facts: Facts, layout: Layout) -> Explained:
    layers = facts.model.num_layers
    return Explained(value=layout.pp, values={"num_layers": layers, "nearest": layers})


def _entries(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.split_stages[c.split] != c.pp)


def _sum(facts: Facts, c: LayoutColumns) -> Flags:
    layers = c.split_layers.sum(axis=1)[c.split]
    return flags(layers != facts.model.num_layers)


def _empty_stage(facts: Facts, c: LayoutColumns) -> Flags:
    exists = np.arange(c.split_layers.shape[1]) < c.split_stages[:, None]
    empty = flags(((c.split_layers < 1) & exists).any(axis=1))
    return flags(empty[c.split] & (c.pp <= facts.model.num_layers))


def _explain_stages(facts: Facts, layout: Layout) -> Explained:
    split = layout.layers_per_stage
    fault = stage_sum_fault(split, facts.model.num_layers)
    stage = next((s for s, layers in enumerate(split) if layers < 1), 0)
    nearest = even_stage_layers(facts.model.num_layers, layout.pp)
    values = {**fault.values, "entries": len(split), "pp": layout.pp, "stage": stage, "nearest": nearest}
    return Explained(value=split, values=values)


def _common_units(c: LayoutColumns, modules: int) -> NDArray[np.float64]:
    """Greatest common divisor of the stages' layers as chunks divide them (n,): the embedding, and the loss with
    prediction modules, count where the split says so."""
    splits = np.arange(len(c.split_layers))
    units = np.repeat(c.split_layers.astype(np.int64)[None], 4, axis=0)
    units[2:, :, 0] += 1
    units[1::2, splits, np.maximum(c.split_stages - 1, 0)] += loss_units(True, modules)
    common = np.gcd.reduce(units, axis=2).astype(np.float64)
    return np.asarray(common[2 * c.account_for_embedding + c.account_for_loss, c.split])


def _chunks(facts: Facts, c: LayoutColumns) -> Flags:
    asked = flags(c.is_schedule("interleaved") & (c.pp > 1))
    if not asked.any():
        return asked
    undivided = _common_units(c, facts.mtp_layers) % c.num_model_chunks != 0
    loss = c.account_for_loss * loss_units(True, facts.mtp_layers)
    last = c.split_layers[c.split, np.maximum(c.split_stages[c.split] - 1, 0)] + loss
    return flags((undivided | (last < loss * c.num_model_chunks)) & asked)


def _explain_uneven_chunks(facts: Facts, layout: Layout) -> Explained:
    loss = loss_units(layout.account_for_loss, facts.mtp_layers)
    units = stage_units(layout.layers_per_stage, layout.account_for_embedding, loss)
    stage = next((s for s, layers in enumerate(units) if layers % layout.num_model_chunks), len(units) - 1)
    legal = [n for n in divisors(math.gcd(*units)) if loss * n <= units[-1]]
    values = {"layers": units[stage], "stage": stage, "nearest": nearest_of(legal, layout.num_model_chunks)}
    return Explained(value=layout.num_model_chunks, values=values)


SPLIT_RULES: tuple[Rule, ...] = (
    Rule(
        code="more_stages_than_layers",
        of_degrees=True,
        field="layout.pp",
        violated=_too_many_stages,
        explain=_explain_too_many_stages,
    ),
    Rule(code="stage_entries_not_pp", field="layout.layers_per_stage", violated=_entries, explain=_explain_stages),
    Rule(code="stage_layers_do_not_sum", field="layout.layers_per_stage", violated=_sum, explain=_explain_stages),
    Rule(code="stage_without_layers", field="layout.layers_per_stage", violated=_empty_stage, explain=_explain_stages),
    Rule(
        code="chunks_not_divisible",
        field="layout.num_model_chunks",
        violated=_chunks,
        explain=_explain_uneven_chunks,
        source="Megatron-LM get_num_layers_to_build: layers of a pipeline rank divisible by its chunks",
    ),
)
