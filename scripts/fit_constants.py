"""Fit constants of the catalogue and of the frameworks' table to published runs.

    python scripts/fit_constants.py --reference DIR [--rounds 4] [--sources A,B] [--held-out] [--only KEY,KEY]

Least absolute log residuals of the step time, every source weighing the same; coordinate descent with shrinking steps.
Prints the fitted values, to be written into cluster/catalogue.toml and cost/frameworks.toml with `fitted` as their
kind, and the residuals by source. A few constants for each kind of device and each framework, none for a row, a model
or a source. --held-out fits to every second source and shows the others, so that a fit to noise is seen.
"""

from __future__ import annotations

import argparse
import math
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from tpdpdash.compare.case import Case, read_cases
from tpdpdash.compare.table import read_table
from tpdpdash.cost.estimate import estimate
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.layout.columns import LayoutColumns

Key = tuple[str, str, str]
"""("device" or "framework", its name, the constant)."""
BOUNDS: Mapping[str, tuple[float, float]] = {
    "gemm_efficiency": (0.3, 0.95),
    "gemm_half_k": (100.0, 3000.0),
    "gemm_frac": (0.5, 1.0),
    "layer_kernels": (4.0, 400.0),
    "message_kernels": (1.0, 60.0),
    "backward_kernels": (1.0, 3.0),
    "moe_kernels": (10.0, 1000.0),
    "grouped_gemm_frac": (0.3, 1.0),
    "ep_hidden_frac": (0.01, 0.95),
    "traffic_frac": (1.0, 4.0),
    "attention_frac": (0.4, 1.0),
    "microbatch_s": (1e-4, 2e-2),
    "step_s": (1e-3, 1e-1),
}
DEVICE_CONSTANTS = ("gemm_efficiency", "gemm_half_k")
MOE_CONSTANTS = ("moe_kernels", "grouped_gemm_frac", "ep_hidden_frac")
HOST_CONSTANTS = ("layer_kernels", "message_kernels", "backward_kernels", "microbatch_s", "step_s")
HOST_BOUND = ("megatron-deepspeed",)
"""Frameworks with runs of models so small that the host decides: only these pin its constants."""
FRAMEWORK_CONSTANTS = ("gemm_frac", "traffic_frac", "attention_frac")
DEFINING = ("megatron-core", "megatron-2022")
"""Frameworks whose GEMMs define the device's curve: their gemm_frac is 1."""
EXCLUDED: Mapping[str, str] = {
    "bigscience-tr11": "CUDA_LAUNCH_BLOCKING=1: every launch waits for the device",
    "bigscience-v100": "the same runs differ by up to 40 %",
    "megatron-golden": "deterministic mode: other kernels",
    "nanotron-old-bench": "two rows",
}
"""Sources that no constant is fitted to, and why; their residuals are shown."""
ROWS_PER_SOURCE = 60
FEWEST_ROWS = 3
COMPLETE = 2


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Runs that differ in their layout only: one call prices them all."""

    cases: tuple[Case, ...]
    columns: LayoutColumns
    measured_s: np.ndarray
    weight: float
    """Weight of each run: sources weigh the same."""

    @property
    def source(self) -> str:
        """Where the runs are from."""
        return self.cases[0].source

    @property
    def framework(self) -> str:
        """The framework whose constants price them."""
        return framework_habits(self.cases[0].training.framework).name

    @property
    def architecture(self) -> str:
        """The table of software constants of their device."""
        cluster = self.cases[0].cluster
        assert cluster is not None
        return architecture(cluster.device.name)

    def depends(self, key: Key) -> bool:
        """Whether a constant enters the times."""
        if key[2] in MOE_CONSTANTS and not self.cases[0].model.is_moe:
            return False
        return key[1] == (self.architecture if key[0] == "device" else self.framework)

    def residuals(self, constants: Mapping[Key, float]) -> np.ndarray:
        """log(predicted / measured) of each run."""
        case = self.cases[0]
        assert case.cluster is not None
        own = {kind: {k[2]: v for k, v in constants.items() if k[:2] == (kind, of)} for kind, of in self._tables()}
        cluster = replace(case.cluster, device=replace(case.cluster.device, **own["device"]))
        habits = replace(framework_habits(case.training.framework), **own["framework"])
        found = estimate(case.model, cluster, case.training, self.columns, every_stage=False, habits=habits)
        return np.log(found.step_s / self.measured_s)

    def _tables(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return ("device", self.architecture), ("framework", self.framework)

    def loss(self, constants: Mapping[Key, float]) -> float:
        """Weighted sum of absolute residuals."""
        return self.weight * float(np.abs(self.residuals(constants)).sum())


@cache
def architecture(device: str) -> str:
    """The catalogue's table of software constants that a device uses: one fit for all devices that share it."""
    catalogue = tomllib.loads((files("tpdpdash.cluster") / "catalogue.toml").read_text(encoding="utf-8"))
    return str(catalogue["devices"][device]["constants"])


