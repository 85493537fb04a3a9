"""The runs that constants are fitted to: grouped so that one call prices many, weighed so that sources count alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
from fit_tables import Key, device_keys, framework_keys
from numpy.typing import NDArray

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.compare.case import Case, read_cases
from tpdpdash.compare.predict import predict
from tpdpdash.compare.table import Row, read_table
from tpdpdash.cost.case import case_of
from tpdpdash.cost.frameworks import FrameworkHabits, framework_habits
from tpdpdash.cost.stages import StageKinds, stage_kinds
from tpdpdash.cost.step import step_cost
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.units import TERA

Floats = NDArray[np.float64]
ROWS_PER_PART = 40
"""Runs of one source on one kind of device: the more it measured of a device, the surer, but not without end."""
ROW_WEIGHT = {2: 1.0, 1: 0.5, 0: 0.3}
"""By what a row states: all, all but recompute, less."""
FULL_WEIGHT_ROWS = 4
"""A source of fewer rows weighs in proportion."""
TRUST: Mapping[str, float] = {
    "bigscience-v100": 0.3,
    "bigscience-tr11": 0.1,
    "mt-nlg": 0.15,
    "nanotron-old-bench": 0.3,
    "megatron-golden": 0.2,
}
"""Sources that weigh less: the same runs differ by 40 %; a single step each, under CUDA_LAUNCH_BLOCKING=1; the same
code as vTrain's, a fifth slower, for no stated reason; an old version of a framework, contradicted by newer runs;
deterministic kernels, whose speed stands in figures of their own."""
COMPOSED = frozenset({"vtrain-single"})
"""Sources whose times are composed of few measured layers: thinned to as many runs of each tp and micro-batch."""
INCOMPLETE_TRUST = 0.5
"""Of a source without a complete row, and of one that states TFLOP/s instead of a time."""
COUNTED: Mapping[str, float] = {
    "nanotron-playbook": 1.0,
    "megatron-readme-h100": 1.0,
    "maxtext-a3": 1.0,
    "narayanan-2021": 4 / 3,
    "simumax-a100pcie": 1.0,
}
"""Sources that state TFLOP/s by Megatron's formula (all s² scores, vocabulary included) and no time, with the forward
and backward passes over layers that they count, in threes."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Runs that differ in their layout only."""

    cases: tuple[Case, ...]
    cluster: ClusterSpec
    columns: LayoutColumns
    kinds: StageKinds
    measured_s: Floats
    weights: Floats
    keys: frozenset[Key]
    """The constants that enter their times."""

    @property
    def source(self) -> str:
        """Where the runs are from."""
        return self.cases[0].source

    def residuals(self, values: Mapping[Key, float]) -> Floats:
        """log(predicted / measured) of each run."""
        case = self.cases[0]
        own = {key.name: values[key] for key in self.keys if key in values}
        habits = framework_habits(case.training.framework)
        for_device = {n: v for n, v in own.items() if not hasattr(habits, n)}
        cluster = replace(self.cluster, device=replace(self.cluster.device, **for_device))
        habits = replace(habits, **{n: v for n, v in own.items() if n not in for_device})
        cost = step_cost(case_of(case.model, cluster, case.training, habits, self.columns), self.kinds)
        return np.asarray(np.log(cost.parts.step_s / self.measured_s))


def present(key: Key, habits: FrameworkHabits, cluster: ClusterSpec) -> float:
    """The value in the tables."""
    return float(getattr(cluster.device if key.kind == "device" else habits, key.name))


