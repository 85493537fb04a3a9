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
from tpdpdash.compare.peaks import ReadMemory, library_bytes, peak_as_read, read_memory, steady_as_read
from tpdpdash.cost.estimate import estimate
from tpdpdash.cost.figures import TIME_PARTS
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.memory import BetweenSteps, StageMemory, between_steps, stage_memory
from tpdpdash.cost.stages import stage_kinds
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.units import GIB, MIB

COHERENT_BYTES_PER_S = 1e11
"""Above this a host's memory is as near as another device's: NVLink-C2C, not PCIe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCase:
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
    read: ReadMemory
    """Predicted memory on the rank that was read."""
    time_parts: Mapping[str, float] = field(default_factory=dict)
    """Predicted step by part; empty on unknown hardware."""

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
        scope = self.case.peak_scope
        return {
            name: steady_as_read(self.read, name, scope) / measured - 1
            for name, measured in self.case.measured_state_bytes
        }

    @property
    def activation_error(self) -> float | None:
        """predicted / measured − 1 of what the peak holds beyond the states."""
        states = steady_as_read(self.read, "weights_optimizer", self.case.peak_scope)
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


def predict(cases: Iterable[Case]) -> list[PredictedCase]:
    """Predictions in the order of the cases.

    A run that took place fitted: where a row does not say how large a microbatch is or what is recomputed, and what was
    inferred would not fit, a microbatch of one sequence, and then the least recompute that fits, is taken; where
    nothing of what the row says fits, weights are taken as sharded, but not those of a pipeline, which would gather
    them for every microbatch. All are listed as inferred.
    """
    found = {prediction.case.row: prediction for prediction in _predict(cases)}
    tried = [_remedies(prediction) for prediction in found.values() if prediction.fits is False]
    for step in range(max(map(len, tried), default=0)):
        left = [remedies[step] for remedies in tried if step < len(remedies) and not found[remedies[step].row].fits]
        found |= {prediction.case.row: prediction for prediction in _predict(left) if prediction.fits}
    return [found[row] for row in sorted(found)]


def _remedies(prediction: PredictedCase) -> list[Case]:
    """The case with what its row does not say changed, from what costs least time to what costs most."""
    case = prediction.case
    if not case.is_measured:
        return []
    kinds = [case]
    if "micro_batch" in case.inferred and case.layout.micro_batch_size > 1:
        kinds.append(replace(case, layout=replace(case.layout, micro_batch_size=1)))
    if "recompute" in case.inferred:
        kinds += _recomputing(kinds[-1])
    if case.layout.dp == 1 or case.layout.pp > 1 or case.layout.zero_stage == 3:
        return kinds[1:]
    stated = [name for name in ("zero_stage_or_fsdp",) if name not in case.inferred]
    return kinds[1:] + [
        replace(each, layout=replace(each.layout, zero_stage=3), inferred=(*each.inferred, *stated)) for each in kinds
    ]


def _recomputing(case: Case) -> list[Case]:
    """What runs do without saying so: recompute norms and activation functions of mixtures of experts, or attention;
    keep activations in the memory of a host that a chip-to-chip link reaches; recompute everything. NVIDIA's recipes
    for mixtures, and for Llama 3 70B on GB200 and GB300, are of the first two kinds."""
    layout, model, cluster = case.layout, case.model, case.cluster
    selective = replace(case, layout=replace(layout, recompute="selective"))
    if model.is_moe and case.training.framework == "megatron-core":
        modules = ("layernorm", "moe_act", *(("mla_up_proj",) if model.is_mla else ()))
        selective = replace(selective, training=replace(case.training, recompute_modules=modules))
    found = [selective]
    if cluster and cluster.device.host_bytes_per_s >= COHERENT_BYTES_PER_S and layout.pp == 1:
        found.append(
            replace(
                case,
                layout=replace(layout, offload_activations=True),
                inferred=(*case.inferred, "offload_activations"),
            )
        )
    return [*found, replace(case, layout=replace(layout, recompute="full"))]


def _predict(cases: Iterable[Case]) -> list[PredictedCase]:
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


def _predict_alike(cases: Sequence[Case]) -> list[PredictedCase]:
    """Cases with one model, training and cluster."""
    columns = LayoutColumns.from_layouts([case.layout for case in cases])
    first = cases[0]
    cluster = first.cluster or _unknown_cluster()
    habits = framework_habits(first.training.framework)
    kinds = stage_kinds(first.model, columns).every_stage()
    kept = between_steps(first.model, cluster, first.training, habits, columns, kinds)
    if first.cluster is None:
        memory = stage_memory(first.model, cluster, first.training, habits, columns, kinds)
        return [_prediction(case, cluster, memory, kept, i) for i, case in enumerate(cases)]
    found = estimate(first.model, first.cluster, first.training, columns)
    return [
        _prediction(
            case,
            cluster,
            found.memory,
            kept,
            i,
            step_s=float(found.step_s[i]),
            fits=bool(found.fits[i]),
            time_parts={name: float(getattr(found.time, name)[i]) for name in TIME_PARTS},
        )
        for i, case in enumerate(cases)
    ]


def _prediction(
    case: Case,
    cluster: ClusterSpec,
    memory: StageMemory,
    kept: BetweenSteps,
    row: int,
    *,
    step_s: float | None = None,
    fits: bool | None = None,
    time_parts: Mapping[str, float] | None = None,
) -> PredictedCase:
    more = library_bytes(case, cluster.device, framework_habits(case.training.framework))
    read = read_memory(memory, kept, row, case, cluster.device, more)
    return PredictedCase(
        case=case,
        step_s=step_s if step_s is not None and math.isfinite(step_s) else None,
        peak_bytes=peak_as_read(read, case.peak_scope),
        fullest_bytes=float(memory.total_bytes[row].max()),
        fits=fits,
        read=read,
        time_parts=time_parts or {},
    )


@cache
def _unknown_cluster() -> ClusterSpec:
    """A cluster of which nothing is known but what every device has: every rate is NaN, so that no time comes of it."""
    nan = float("nan")
    source = FigureSource(kind="assumed", source="unknown hardware")
    sources = dict.fromkeys(("bytes_per_s", "latency_s", "efficiency"), source)
    link = LinkSpec(name="unknown", bytes_per_s=nan, latency_s=nan, efficiency=nan, sources=sources)
    usual = software_constants("generic")[0]
    device = DeviceSpec(
        name="unknown",
        memory_bytes=nan,
        usable_bytes=nan,
        memory_bytes_per_s=nan,
        peak_flops_per_s={},
        power_w=nan,
        gemm_efficiency=nan,
        gemm_half_k=nan,
        gemm_half_area=nan,
        attention_efficiency=nan,
        portable_attention_efficiency=nan,
        memory_efficiency=nan,
        launch_s=nan,
        overhead_bytes=usual["overhead_gib"] * GIB,
        communicator_bytes=usual["communicator_gib"] * GIB,
        host_bytes_per_s=nan,
        cublas_workspace_bytes=usual["cublas_workspace_mib"] * MIB,
        te_workspace_bytes=usual["te_workspace_mib"] * MIB,
    )
    return ClusterSpec(device=device, nodes=1, devices_per_node=1, scale_up=link, scale_up_domain_size=1, network=link)
