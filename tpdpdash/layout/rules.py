"""Every validity rule of a layout, as data, asked of one layout or of a hundred thousand rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.batch_rules import BATCH_RULES
from tpdpdash.layout.builtin_rules import BUILTIN_RULES
from tpdpdash.layout.columns import SHARDING, LayoutColumns, equal_runs
from tpdpdash.layout.expert_rules import EXPERT_RULES
from tpdpdash.layout.job_rules import JOB_RULES
from tpdpdash.layout.microbatch_rules import MICROBATCH_RULES
from tpdpdash.layout.pipeline_rules import PIPELINE_RULES
from tpdpdash.layout.rule import Facts, Rule
from tpdpdash.layout.shard_rules import SHARD_RULES
from tpdpdash.layout.split_rules import SPLIT_RULES
from tpdpdash.layout.tensor_rules import TENSOR_RULES
from tpdpdash.layout.world import range_faults

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.cluster.spec import ClusterSpec
    from tpdpdash.faults import Fault
    from tpdpdash.layout.layout import Layout
    from tpdpdash.model.spec import ModelSpec
    from tpdpdash.training import Training

RULES: tuple[Rule, ...] = (
    *JOB_RULES,
    *TENSOR_RULES,
    *SHARD_RULES,
    *EXPERT_RULES,
    *PIPELINE_RULES,
    *SPLIT_RULES,
    *MICROBATCH_RULES,
    *BATCH_RULES,
    *BUILTIN_RULES,
)

_LEGAL = np.int16(len(RULES) + 1)

DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp")
AT_LEAST_ONE = (*DEGREES, "micro_batch_size", "num_model_chunks", "microbatch_group_size_per_vp_stage", "dp_shard_size")
"""Keys of a layout that are whole numbers from 1 on."""


def refusal_codes(
    model: ModelSpec, training: Training, cluster: ClusterSpec | None, columns: LayoutColumns
) -> NDArray[np.int16]:
    """Per row 0 when it is legal, else 1 + the index in RULES of the first rule that it breaks. Degrees are ≥ 1."""
    facts = Facts(model=model, training=training, cluster=cluster)
    asked = [(index, rule) for index, rule in enumerate(RULES) if facts.framework in rule.frameworks]
    of_degrees = [each for each in asked if each[1].of_degrees]
    of_states = [each for each in asked if each[1].of_states]
    others = [each for each in asked if not (each[1].of_degrees or each[1].of_states)]
    first, of_row = columns.runs(SHARDING)
    few = columns.take(first)
    first, of_few = equal_runs([getattr(few, name) for name in DEGREES])
    codes = _first_broken(facts, few.take(first), of_degrees)[of_few]
    codes = np.minimum(codes, _first_broken(facts, few, others))[of_row]
    return np.minimum(codes, _first_broken(facts, columns, of_states)) % _LEGAL


def _first_broken(facts: Facts, columns: LayoutColumns, rules: list[tuple[int, Rule]]) -> NDArray[np.int16]:
    """Per row 1 + the index of the first of some rules that it breaks; _LEGAL where it breaks none."""
    codes = np.full(len(columns), _LEGAL, np.int16)
    for index, rule in rules:
        broken = rule.violated(facts, columns)
        if broken.any():
            codes[broken & (codes == _LEGAL)] = index + 1
    return codes


def check_layout(model: ModelSpec, training: Training, cluster: ClusterSpec | None, layout: Layout) -> list[Fault]:
    """Every fault of one layout, in the order of RULES; empty = legal."""
    faults = range_faults({name: getattr(layout, name) for name in AT_LEAST_ONE})
    if faults:
        return faults
    facts = Facts(model=model, training=training, cluster=cluster)
    columns = LayoutColumns.from_layouts([layout]).plain
    asked = [rule for rule in RULES if facts.framework in rule.frameworks]
    return [rule.fault(facts, layout) for rule in asked if rule.violated(facts, columns)]
