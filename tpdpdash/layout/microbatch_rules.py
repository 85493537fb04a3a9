"""Rules about how many microbatches a schedule needs, and the groups in which chunks run them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.frameworks import TORCH_PIPELINING
from tpdpdash.layout.rule import Explained, Facts, Rule, flags
from tpdpdash.layout.schedules import EVEN, MICROBATCHES_PER_RANK, SCHEDULE_FACTS, is_among
from tpdpdash.layout.world import nearest_of
from tpdpdash.units import nearest_multiples

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.layout.columns import LayoutColumns
    from tpdpdash.layout.layout import Layout

    Flags = NDArray[np.bool_]


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


def _paired_too_few(facts: Facts, c: LayoutColumns) -> Flags:
    m, whole = microbatches(facts, c)
    return flags(whole & (m < MICROBATCHES_PER_RANK[c.schedule] * c.pp))


def _explain_paired_too_few(facts: Facts, layout: Layout) -> Explained:
    m = layout.num_microbatches(facts.training.global_batch_size)
    least = SCHEDULE_FACTS[layout.schedule].microbatches_per_rank * layout.pp
    batch = least * layout.micro_batch_size * layout.dp
    values = {"microbatches": m, "pp": layout.pp, "least": least, "nearest": "1f1b", "nearest_batch": batch}
    return Explained(value=layout.schedule, values=values)


def _odd_mirror(facts: Facts, c: LayoutColumns) -> Flags:
    m, whole = microbatches(facts, c)
    return flags(whole & is_among(c.schedule, EVEN) & ((c.pp % 2 > 0) | (m % 2 > 0)))


def _explain_odd_mirror(facts: Facts, layout: Layout) -> Explained:
    m = layout.num_microbatches(facts.training.global_batch_size)
    return Explained(value=layout.schedule, values={"microbatches": m, "pp": layout.pp, "nearest": "dualpipe-v"})


def uneven_rounds(facts: Facts, c: LayoutColumns, schedule: str) -> Flags:
    """Rows with this schedule whose microbatches do not divide over the max(1, m // pp) rounds in which torch runs
    them."""
    m, whole = microbatches(facts, c)
    return flags(whole & c.is_schedule(schedule) & (m % np.maximum(m // c.pp, 1) > 0))


def _explain_uneven_rounds(facts: Facts, layout: Layout) -> Explained:
    m = layout.num_microbatches(facts.training.global_batch_size)
    rounds, replica = max(m // layout.pp, 1), layout.micro_batch_size * layout.dp
    batches = tuple(n * replica for n in nearest_multiples(m, rounds))
    values = {"microbatches": m, "rounds": rounds, "nearest": "zb-v", "nearest_batch": batches}
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


@lru_cache(maxsize=65536)
def least_group_size(num_microbatches: int, pp: int) -> int:
    """The smallest group of microbatches that Megatron interleaves: pp, or where it refuses that for the microbatches
    left over the next. There are at least pp of them."""
    return next(g for g in range(pp, num_microbatches + 1) if group_fits(num_microbatches, g, pp))


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


MICROBATCH_RULES: tuple[Rule, ...] = (
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
        code="paired_few_microbatches",
        field="layout.schedule",
        violated=_paired_too_few,
        explain=_explain_paired_too_few,
        source="torch's ScheduleDualPipeV: m ≥ 2 pp; DeepSeek's dualpipe.py: num_chunks >= num_ranks * 2",
    ),
    Rule(
        code="mirror_not_even",
        field="layout.schedule",
        violated=_odd_mirror,
        explain=_explain_odd_mirror,
        source="DeepSeek's dualpipe.py: num_ranks % 2 == 0, num_chunks % 2 == 0",
    ),
    Rule(
        code="rounds_not_even",
        field="layout.schedule",
        violated=lambda facts, c: uneven_rounds(facts, c, "zb-1p"),
        explain=_explain_uneven_rounds,
        frameworks=TORCH_PIPELINING,
        source="torch's ScheduleInterleavedZeroBubble: m a multiple of its max(1, m // pp) rounds",
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
