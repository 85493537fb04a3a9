"""Every validity rule of a layout, as data, asked of one layout or of a hundred thousand rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.batch_rules import BATCH_RULES
from tpdpdash.layout.builtin_rules import BUILTIN_RULES
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.expert_rules import EXPERT_RULES
from tpdpdash.layout.pipeline_rules import PIPELINE_RULES
from tpdpdash.layout.rule import Facts, Rule
from tpdpdash.layout.shard_rules import SHARD_RULES
from tpdpdash.layout.world import range_faults

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.cluster.spec import ClusterSpec
    from tpdpdash.faults import Fault
    from tpdpdash.layout.layout import Layout
    from tpdpdash.model.spec import ModelSpec
    from tpdpdash.training import Training

RULES: tuple[Rule, ...] = (*SHARD_RULES, *EXPERT_RULES, *PIPELINE_RULES, *BATCH_RULES, *BUILTIN_RULES)

_AT_LEAST_ONE = (
    *("tp", "cp", "pp", "dp", "ep", "etp", "micro_batch_size", "num_model_chunks"),
    *("microbatch_group_size_per_vp_stage", "dp_shard_size"),
)


def refusal_codes(
    model: ModelSpec, training: Training, cluster: ClusterSpec | None, columns: LayoutColumns
) -> NDArray[np.int16]:
    """Per row 0 when it is legal, else 1 + the index in RULES of the first rule that it breaks. Degrees are ≥ 1."""
    facts = Facts(model=model, training=training, cluster=cluster)
    codes = np.zeros(len(columns), np.int16)
    for index, rule in enumerate(RULES):
        if facts.framework in rule.frameworks:
            codes[(codes == 0) & rule.violated(facts, columns)] = index + 1
    return codes


def check_layout(model: ModelSpec, training: Training, cluster: ClusterSpec | None, layout: Layout) -> list[Fault]:
    """Every fault of one layout, in the order of RULES; empty = legal."""
    faults = range_faults({name: getattr(layout, name) for name in _AT_LEAST_ONE})
    if faults:
        return faults
    facts = Facts(model=model, training=training, cluster=cluster)
    columns = LayoutColumns.from_layouts([layout])
    asked = [rule for rule in RULES if facts.framework in rule.frameworks]
    return [rule.fault(facts, layout) for rule in asked if rule.violated(facts, columns)[0]]
