"""Fit the catalogue's GEMM curve and the frameworks' host and fusion constants to published runs.

    python scripts/fit_constants.py --reference DIR [--rounds 4]

Least absolute log residuals, every source weighing the same, with a pull towards the present values; coordinate
descent. Prints the fitted values, to be written into cluster/catalogue.toml and cost/frameworks.toml with `fitted` as
their kind, and the residuals by source. A few constants for each kind of device and each framework, none for a row or
a source.
"""

from __future__ import annotations

import argparse
import math
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from reference_runs import ReferenceRun, read_runs

from tpdpdash.cost.estimate import estimate
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.layout.columns import LayoutColumns

Key = tuple[str, str, str]
"""("device" or "framework", its name, the constant)."""
BOUNDS: Mapping[str, tuple[float, float]] = {
    "gemm_efficiency": (0.5, 0.95),
    "gemm_half_k": (200.0, 3000.0),
    "gemm_frac": (0.5, 1.0),
    "layer_kernels": (4.0, 400.0),
    "moe_kernels": (10.0, 1000.0),
    "grouped_gemm_frac": (0.3, 1.0),
    "ep_hidden_frac": (0.01, 0.95),
    "traffic_frac": (1.0, 4.0),
    "attention_frac": (0.4, 1.0),
}
DEVICE_CONSTANTS = ("gemm_efficiency", "gemm_half_k")
MOE_CONSTANTS = ("moe_kernels", "grouped_gemm_frac", "ep_hidden_frac")
FRAMEWORK_CONSTANTS = ("gemm_frac", "layer_kernels", "traffic_frac", "attention_frac")
DEFINING = ("megatron-core", "megatron-2022")
"""Frameworks whose GEMMs define the device's curve: their gemm_frac is 1."""
PULL = 0.02
"""Weight of a factor e away from the present value, against residuals of the size of one source."""
ROWS_PER_SOURCE = 60


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ in their layout only: one call prices them all."""

    runs: tuple[ReferenceRun, ...]
    columns: LayoutColumns
    weight: float
    """Weight of each run: sources weigh the same."""

    def residuals(self, constants: Mapping[Key, float]) -> np.ndarray:
        """log(predicted / measured) of each run."""
        first = self.runs[0]
        device = first.cluster.device
        chosen = {
            name: constants[key]
            for name in DEVICE_CONSTANTS
            if (key := ("device", architecture(device.name), name)) in constants
        }
        habits = framework_habits(first.training.framework)
        own = {
            name: value for (kind, of, name), value in constants.items() if kind == "framework" and of == habits.name
        }
        found = estimate(
            first.model, replace(first.cluster, device=replace(device, **chosen)), first.training, self.columns,
            every_stage=False, habits=replace(habits, **own),
        )  # fmt: skip
        return np.log(found.step_s / np.array([run.step_s for run in self.runs]))


def grouped(runs: Iterable[ReferenceRun]) -> list[Group]:
    """Runs by model, cluster and training; every source thinned to ROWS_PER_SOURCE."""
    by_source = defaultdict(list)
    for run in runs:
        by_source[run.source].append(run)
    groups = []
    for rows in by_source.values():
        kept = rows[:: max(1, len(rows) // ROWS_PER_SOURCE)]
        same = defaultdict(list)
        for run in kept:
            same[
                (run.model, run.cluster.device.name, run.cluster.nodes, run.cluster.devices_per_node, run.training)
            ].append(run)
        for alike in same.values():
            columns = LayoutColumns.from_layouts([run.layout for run in alike])
            groups.append(Group(tuple(alike), columns, 1 / len(kept)))
    return groups


def starting_values(groups: list[Group]) -> dict[Key, float]:
    """The present value of every constant that some run depends on."""
    values: dict[Key, float] = {}
    for group in groups:
        device, habits = group.runs[0].cluster.device, framework_habits(group.runs[0].training.framework)
        values |= {("device", architecture(device.name), name): getattr(device, name) for name in DEVICE_CONSTANTS}
        names: tuple[str, ...] = tuple(
            n for n in FRAMEWORK_CONSTANTS if n != "gemm_frac" or habits.name not in DEFINING
        )
        names = (*names, *(MOE_CONSTANTS if group.runs[0].model.is_moe else ()))
        values |= {("framework", habits.name, name): getattr(habits, name) for name in names}
    return values


@cache
def architecture(device: str) -> str:
    """The catalogue's table of software constants that a device uses: one fit for all devices that share it."""
    catalogue = tomllib.loads((files("tpdpdash.cluster") / "catalogue.toml").read_text(encoding="utf-8"))
    return str(catalogue["devices"][device]["constants"])


