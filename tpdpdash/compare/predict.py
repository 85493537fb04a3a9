"""Predictions of many cases: those that differ in their layout only are priced in one call."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from tpdpdash.cluster.catalogue import software_constants
from tpdpdash.cluster.spec import ClusterSpec, DeviceSpec, FigureSource, LinkSpec
from tpdpdash.compare.case import Case
from tpdpdash.compare.peaks import peak_as_read, stage_parts, state_as_read, steady_as_read
from tpdpdash.cost.estimate import estimate
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.memory import StageMemory, stage_memory
from tpdpdash.cost.stages import stage_kinds
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.units import GIB

MEMORY_DOUBT = 0.15
"""How far above a device's memory an estimate must lie before it says that a run recomputed something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One case, predicted as it was read."""

    case: Case
    """The run."""
    step_s: float | None
    """Predicted step time; None on unknown hardware."""
    peak_bytes: float
    """Predicted peak, in the scope and on the rank of the measured one."""
    fullest_bytes: float
    """Predicted memory of the fullest stage, everything counted: what decides whether it fits."""
    fits: bool | None
    """Whether the fullest stage fits the device; None on unknown hardware."""
    time_parts: Mapping[str, float] = field(default_factory=dict)
    """Predicted step by part; empty on unknown hardware."""
    memory_parts: Mapping[str, float] = field(default_factory=dict)
    """Predicted memory by part on the rank that was read."""

    @property
    def error(self) -> float | None:
        """predicted / measured − 1 of the step time."""
        return relative_error(self.step_s, self.case.measured_step_s)

    @property
    def memory_error(self) -> float | None:
        """predicted / measured − 1 of the peak."""
        return relative_error(self.peak_bytes, self.case.measured_peak_bytes)

    @property
    def state_errors(self) -> dict[str, float]:
        """predicted / measured − 1 of each printed state figure."""
        parts, scope = dict(self.memory_parts), self.case.peak_scope
        return {
            name: steady_as_read(parts, name, scope) / measured - 1 for name, measured in self.case.measured_state_bytes
        }

    @property
    def activation_error(self) -> float | None:
        """predicted / measured − 1 of what the peak holds beyond the states."""
        states = state_as_read(dict(self.memory_parts), "weights_optimizer")
        return relative_error(self.peak_bytes - states, self.case.measured_activation_bytes)

    def to_json(self) -> dict[str, Any]:
        """One entry of `predictions`."""
        return {
            "row": self.case.row,
            "source_id": self.case.source_id,
            "step_s": self.step_s,
            "measured_step_s": self.case.measured_step_s,
            "error": self.error,
            "peak_bytes": self.peak_bytes,
            "measured_peak_bytes": self.case.measured_peak_bytes,
            "memory_error": self.memory_error,
            "peak_scope": self.case.peak_scope,
            "rank_view": self.case.rank_view,
            "fits": self.fits,
            "state_errors": self.state_errors,
            "activation_error": self.activation_error,
            "inferred": list(self.case.inferred),
        }


def relative_error(predicted: float | None, measured: float | None) -> float | None:
    """Signed fraction; None where either is unknown."""
    return None if predicted is None or measured is None else predicted / measured - 1


def predict(cases: Iterable[Case]) -> list[Prediction]:
    """Predictions in the order of the cases.

    A run that took place fitted: where a row does not say what is recomputed, and keeping everything clearly would not
    fit, the least recompute that fits is taken.
    """
    found = {prediction.case.row: prediction for prediction in _predict(cases)}
    for recompute in ("selective", "full"):
        short = [p.case for p in found.values() if _clearly_too_large(p) and "recompute" in p.case.inferred]
        more = [replace(case, layout=replace(case.layout, recompute=recompute)) for case in short]
        found |= {prediction.case.row: prediction for prediction in _predict(more) if prediction.fits}
    return [found[row] for row in sorted(found)]


