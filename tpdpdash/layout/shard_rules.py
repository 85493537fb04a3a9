"""Rules about how states are sharded over DP, and the degrees that a framework has not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.faults import range_values
from tpdpdash.layout.frameworks import MEGATRON_OF_2022, PIPELINE_WITHOUT_ZERO_2
from tpdpdash.layout.rule import Explained, Facts, Rule, flags
from tpdpdash.layout.world import nearest_of
from tpdpdash.units import divisors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.layout.columns import LayoutColumns
    from tpdpdash.layout.layout import Layout

    Flags = NDArray[np.bool_]

ZERO_STAGES = (0, 1, 2, 3)
"""What a ZeRO stage can be."""


def _shard_size(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.dp % c.dp_shard_size != 0)


def _explain_shard_size(_facts: Facts, layout: Layout) -> Explained:
    values = {"dp": layout.dp, "nearest": nearest_of(divisors(layout.dp), layout.dp_shard_size)}
    return Explained(value=layout.dp_shard_size, values=values)


def _zero_range(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags((c.zero_stage < ZERO_STAGES[0]) | (c.zero_stage > ZERO_STAGES[-1]))


def _zero_with_pipeline(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags((c.zero_stage >= 2) & (c.pp > 1))


def _zero_of_2022(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.zero_stage >= 2)


def _only_one(name: str) -> Rule:
    """Megatron-LM of 2022 had neither context nor expert parallelism."""

    def violated(_facts: Facts, c: LayoutColumns) -> Flags:
        return np.asarray(getattr(c, name) > 1, np.bool_)

    def explain(facts: Facts, layout: Layout) -> Explained:
        return Explained(value=getattr(layout, name), values={"framework": facts.framework, "nearest": 1})

    return Rule(
        code="degree_not_in_framework",
        of_degrees=True,
        field=f"layout.{name}",
        violated=violated,
        explain=explain,
        frameworks=MEGATRON_OF_2022,
        source="Korthikanti 2022, section 3",
    )


def _explain_zero(facts: Facts, layout: Layout) -> Explained:
    return Explained(value=layout.zero_stage, values={"framework": facts.framework, "pp": layout.pp, "nearest": 1})


def _explain_zero_range(_facts: Facts, layout: Layout) -> Explained:
    return Explained(value=layout.zero_stage, values=range_values(layout.zero_stage, ZERO_STAGES[0], ZERO_STAGES[-1]))


SHARD_RULES: tuple[Rule, ...] = (
    _only_one("cp"),
    _only_one("ep"),
    Rule(
        code="shard_size_not_divisor", field="layout.dp_shard_size", violated=_shard_size, explain=_explain_shard_size
    ),
    Rule(code="out_of_range", field="layout.zero_stage", violated=_zero_range, explain=_explain_zero_range),
    Rule(
        code="zero_with_pipeline",
        field="layout.zero_stage",
        violated=_zero_with_pipeline,
        explain=_explain_zero,
        frameworks=PIPELINE_WITHOUT_ZERO_2,
        source="DeepSpeed pipe/engine.py: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
    ),
    Rule(
        code="zero_not_in_framework",
        field="layout.zero_stage",
        violated=_zero_of_2022,
        explain=_explain_zero,
        frameworks=MEGATRON_OF_2022,
        source="Megatron-LM 2022: the distributed optimizer shards states only",
    ),
)