def read_groups(path: Path) -> list[Group]:
    """All rows with a time on known hardware, as `validate` reads them, every source thinned to ROWS_PER_PART on each
    kind of device."""
    table = read_table(path)
    cases, _ = read_cases(table.rows)
    timed = [_timed(p.case, table.rows[p.case.row], p.step_s) for p in predict(cases)]
    parts = defaultdict(list)
    for case in timed:
        if case is not None and case.cluster is not None:
            parts[(case.source, device_keys(case.cluster.device.name)[0].owner)].append(case)
    groups = []
    for (source, _), rows in sorted(parts.items()):
        kept = rows if len(rows) <= ROWS_PER_PART else _thinned(source, rows)
        weights = [ROW_WEIGHT[2 if case.complete is None else case.complete] for case in kept]
        complete = any(case.complete == 2 for case in kept) and source not in COUNTED
        trust = TRUST.get(source, 1.0) * (1.0 if complete else INCOMPLETE_TRUST)
        scale = trust * min(1.0, len(kept) / FULL_WEIGHT_ROWS) / sum(weights)
        groups += _grouped(kept, [weight * scale for weight in weights])
    return groups


def _thinned(source: str, rows: list[Case]) -> list[Case]:
    """ROWS_PER_PART of a source's runs, drawn once for all; of a composed source in turn from each of its cells."""
    mixed = Random(1).sample(rows, len(rows))
    if source in COMPOSED:
        taken: Counter[tuple[int, int]] = Counter()
        turns = []
        for case in mixed:
            cell = (case.layout.tp, case.layout.micro_batch_size)
            turns.append(taken[cell])
            taken[cell] += 1
        mixed = [mixed[i] for i in sorted(range(len(mixed)), key=turns.__getitem__)]
    return mixed[:ROWS_PER_PART]


def _timed(case: Case, row: Row, step_s: float | None) -> Case | None:
    """The case with a time, stated or from TFLOP/s; None without."""
    if step_s is None or case.cluster is None:
        return None
    if case.measured_step_s is not None:
        return case
    stated = row.get("model_tflops_per_gpu") or row.get("hardware_tflops_per_gpu")
    if case.source not in COUNTED or not stated:
        return None
    return replace(case, measured_step_s=_counted_flops(case, COUNTED[case.source]) / float(stated) / TERA)


def _counted_flops(case: Case, passes: float) -> float:
    """FLOPs of a step on one device by Megatron's formula: 6 a parameter and token, 12 L a d s for the scores."""
    model, training = case.model, case.training
    heads, kv, d = model.num_attention_heads, model.num_kv_heads, model.query_head_dim
    matrices = model.hidden_size * (2 * heads * d + 2 * kv * d)
    matrices += (3 if model.gated_mlp else 2) * model.hidden_size * model.ffn_hidden_size
    layers = model.num_layers * (6 * matrices + 12 * heads * d * training.seq_len)
    each = passes * layers + 6 * model.hidden_size * model.vocab_size
    return each * training.tokens_per_step / case.layout.world_size


def _grouped(cases: list[Case], weights: list[float]) -> Iterable[Group]:
    same: dict[object, list[int]] = defaultdict(list)
    for i, case in enumerate(cases):
        place = case.cluster
        assert place is not None
        where = (place.device.name, place.nodes, place.devices_per_node, place.network.bytes_per_s)
        same[(case.model, case.training, where)].append(i)
    for rows in same.values():
        alike = [cases[i] for i in rows]
        first = alike[0]
        assert first.cluster is not None
        columns = LayoutColumns.from_layouts([case.layout for case in alike])
        habits = framework_habits(first.training.framework)
        yield Group(
            cases=tuple(alike),
            cluster=first.cluster,
            columns=columns,
            kinds=stage_kinds(first.model, columns),
            measured_s=np.array([case.measured_step_s for case in alike], np.float64),
            weights=np.array([weights[i] for i in rows], np.float64),
            keys=frozenset([*device_keys(first.cluster.device.name), *framework_keys(habits.name)]),
        )


def starting_values(groups: Iterable[Group]) -> dict[Key, float]:
    """The present value of every constant that some run may depend on."""
    values: dict[Key, float] = {}
    for group in groups:
        habits = framework_habits(group.cases[0].training.framework)
        values |= {key: present(key, habits, group.cluster) for key in group.keys}
    return values