def _clearly_too_large(prediction: Prediction) -> bool:
    """Whether the fullest stage exceeds the device by more than an estimate of memory may be wrong."""
    cluster = prediction.case.cluster
    return cluster is not None and prediction.fullest_bytes > (1 + MEMORY_DOUBT) * cluster.device.usable_bytes


def _predict(cases: Iterable[Case]) -> list[Prediction]:
    """Predictions of the cases as they are, in any order."""
    alike: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in cases:
        alike[(case.model, case.training, _place(case.cluster))].append(case)
    return [prediction for group in alike.values() for prediction in _predict_alike(group)]


def _place(cluster: ClusterSpec | None) -> tuple[object, ...]:
    """What tells clusters of one table apart: they are all the catalogue's, but for their size and network."""
    if cluster is None:
        return ()
    return cluster.device.name, cluster.nodes, cluster.devices_per_node, cluster.network.bytes_per_s


def _predict_alike(cases: Sequence[Case]) -> list[Prediction]:
    """Cases with one model, training and cluster."""
    columns = LayoutColumns.from_layouts([case.layout for case in cases])
    first = cases[0]
    if first.cluster is None:
        memory = _memory_alone(first, columns)
        return [_prediction(case, memory, i) for i, case in enumerate(cases)]
    found = estimate(first.model, first.cluster, first.training, columns)
    return [
        _prediction(
            case,
            found.memory,
            i,
            step_s=float(found.step_s[i]),
            fits=bool(found.fits[i]),
            time_parts={name: float(getattr(found.time, name)[i]) for name in _TIME_PARTS},
        )
        for i, case in enumerate(cases)
    ]


_TIME_PARTS = ("compute_s", "recompute_s", "tp_s", "cp_s", "ep_s", "pp_s", "bubble_s", "dp_s", "optimizer_s")


def _prediction(
    case: Case,
    memory: StageMemory,
    row: int,
    *,
    step_s: float | None = None,
    fits: bool | None = None,
    time_parts: Mapping[str, float] | None = None,
) -> Prediction:
    parts = stage_parts(memory, row, case.layout.pp, case.rank_view)
    return Prediction(
        case=case,
        step_s=step_s if step_s is not None and math.isfinite(step_s) else None,
        peak_bytes=peak_as_read(parts, case.peak_scope),
        fullest_bytes=float(memory.total_bytes[row].max()),
        fits=fits,
        time_parts=time_parts or {},
        memory_parts=parts,
    )


def _memory_alone(case: Case, columns: LayoutColumns) -> StageMemory:
    """Memory on hardware that is not in the catalogue: all but a device's overhead depends on model and layout."""
    kinds = stage_kinds(case.model, columns.stage_layers, columns.pp, columns.num_model_chunks).every_stage()
    habits = framework_habits(case.training.framework)
    return stage_memory(case.model, _unknown_cluster(), case.training, habits, columns, kinds)


@cache
def _unknown_cluster() -> ClusterSpec:
    """A cluster of which nothing is known but what every device has: every rate is NaN, so that no time comes of it."""
    nan = float("nan")
    source = FigureSource(kind="assumed", source="unknown hardware")
    sources = dict.fromkeys(("bytes_per_s", "latency_s", "efficiency"), source)
    link = LinkSpec(name="unknown", bytes_per_s=nan, latency_s=nan, efficiency=nan, sources=sources)
    overhead_bytes = software_constants("generic")[0]["overhead_gib"] * GIB
    device = DeviceSpec(
        name="unknown",
        memory_bytes=nan,
        usable_bytes=nan,
        memory_bytes_per_s=nan,
        peak_flops_per_s={},
        power_w=nan,
        gemm_efficiency=nan,
        gemm_half_k=nan,
        attention_efficiency=nan,
        memory_efficiency=nan,
        launch_s=nan,
        overhead_bytes=overhead_bytes,
    )
    return ClusterSpec(device=device, nodes=1, devices_per_node=1, scale_up=link, scale_up_domain_size=1, network=link)
