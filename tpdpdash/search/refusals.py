"""Why layouts cannot run: counts by reason, each with an example and the nearest legal values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.result import OUT_OF_MEMORY
from tpdpdash.faults import Fault
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.rule import Facts
from tpdpdash.layout.rules import RULES
from tpdpdash.units import format_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One reason and the layouts that it refused."""

    reason: str
    """Code of the rule, or OUT_OF_MEMORY."""
    count: int
    """Layouts refused by it first."""
    layout: Layout
    """One of them; for memory the one that misses by the fewest bytes."""
    fault: Fault
    """What is wrong with that one, with the nearest legal values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A legal layout that does not fit."""

    layout: Layout
    """The layout."""
    peak_bytes: float
    """Memory of its fullest stage."""


class RefusalCounter:
    """Counts refusals over chunks, keeping one example of each reason."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, tuple[Layout, Fault]] = {}
        self._least_peak = np.inf

    def add_rules(self, job: Job, columns: LayoutColumns, codes: NDArray[np.int16]) -> None:
        """Rows of one chunk that break a rule: codes as refusal_codes gives them."""
        facts = Facts(model=job.model, training=job.training, cluster=job.cluster)
        counts = np.bincount(codes, minlength=len(RULES) + 1)
        for code in np.flatnonzero(counts[1:]) + 1:
            rule = RULES[code - 1]
            self._counts[rule.code] = self._counts.get(rule.code, 0) + int(counts[code])
            if rule.code not in self._examples:
                layout = columns.layout(int(np.argmax(codes == code)))
                self._examples[rule.code] = (layout, rule.fault(facts, layout))

    def add_misses(self, cluster: ClusterSpec, count: int, miss: Miss) -> None:
        """`count` legal rows of one chunk that do not fit; `miss` is the one that needs the least memory."""
        self._counts[OUT_OF_MEMORY] = self._counts.get(OUT_OF_MEMORY, 0) + count
        if miss.peak_bytes < self._least_peak:
            self._least_peak = miss.peak_bytes
            capacity = cluster.device.usable_bytes
            written = {"peak": format_memory(miss.peak_bytes), "capacity": format_memory(capacity)}
            values = {"peak_bytes": miss.peak_bytes, "capacity_bytes": capacity, **written}
            fault = Fault(code=OUT_OF_MEMORY, field="cluster.device", value=cluster.device.name, values=values)
            self._examples[OUT_OF_MEMORY] = (miss.layout, fault)

    def by_reason(self) -> dict[str, Refusal]:
        """Refusals, the commonest first."""
        order = sorted(self._counts, key=lambda reason: (-self._counts[reason], reason))
        return {
            reason: Refusal(
                reason=reason,
                count=self._counts[reason],
                layout=self._examples[reason][0],
                fault=self._examples[reason][1],
            )
            for reason in order
        }
