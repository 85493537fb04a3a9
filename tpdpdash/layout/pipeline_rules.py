"""Rules about the pipeline: the schedule, its chunks and groups, and the layers of each stage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.frameworks import TORCH_PIPELINING
from tpdpdash.layout.layout import SCHEDULES
from tpdpdash.layout.rule import Explained, Facts, Rule, flags
from tpdpdash.layout.stages import even_stage_layers, stage_sum_fault
from tpdpdash.layout.world import nearest_of
from tpdpdash.units import divisors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.layout.columns import LayoutColumns
    from tpdpdash.layout.layout import Layout

    Flags = NDArray[np.bool_]

PRICED_SCHEDULES = ("none", "gpipe", "1f1b", "interleaved")
"""Schedules that have action lists and a closed form here."""


# ------------------------------------------------------------------------------------------------ schedule


def _not_priced(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(~np.isin(c.schedule, [SCHEDULES.index(name) for name in PRICED_SCHEDULES]))


def _explain_not_priced(_facts: Facts, layout: Layout) -> Explained:
    nearest = "1f1b" if layout.num_model_chunks == 1 else "interleaved"
    return Explained(value=layout.schedule, values={"choices": PRICED_SCHEDULES, "nearest": nearest})


def _interleaved_alone(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.is_schedule("interleaved") & (c.pp == 1))


def _no_schedule(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.is_schedule("none") & (c.pp > 1))


def _explain_schedule(_facts: Facts, layout: Layout) -> Explained:
    nearest = "none" if layout.pp == 1 else "1f1b" if layout.num_model_chunks == 1 else "interleaved"
    return Explained(value=layout.schedule, values={"pp": layout.pp, "nearest": nearest})


def _chunks_without(_facts: Facts, c: LayoutColumns) -> Flags:
    plain = np.isin(c.schedule, [SCHEDULES.index(name) for name in ("none", "gpipe", "1f1b")])
    return flags((c.num_model_chunks > 1) & plain)


def _interleaved_one_chunk(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.is_schedule("interleaved") & (c.num_model_chunks < 2) & (c.pp > 1))


def _explain_chunks(_facts: Facts, layout: Layout) -> Explained:
    nearest = 2 if layout.schedule == "interleaved" else 1
    values = {"schedule": layout.schedule, "pp": layout.pp, "nearest": nearest}
    return Explained(value=layout.num_model_chunks, values=values)


# ------------------------------------------------------------------------------------------------ microbatches


def microbatches(facts: Facts, c: LayoutColumns) -> tuple[NDArray[np.float64], Flags]:
    """Microbatches of each row, and where they are a whole number (the batch rule refuses the others)."""
    m = c.num_microbatches(facts.training.global_batch_size)
    return m, (m == np.floor(m)) & (m >= 1)


def _too_few(facts: Facts, c: LayoutColumns) -> Flags:
    m, whole = microbatches(facts, c)
    return flags(whole & c.is_schedule("1f1b") & (m < c.pp))


def _explain_too_few(facts: Facts, layout: Layout) -> Explained:
    m = layout.num_microbatches(facts.training.global_batch_size)
    values = {
        "microbatches": m,
        "framework": facts.framework,
        "nearest": nearest_of(list(range(1, m + 1)), layout.pp),
        "nearest_batch": layout.pp * layout.micro_batch_size * layout.dp,
    }
    return Explained(value=layout.pp, values=values)


def _interleaved_too_few(facts: Facts, c: LayoutColumns) -> Flags:
    m, whole = microbatches(facts, c)
    return flags(whole & c.is_schedule("interleaved") & (m < c.pp))


def _explain_interleaved_too_few(facts: Facts, layout: Layout) -> Explained:
    m = layout.num_microbatches(facts.training.global_batch_size)
    batch = layout.pp * layout.micro_batch_size * layout.dp
    values = {"microbatches": m, "pp": layout.pp, "nearest": "1f1b", "nearest_batch": batch}
    return Explained(value=layout.schedule, values=values)


def _group_range(facts: Facts, c: LayoutColumns) -> Flags:
    m, whole = microbatches(facts, c)
    whole = whole & (m >= c.pp)  # fewer microbatches than stages are told by a rule of their own
    group = c.microbatch_group_size_per_vp_stage
    return flags(whole & c.is_schedule("interleaved") & (c.pp > 1) & ((group < c.pp) | (group > m)))


def _explain_group_range(facts: Facts, layout: Layout) -> Explained:
    m = layout.num_microbatches(facts.training.global_batch_size)
    group = layout.microbatch_group_size_per_vp_stage
    nearest = nearest_group_sizes(m, layout.pp, min(max(group, layout.pp), m))
    return Explained(value=group, values={"low": layout.pp, "high": m, "nearest": nearest})


def _group_remainder(facts: Facts, c: LayoutColumns) -> Flags:
    m, whole = microbatches(facts, c)
    group = c.microbatch_group_size_per_vp_stage
    left = m % group
    in_range = (group >= c.pp) & (group <= m)
    return flags(whole & in_range & c.is_schedule("interleaved") & (c.pp > 1) & (left > 0) & (left < c.pp))


def nearest_group_sizes(num_microbatches: int, pp: int, group: int) -> tuple[int, ...]:
    """The group sizes on both sides of `group` (itself, if legal) that `group_fits` allows."""
    m = num_microbatches
    below = (g for g in range(group, pp - 1, -1) if group_fits(m, g, pp))
    above = (g for g in range(group, m + 1) if group_fits(m, g, pp))
    found = [next(below, None), next(above, None)]
    return tuple(dict.fromkeys(g for g in found if g is not None))


def group_fits(num_microbatches: int, group: int, pp: int) -> bool:
    """Whether Megatron interleaves with this group size: from pp to m, with a remainder of m of 0 or at least pp."""
    left = num_microbatches % group if pp <= group <= num_microbatches else 1
    return left == 0 or left >= pp


def _explain_group_remainder(facts: Facts, layout: Layout) -> Explained:
    m = layout.num_microbatches(facts.training.global_batch_size)
    group = layout.microbatch_group_size_per_vp_stage
    replica = layout.micro_batch_size * layout.dp
    batches = tuple(n * replica for n in nearest_of(_legal_counts(m, group, layout.pp), m))
    values = {
        "microbatches": m,
        "remainder": m % group,
        "pp": layout.pp,
        "nearest": nearest_group_sizes(m, layout.pp, group),
        "nearest_batch": batches,
    }
    return Explained(value=group, values=values)


def _legal_counts(m: int, group: int, pp: int) -> list[int]:
    near = range(max(1, m - group), m + group + 1)
    return [n for n in near if group_fits(n, group, pp)]


# ------------------------------------------------------------------------------------------------ layers of stages


def _too_many_stages(facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.pp > facts.model.num_layers)


def _explain_too_many_stages(facts: Facts, layout: Layout) -> Explained:
    layers = facts.model.num_layers
    return Explained(value=layout.pp, values={"num_layers": layers, "nearest": layers})


def _entries(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.stage_mask.sum(axis=1) != c.pp)


def _sum(facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.stage_layers.sum(axis=1) != facts.model.num_layers)


def _empty_stage(facts: Facts, c: LayoutColumns) -> Flags:
    empty = ((c.stage_layers < 1) & c.stage_mask).any(axis=1)
    return flags(empty & (c.pp <= facts.model.num_layers))


def _explain_stages(facts: Facts, layout: Layout) -> Explained:
    split = layout.layers_per_stage
    fault = stage_sum_fault(split, facts.model.num_layers)
    stage = next((s for s, layers in enumerate(split) if layers < 1), 0)
    nearest = even_stage_layers(facts.model.num_layers, layout.pp)
    values = {**fault.values, "entries": len(split), "pp": layout.pp, "stage": stage, "nearest": nearest}
    return Explained(value=split, values=values)


def _units(c: LayoutColumns) -> NDArray[np.float64]:
    """Layers of each stage as chunks divide them: the embedding and the loss count where the split says so."""
    units = c.stage_layers.copy()
    units[:, 0] += c.account_for_embedding
    rows = np.arange(len(c))
    units[rows, np.maximum(c.stage_mask.sum(axis=1) - 1, 0)] += c.account_for_loss
    return units


def _chunks(_facts: Facts, c: LayoutColumns) -> Flags:
    uneven = (_units(c) % c.num_model_chunks[:, None] != 0) & c.stage_mask
    return flags(uneven.any(axis=1) & c.is_schedule("interleaved") & (c.pp > 1))


def _explain_uneven_chunks(_facts: Facts, layout: Layout) -> Explained:
    units = list(layout.layers_per_stage)
    units[0] += layout.account_for_embedding
    units[-1] += layout.account_for_loss
    stage = next(s for s, layers in enumerate(units) if layers % layout.num_model_chunks)
    legal = divisors(math.gcd(*units))
    values = {"layers": units[stage], "stage": stage, "nearest": nearest_of(legal, layout.num_model_chunks)}
    return Explained(value=layout.num_model_chunks, values=values)


PIPELINE_RULES: tuple[Rule, ...] = (
    Rule(code="schedule_not_priced", field="layout.schedule", violated=_not_priced, explain=_explain_not_priced),
    Rule(
        code="interleaved_without_pipeline",
        field="layout.schedule",
        violated=_interleaved_alone,
        explain=_explain_schedule,
        source="Megatron-LM arguments.py: an interleaved schedule needs pipeline parallelism",
    ),
    Rule(code="pipeline_without_schedule", field="layout.schedule", violated=_no_schedule, explain=_explain_schedule),
    Rule(
        code="chunks_without_interleaving",
        field="layout.num_model_chunks",
        violated=_chunks_without,
        explain=_explain_chunks,
    ),
    Rule(
        code="interleaved_needs_chunks",
        field="layout.num_model_chunks",
        violated=_interleaved_one_chunk,
        explain=_explain_chunks,
    ),
    Rule(
        code="more_stages_than_layers",
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
    Rule(
        code="interleaved_few_microbatches",
        field="layout.schedule",
        violated=_interleaved_too_few,
        explain=_explain_interleaved_too_few,
        source="Megatron-LM schedules.py: microbatch_group_size_per_vp_stage in [pp, m]",
    ),
    Rule(
        code="group_size_out_of_range",
        field="layout.microbatch_group_size_per_vp_stage",
        violated=_group_range,
        explain=_explain_group_range,
        source="Megatron-LM schedules.py: microbatch_group_size_per_vp_stage in [pp, m]",
    ),
    Rule(
        code="group_remainder",
        field="layout.microbatch_group_size_per_vp_stage",
        violated=_group_remainder,
        explain=_explain_group_remainder,
        source="Megatron-LM schedules.py: the remainder of m over the group is 0 or at least pp",
    ),
    Rule(
        code="fewer_microbatches_than_stages",
        field="layout.pp",
        violated=_too_few,
        explain=_explain_too_few,
        frameworks=TORCH_PIPELINING,
        source="torch.distributed.pipelining Schedule1F1B; torchtitan issue 775",
    ),
)