def depends(group: Group, key: Key) -> bool:
    """Whether a constant enters a group's times."""
    kind, name, constant = key
    run = group.runs[0]
    if constant in MOE_CONSTANTS and not run.model.is_moe:
        return False
    return name == (
        architecture(run.cluster.device.name) if kind == "device" else framework_habits(run.training.framework).name
    )


def loss(groups: list[Group], values: Mapping[Key, float]) -> float:
    """Sum of weighted absolute residuals."""
    return sum(group.weight * float(np.abs(group.residuals(values)).sum()) for group in groups)


def fit(groups: list[Group], rounds: int) -> dict[Key, float]:
    """Device curves on Megatron's dense runs, then what other frameworks and mixtures of experts reach of them, then
    the curves of devices that Megatron has no run on."""
    values = starting_values(groups)
    defining = [g for g in groups if framework_of(g) in DEFINING and not g.runs[0].model.is_moe]
    known = {architecture(g.runs[0].cluster.device.name) for g in defining}
    devices = [key for key in values if key[0] == "device"]
    values = descend(defining, values, [key for key in devices if key[1] in known], rounds)
    values = descend(groups, values, [key for key in values if key[0] == "framework"], rounds)
    return descend(groups, values, [key for key in devices if key[1] not in known], rounds)


def framework_of(group: Group) -> str:
    """The framework whose constants price a group."""
    return framework_habits(group.runs[0].training.framework).name


def descend(groups: list[Group], start: dict[Key, float], keys: list[Key], rounds: int) -> dict[Key, float]:
    """Coordinate descent over `keys` with shrinking steps in the logarithm of each constant."""
    values = dict(start)
    for step in [0.4 / 2**n for n in range(rounds)]:
        for key in keys:
            own = [group for group in groups if depends(group, key)]
            low, high = BOUNDS[key[2]]
            trials = sorted({min(high, max(low, values[key] * math.exp(k * step))) for k in (-2, -1, 0, 1, 2)})
            values[key] = min(
                trials,
                key=lambda trial: loss(own, {**values, key: trial}) + PULL * abs(math.log(trial / start[key])),
            )
    return values


def report(groups: list[Group], values: Mapping[Key, float]) -> list[str]:
    """Median and mean absolute error and bias by source."""
    by_source = defaultdict(list)
    for group in groups:
        errors = np.exp(group.residuals(values)) - 1
        for run, error in zip(group.runs, errors, strict=True):
            by_source[run.source].append(error)
    lines = []
    medians = []
    for source, errors in sorted(by_source.items()):
        sizes = np.abs(errors)
        medians.append(float(np.median(sizes)))
        lines.append(
            f"{source:28s} n {len(errors):4d}  median |e| {np.median(sizes):.3f}  mean |e| {sizes.mean():.3f}"
            f"  bias {np.median(errors):+.3f}"
        )
    return [*lines, f"mean of the sources' medians {np.mean(medians):.4f}"]


def main() -> None:
    """Read, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", type=Path, required=True, help="folder with runs.csv")
    parser.add_argument("--rounds", type=int, default=4)
    asked = parser.parse_args()
    groups = grouped(read_runs(asked.reference / "runs.csv"))
    start = starting_values(groups)
    print("before", *report(groups, start), sep="\n")
    values = fit(groups, asked.rounds)
    print("after", *report(groups, values), sep="\n")
    for key, value in sorted(values.items()):
        low, high = BOUNDS[key[2]]
        bound = "  AT ITS BOUND" if not low * 1.001 < value < high * 0.999 else ""
        print(f"{key[0]:9s} {key[1]:28s} {key[2]:16s} {start[key]:9.4g} -> {value:9.4g}{bound}")


if __name__ == "__main__":
    main()
