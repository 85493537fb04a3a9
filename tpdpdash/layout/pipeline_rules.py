"""Rules about the schedule of a pipeline: who has it, and what chunks it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.frameworks import DEEPSPEED_ENGINES, TORCH_PIPELINING
from tpdpdash.layout.layout import SCHEDULES
from tpdpdash.layout.rule import Explained, Facts, Rule, flags
from tpdpdash.layout.schedules import (
    NEAREST_IN_TORCH,
    ONE_CHUNK,
    SCHEDULE_FACTS,
    SPLIT_BACKWARD,
    TWO_CHUNKS,
    is_among,
    schedules_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.layout.columns import LayoutColumns
    from tpdpdash.layout.layout import Layout

    Flags = NDArray[np.bool_]

NOT_IN_TORCH = tuple(SCHEDULES.index(name) for name in NEAREST_IN_TORCH)
"""Schedules that torch.distributed.pipelining does not have."""
NOT_IN_DEEPSPEED = tuple(SCHEDULES.index(name) for name in SCHEDULES if name not in ("none", "1f1b"))
"""Schedules that DeepSpeed's engine does not have: TrainSchedule is 1F1B."""


def _not_in_framework(facts: Facts, c: LayoutColumns) -> Flags:
    return is_among(c.schedule, NOT_IN_DEEPSPEED if facts.framework in DEEPSPEED_ENGINES else NOT_IN_TORCH)


def _explain_not_in_framework(facts: Facts, layout: Layout) -> Explained:
    offered = schedules_of(facts.framework)
    nearest = NEAREST_IN_TORCH.get(layout.schedule, "1f1b")
    values = {"framework": facts.framework, "choices": offered, "nearest": nearest if nearest in offered else "1f1b"}
    return Explained(value=layout.schedule, values=values)


def _split_alone(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(is_among(c.schedule, SPLIT_BACKWARD) & (c.pp == 1))


def _interleaved_alone(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.is_schedule("interleaved") & (c.pp == 1))


def _no_schedule(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.is_schedule("none") & (c.pp > 1))


def _explain_schedule(_facts: Facts, layout: Layout) -> Explained:
    nearest = "none" if layout.pp == 1 else "1f1b" if layout.num_model_chunks == 1 else "interleaved"
    return Explained(value=layout.schedule, values={"pp": layout.pp, "nearest": nearest})


def _chunks_without(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags((c.num_model_chunks > 1) & is_among(c.schedule, ONE_CHUNK))


def _not_two_chunks(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags((c.num_model_chunks != 2) & is_among(c.schedule, TWO_CHUNKS))


def _interleaved_one_chunk(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.is_schedule("interleaved") & (c.num_model_chunks < 2) & (c.pp > 1))


def _explain_chunks(_facts: Facts, layout: Layout) -> Explained:
    nearest = SCHEDULE_FACTS[layout.schedule].num_model_chunks or 2
    values = {"schedule": layout.schedule, "pp": layout.pp, "nearest": nearest}
    return Explained(value=layout.num_model_chunks, values=values)


PIPELINE_RULES: tuple[Rule, ...] = (
    Rule(
        code="schedule_not_in_framework",
        field="layout.schedule",
        violated=_not_in_framework,
        explain=_explain_not_in_framework,
        frameworks=TORCH_PIPELINING | DEEPSPEED_ENGINES,
        source="torch.distributed.pipelining 2.13, get_schedule_class; DeepSpeed pipe/schedule.py: 1F1B only",
    ),
    Rule(code="split_without_pipeline", field="layout.schedule", violated=_split_alone, explain=_explain_schedule),
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
    Rule(code="v_needs_two_chunks", field="layout.num_model_chunks", violated=_not_two_chunks, explain=_explain_chunks),
    Rule(
        code="interleaved_needs_chunks",
        field="layout.num_model_chunks",
        violated=_interleaved_one_chunk,
        explain=_explain_chunks,
    ),
)
