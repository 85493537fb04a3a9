"""The one call: layouts in, memory and time out. Many layouts as arrays; a single layout is an array of one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.activations import SELECTIVE
from tpdpdash.cost.arrays import Flags, Floats, rows_of
from tpdpdash.cost.case import case_of
from tpdpdash.cost.error_bar import error_bar, error_fracs
from tpdpdash.cost.figures import Budget, StepSeconds, Throughput
from tpdpdash.cost.frameworks import FrameworkHabits, framework_habits
from tpdpdash.cost.memory import StageMemory, stage_memory
from tpdpdash.cost.result import Estimate, StageEstimate
from tpdpdash.cost.stages import StageKinds, stage_kinds
from tpdpdash.cost.step import StageSeconds, StepCost, step_cost
from tpdpdash.cost.throughput import budget, throughput
from tpdpdash.elementwise import choose
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.prediction import trained_model
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Index = NDArray[np.intp] | Flags


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimates:
    """Estimates of n layouts. Arrays are (n,) or (n, stages)."""

    model: ModelSpec
    """What is trained, with the prediction modules that are."""
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
    time: StepSeconds[Floats]
    """The step by part."""
    stage_time: StageSeconds
    """One microbatch on each stage."""
    throughput: Throughput[Floats]
    """Tokens a second, MFU, HFU."""
    budget: Budget[Floats]
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

    @property
    def error_frac(self) -> Floats:
        """Half-width of each error bar of step_s (n,), as a fraction; NaN = not known."""
        return error_fracs("time", self.model, self.cluster, self.training, self.columns)

    @property
    def memory_error_frac(self) -> Floats:
        """Half-width of each error bar of peak_bytes (n,), as a fraction; NaN = not known."""
        return error_fracs("memory", self.model, self.cluster, self.training, self.columns)

    def take(self, index: Index) -> Estimates:
        """The rows of an index or a mask."""
        parts = {name: rows_of(getattr(self, name), index) for name in _ARRAY_PARTS}
        return replace(self, columns=self.columns.take(index), **parts)

    def row(self, i: int) -> Estimate:
        """One layout with all its stages."""
        return estimate_layout(self.model, self.cluster, self.training, self.columns.take(np.array([i])))


_ARRAY_PARTS = ("kinds", "memory", "time", "stage_time", "throughput", "budget")


def peak_bytes(model: ModelSpec, cluster: ClusterSpec, training: Training, columns: LayoutColumns) -> Floats:
    """Memory of the fullest stage alone (n,): what decides whether a layout fits, at half the price of an estimate."""
    model = trained_model(model, training)
    kinds = stage_kinds(model, columns)
    habits = framework_habits(training.framework)
    return stage_memory(model, cluster, training, habits, columns, kinds).peak_bytes


def step_seconds(model: ModelSpec, cluster: ClusterSpec, training: Training, columns: LayoutColumns) -> Floats:
    """Seconds of one step alone (n,): what decides between layouts that fit."""
    model = trained_model(model, training)
    habits = framework_habits(training.framework)
    return step_cost(case_of(model, cluster, training, habits, columns), stage_kinds(model, columns)).parts.step_s


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
    found = _priced(model, cluster, training, columns, habits or framework_habits(training.framework), every_stage)
    if len(columns) != 1:
        return found
    rows = {name: _with_axis(getattr(found, name)) for name in ("time", "throughput", "budget")}
    return replace(found, **rows)


def _priced(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: Training,
    columns: LayoutColumns,
    habits: FrameworkHabits,
    every_stage: bool = True,
) -> Estimates:
    """`estimate`; of a single layout all (n,) are plain numbers or arrays of one."""
    model = trained_model(model, training)
    kinds, rows = stage_kinds(model, columns), columns.plain
    cost = step_cost(case_of(model, cluster, training, habits, rows), kinds)
    stage_time = cost.stages
    if every_stage:
        names = [field.name for field in fields(stage_time)]
        values = kinds.spread(*(getattr(stage_time, name) for name in names))
        stage_time = StageSeconds(**dict(zip(names, values, strict=True)))
        kinds = kinds.every_stage()
    memory = stage_memory(model, cluster, training, habits, rows, kinds)
    speed = throughput(
        model, cluster, training, rows, cost.parts.step_s, *_recomputed(cost, rows, habits.selective_kind)
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
        budget=budget(cluster, training, rows, cost.parts.step_s),
    )


def _recomputed(cost: StepCost, columns: LayoutColumns, selective_kind: str) -> tuple[Floats, Flags]:
    """(share of the layers' forward pass that is computed again, rows where only core attention is), each (n,).

    Half of the forward pass where a framework selects operators or every second layer.
    """
    selective = columns.recompute == SELECTIVE
    only_attention = selective & (selective_kind == "core_attention")
    share = choose(selective & ~only_attention, 0.5, 1.0)
    return cost.gemm_recompute_frac * share, only_attention


def _with_axis(part: Any) -> Any:
    """A structure of single figures, as arrays of one."""
    return type(part)(**{field.name: np.reshape(getattr(part, field.name), 1) for field in fields(part)})


def estimate_layout(model: ModelSpec, cluster: ClusterSpec, training: Training, columns: LayoutColumns) -> Estimate:
    """The estimate of the only row of `columns`."""
    return _scalar(_priced(model, cluster, training, columns, framework_habits(training.framework)))


def estimate_job(job: Job) -> Estimate:
    """The estimate of the layout that a job describes. Raises InvalidInputError with every fault of the layout."""
    layout = job.layout()
    return estimate_layout(job.model, job.cluster_of(layout), job.training, LayoutColumns.from_layouts([layout]))


def _scalar(one: Estimates) -> Estimate:
    """The first row as plain numbers."""
    layout = one.columns.layout(0)
    memory, times = one.memory, one.stage_time
    by_name = {field.name: getattr(part, field.name)[0].tolist() for part in (times, memory) for field in fields(part)}
    stages = tuple(
        StageEstimate(stage=s, layers=layers, **{name: values[s] for name, values in by_name.items()})
        for s, layers in enumerate(layout.layers_per_stage)
    )
    return Estimate(
        layout=layout,
        capacity_bytes=one.capacity_bytes,
        peak_bytes=one.peak_bytes.item(),
        stages=stages,
        time=StepSeconds(**_first(one.time)),
        throughput=Throughput(**_first(one.throughput)),
        budget=Budget(**_first(one.budget)),
        time_error=error_bar("time", one.model, one.cluster, one.training, one.columns),
        memory_error=error_bar("memory", one.model, one.cluster, one.training, one.columns),
        num_microbatches=int(layout.num_microbatches(one.training.global_batch_size)),
    )


def _first(part: Any) -> dict[str, float]:
    """The only row of a structure of arrays, as plain numbers by field."""
    return {field.name: getattr(part, field.name).item() for field in fields(part)}