def read_groups(path: Path) -> list[Group]:
    """The complete rows that state a time, on known hardware; every source thinned to ROWS_PER_SOURCE."""
    cases, _ = read_cases(read_table(path).rows)
    by_source = defaultdict(list)
    for case in cases:
        if case.cluster is not None and case.measured_step_s and case.complete == COMPLETE:
            by_source[case.source].append(case)
    groups = []
    for rows in by_source.values():
        kept = rows[:: max(1, len(rows) // ROWS_PER_SOURCE)]
        same: dict[object, list[Case]] = defaultdict(list)
        for case in kept:
            place = case.cluster
            assert place is not None
            where = (place.device.name, place.nodes, place.devices_per_node, place.network.bytes_per_s)
            same[(case.model, case.training, where)].append(case)
        for alike in same.values():
            columns = LayoutColumns.from_layouts([case.layout for case in alike])
            measured = np.array([case.measured_step_s for case in alike], np.float64)
            groups.append(Group(tuple(alike), columns, measured, 1 / len(kept)))
    return groups


def starting_values(groups: Iterable[Group]) -> dict[Key, float]:
    """The present value of every constant that some run depends on."""
    values: dict[Key, float] = {}
    for group in groups:
        case, name = group.cases[0], group.framework
        assert case.cluster is not None
        habits, device = framework_habits(case.training.framework), case.cluster.device
        values |= {("device", group.architecture, n): getattr(device, n) for n in DEVICE_CONSTANTS}
        names = [n for n in FRAMEWORK_CONSTANTS if n != "gemm_frac" or name not in DEFINING]
        names += [*(HOST_CONSTANTS if name in HOST_BOUND else ()), *(MOE_CONSTANTS if case.model.is_moe else ())]
        values |= {("framework", name, n): getattr(habits, n) for n in names}
    return values


def fit(groups: list[Group], start: dict[Key, float], rounds: int, wanted: Callable[[Key], bool]) -> dict[Key, float]:
    """Coordinate descent over the wanted constants with shrinking steps in the logarithm of each."""
    values = dict(start)
    losses = {id(group): group.loss(values) for group in groups}
    for step in [0.2 / 2**n for n in range(rounds)]:
        for key in (k for k in start if wanted(k)):
            own = [group for group in groups if group.depends(key)]
            low, high = BOUNDS[key[2]]
            for trial in {min(high, max(low, start_at * math.exp(m * step))) for start_at in (values[key],)
                          for m in (-2, -1, 1, 2)}:  # fmt: skip
                found = {id(group): group.loss({**values, key: trial}) for group in own}
                if sum(found.values()) < sum(losses[g] for g in found) - 1e-9:
                    values[key] = trial
                    losses |= found
        print(f"step {step:.3f}: loss {sum(losses.values()):.4f}", flush=True)
    return values


def report(groups: Sequence[Group], values: Mapping[Key, float]) -> list[str]:
    """Median and mean absolute error and bias by source."""
    by_source = defaultdict(list)
    for group in groups:
        by_source[group.source] += list(np.exp(group.residuals(values)) - 1)
    lines, medians = [], []
    for source, errors in sorted(by_source.items()):
        sizes = np.abs(errors)
        medians.append(float(np.median(sizes)))
        lines.append(
            f"{source:28s} n {len(errors):4d}  median |e| {medians[-1]:.3f}  mean |e| {sizes.mean():.3f}"
            f"  bias {np.median(errors):+.3f}  {EXCLUDED.get(source, '')}"
        )
    return [*lines, f"mean of the sources' medians {np.mean(medians):.4f}"]


def main() -> None:
    """Read, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="folder with runs.csv")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sources", default="", help="only these sources")
    parser.add_argument("--only", default="", help="only constants whose dotted name starts so")
    parser.add_argument("--held-out", action="store_true", help="fit to every second source")
    asked = parser.parse_args()
    groups = read_groups(asked.reference / "runs.csv")
    if asked.sources:
        groups = [group for group in groups if group.source in asked.sources.split(",")]
    sources = sorted({group.source for group in groups} - set(EXCLUDED))
    fitted = set(sources[::2] if asked.held_out else sources)
    own = [group for group in groups if group.source in fitted]
    prefixes = tuple(asked.only.split(",")) if asked.only else ("",)
    start = starting_values(own)
    print("before", *report(groups, start), sep="\n")
    values = fit(own, start, asked.rounds, lambda key: ".".join(key).startswith(prefixes))
    print("after", *report(groups, values), sep="\n")
    print("fitted to", ", ".join(sorted(fitted)))
    for key, value in sorted(values.items()):
        low, high = BOUNDS[key[2]]
        bound = "  AT ITS BOUND" if not low * 1.001 < value < high * 0.999 else ""
        if value != start[key]:
            print(f"{key[0]:9s} {key[1]:20s} {key[2]:18s} {start[key]:9.4g} -> {value:9.4g}{bound}")


if __name__ == "__main__":
    main()
