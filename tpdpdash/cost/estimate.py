"""The one call: layouts in, memory and time out. Many layouts as arrays; a single layout is an array of one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.activations import SELECTIVE
from tpdpdash.cost.arrays import Flags, Floats
from tpdpdash.cost.case import case_of
from tpdpdash.cost.frameworks import FrameworkHabits, framework_habits
from tpdpdash.cost.memory import StageMemory, stage_memory
from tpdpdash.cost.result import Estimate, StageEstimate
from tpdpdash.cost.stages import StageKinds, stage_kinds
from tpdpdash.cost.step import StageSeconds, StepCost, StepSeconds, step_cost
from tpdpdash.cost.throughput import Budget, Throughput, budget, throughput
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Index = NDArray[np.intp] | Flags


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimates:
    """Estimates of n layouts. Arrays are (n,) or (n, stages)."""

    model: ModelSpec
    """What is trained."""
    cluster: ClusterSpec
    """What it is trained on."""
    training: Training
    """What a step is."""
    columns: LayoutColumns
    """The layouts."""
    kinds: StageKinds
    """What the stage axis means: every stage in order, or one entry for equal stages."""
    memory: StageMemory
    """Memory of each stage."""
    time: StepSeconds
    """The step by part."""
    stage_time: StageSeconds
    """One microbatch on each stage."""
    throughput: Throughput
    """Tokens a second, MFU, HFU."""
    budget: Budget
    """Days, device-hours, energy, cost."""

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def step_s(self) -> Floats:
        """Seconds of one step (n,): the sum of the parts."""
        return self.time.step_s

    @property
    def bubble_frac(self) -> Floats:
        """Share of the step that the schedule leaves idle on the critical stage (n,)."""
        return self.time.bubble_s / self.step_s

    @property
    def peak_bytes(self) -> Floats:
        """Memory of the fullest stage (n,)."""
        return self.memory.peak_bytes

    @property
    def capacity_bytes(self) -> float:
        """Memory that a device can hand out."""
        return self.cluster.device.usable_bytes

    @property
    def fits(self) -> Flags:
        """Whether every stage fits (n,)."""
        return self.peak_bytes <= self.capacity_bytes

    def take(self, index: Index) -> Estimates:
        """The rows of an index or a mask."""
        parts = {name: _rows(getattr(self, name), index) for name in _ARRAY_PARTS}
        return replace(self, columns=self.columns.take(index), **parts)

    def row(self, i: int) -> Estimate:
        """One layout with all its stages."""
        one = estimate(self.model, self.cluster, self.training, self.columns.take(np.array([i])))
        return _scalar(one)


_ARRAY_PARTS = ("kinds", "memory", "time", "stage_time", "throughput", "budget")


def _rows(part: Any, index: Index) -> Any:
    """The rows of a structure of arrays."""
    return type(part)(**{field.name: getattr(part, field.name)[index] for field in fields(part)})


def peak_bytes(model: ModelSpec, cluster: ClusterSpec, training: Training, columns: LayoutColumns) -> Floats:
    """Memory of the fullest stage alone (n,): what decides whether a layout fits, at half the price of an estimate."""
    kinds = stage_kinds(model, columns.stage_layers, columns.pp, columns.num_model_chunks)
    habits = framework_habits(training.framework)
    return stage_memory(model, cluster, training, habits, columns, kinds).peak_bytes


def estimate(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: Training,
    columns: LayoutColumns,
    *,
    every_stage: bool = True,
    habits: FrameworkHabits | None = None,
) -> Estimates:
    """Memory and time of n legal layouts.

    habits: the framework's constants where they are not the packaged ones (a fit tries others).
    every_stage: the stage axis has every stage in order; otherwise equal stages share an entry, as the search wants it.
    Time is computed once per distinct stage either way, so that both give the same figures to the last bit.
    """
    habits = habits or framework_habits(training.framework)
    kinds = stage_kinds(model, columns.stage_layers, columns.pp, columns.num_model_chunks)
    cost = step_cost(case_of(model, cluster, training, habits, columns), kinds)
    stage_time = cost.stages
    if every_stage:
        spread = {field.name: kinds.spread(getattr(stage_time, field.name)) for field in fields(stage_time)}
        stage_time = StageSeconds(**spread)
        kinds = kinds.every_stage()
    memory = stage_memory(model, cluster, training, habits, columns, kinds)
    speed = throughput(
        model, cluster, training, columns, cost.parts.step_s, *_recomputed(cost, columns, habits.selective_kind)
    )
    return Estimates(
        model=model,
        cluster=cluster,
        training=training,
        columns=columns,
        kinds=kinds,
        memory=memory,
        time=cost.parts,
        stage_time=stage_time,
        throughput=speed,
        budget=budget(cluster, training, columns, speed.tokens_per_s),
    )


def _recomputed(cost: StepCost, columns: LayoutColumns, selective_kind: str) -> tuple[Floats, Flags]:
    """(share of the layers' forward pass that is computed again, rows where only core attention is), each (n,).

    Half of the forward pass where a framework selects operators or every second layer.
    """
    selective = columns.recompute == SELECTIVE
    only_attention = selective & (selective_kind == "core_attention")
    share = np.where(selective & ~only_attention, 0.5, 1.0)
    return np.asarray(cost.gemm_recompute_frac * share), np.asarray(only_attention)


def estimate_layout(model: ModelSpec, cluster: ClusterSpec, training: Training, columns: LayoutColumns) -> Estimate:
    """The estimate of the only row of `columns`."""
    return _scalar(estimate(model, cluster, training, columns))


def estimate_job(job: Job) -> Estimate:
    """The estimate of the layout that a job describes. Raises InvalidInputError with every fault of the layout."""
    resolved = job.resolved()
    columns = LayoutColumns.from_layouts([resolved.layout()])
    return estimate_layout(resolved.model, resolved.cluster, resolved.training, columns)


def _scalar(one: Estimates) -> Estimate:
    """The first row as plain numbers."""
    layout = one.columns.layout(0)
    memory, times = one.memory, one.stage_time
    stages = tuple(
        StageEstimate(
            stage=s,
            layers=int(one.columns.stage_layers[0, s]),
            **{field.name: float(getattr(times, field.name)[0, s]) for field in fields(times)},
            **{field.name: float(getattr(memory, field.name)[0, s]) for field in fields(memory)},
        )
        for s in range(layout.pp)
    )
    return Estimate(
        layout=layout,
        capacity_bytes=one.capacity_bytes,
        peak_bytes=float(one.peak_bytes[0]),
        stages=stages,
        parts={field.name: float(getattr(one.time, field.name)[0]) for field in fields(one.time)},
        throughput={field.name: float(getattr(one.throughput, field.name)[0]) for field in fields(one.throughput)},
        budget={field.name: float(getattr(one.budget, field.name)[0]) for field in fields(one.budget)},
        num_microbatches=int(layout.num_microbatches(one.training.global_batch_size)),
    )
