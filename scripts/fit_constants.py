"""Fit the constants of the catalogue and of the frameworks' table to published runs: the one way that they come about.

    python scripts/fit_constants.py --reference DIR [--write] [--held-out] [--only PREFIX,PREFIX]

One fit of all constants at once: least absolute log residuals of the step time (smoothed near 0), every source weighing
the same on each architecture, with a mild prior around the value that is likely on physical grounds (fit_tables.py), so
that a constant that no run pins stays there. Gauss-Newton on reweighted squares. --write puts the values into
cluster/catalogue.toml and cost/frameworks.toml; --held-out fits without each fifth of the sources in turn and shows the
errors on those left out, and the same without each kind of device. None of the constants belongs to a row, a model or a
source.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from fit_rows import Floats, Group, read_groups, starting_values
from fit_tables import SCALED, Key, prior, reason, write

SMOOTH = 0.02
"""Log residuals below this are as good as none: the noise of repeated runs."""
PRIOR_WEIGHT = 0.001
"""Cost of moving a constant by one standard deviation, in a source's mean log residual."""
STEP = 0.02
"""Step of the finite differences, in the logarithm."""
ROUNDS = 10
LEAST_EFFECT = 1e-4
"""Constants that move the sum of residuals by less are not pinned by any run: kept as they are."""
FOLDS = 5
HELD_OUT_ROUNDS = 4
"""Enough from the fit to all."""


class Fit:
    """All residuals as a function of all wanted constants' logarithms."""

    def __init__(self, groups: Sequence[Group], start: Mapping[Key, float], wanted: Iterable[Key]) -> None:
        self.groups, self.values, self.keys = groups, dict(start), sorted(wanted)
        self.weights = np.concatenate([group.weights for group in groups])
        middles = [prior(key) for key in self.keys]
        self.likely = np.log([middle for middle, _ in middles])
        self.spread = np.array([about.spread for _, about in middles])
        self.low, self.high = np.log([about.low for _, about in middles]), np.log([about.high for _, about in middles])
        self.bounds = np.cumsum([0, *(len(group.weights) for group in groups)])

    def residuals(self, logs: Floats) -> Floats:
        """Of every run, in the order of the groups."""
        values = self.values | dict(zip(self.keys, np.exp(logs).tolist(), strict=True))
        return np.concatenate([group.residuals(values) for group in self.groups])

    def loss(self, logs: Floats, residuals: Floats) -> float:
        """Weighted smooth absolute residuals, and the price of leaving the priors."""
        sizes = np.sqrt(residuals**2 + SMOOTH**2) - SMOOTH
        return float(self.weights @ sizes + PRIOR_WEIGHT * (((logs - self.likely) / self.spread) ** 2).sum())

    def jacobian(self, logs: Floats, residuals: Floats) -> Floats:
        """d residuals / d logs, by differences; only groups that depend on a constant are priced again."""
        values = self.values | dict(zip(self.keys, np.exp(logs).tolist(), strict=True))
        found = np.zeros((len(residuals), len(logs)))
        for column, key in enumerate(self.keys):
            moved = {**values, key: values[key] * float(np.exp(STEP))}
            for i, group in enumerate(self.groups):
                if key in group.keys:
                    rows = slice(self.bounds[i], self.bounds[i + 1])
                    found[rows, column] = (group.residuals(moved) - residuals[rows]) / STEP
        return found

    def run(self, rounds: int = ROUNDS) -> dict[Key, float]:
        """The constants of least loss near the start. Each round solves the reweighted least squares; a step that does
        not pay is damped, at last given up."""
        logs = np.clip(np.log([self.values[key] for key in self.keys]), self.low, self.high)
        residuals = self.residuals(logs)
        best, damping = self.loss(logs, residuals), 1e-3
        for _ in range(rounds):
            slope = self.jacobian(logs, residuals)
            each = self.weights / np.sqrt(residuals**2 + SMOOTH**2)
            pull = 2 * PRIOR_WEIGHT / self.spread**2
            matrix = slope.T @ (each[:, None] * slope) + np.diag(pull)
            gradient = slope.T @ (each * residuals) + pull * (logs - self.likely)
            before = best
            for _ in range(6):
                step = np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), -gradient)
                trial = np.clip(logs + np.clip(step, -0.3, 0.3), self.low, self.high)
                there = self.residuals(trial)
                loss = self.loss(trial, there)
                if loss < best:
                    logs, residuals, best, damping = trial, there, loss, damping / 3
                    break
                damping *= 4
            if before - best < 1e-3:
                break
        return self.values | dict(zip(self.keys, np.exp(logs).tolist(), strict=True))


def pinned(groups: Sequence[Group], start: Mapping[Key, float], wanted: Callable[[Key], bool]) -> list[Key]:
    """The wanted constants that some run's time depends on."""
    found = []
    for key in sorted(k for k in start if wanted(k)):
        moved = {**start, key: start[key] * 1.2}
        own = [group for group in groups if key in group.keys]
        effect = sum(float(g.weights @ np.abs(g.residuals(moved) - g.residuals(start))) for g in own)
        if effect > LEAST_EFFECT:
            found.append(key)
    return found


def errors_by_source(groups: Iterable[Group], values: Mapping[Key, float]) -> dict[str, Floats]:
    """predicted / measured − 1 of every run, by source."""
    by_source: dict[str, list[Floats]] = defaultdict(list)
    for group in groups:
        by_source[group.source].append(np.exp(group.residuals(values)) - 1)
    return {source: np.concatenate(parts) for source, parts in sorted(by_source.items())}


def report(before: Mapping[str, Floats], after: Mapping[str, Floats], named: str = "after") -> list[str]:
    """Median absolute error and bias by source, before and after."""
    lines, medians = [], []
    for source, errors in after.items():
        old, new = (float(np.median(np.abs(each))) for each in (before[source], errors))
        medians.append((old, new))
        bias = float(np.median(errors))
        lines.append(f"{source:24s} n {len(errors):3d}  before {old:6.1%}  {named} {new:6.1%}  bias {bias:+6.1%}")
    old, new = np.mean(medians, axis=0)
    return [*lines, f"{'mean of the medians':24s}        before {old:6.1%}  {named} {new:6.1%}"]


def held_out(groups: Sequence[Group], start: Mapping[Key, float], wanted: Callable[[Key], bool]) -> None:
    """Errors on what a fit has not seen: every fifth source, then each kind of device. What only they pin goes back
    to its prior, as the constants of a new device would be; all else that they depend on is fitted again."""
    sources = sorted({group.source for group in groups})
    devices = sorted({key.owner for group in groups for key in group.keys if key.kind == "device"})
    parts = [lambda g, n=n: sources.index(g.source) % FOLDS == n for n in range(FOLDS)]
    by_device = [lambda g, d=d: any(k.kind == "device" and k.owner == d for k in g.keys) for d in devices]
    for title, splits in (("left-out sources", parts), ("left-out devices", by_device)):
        before: dict[str, Floats] = {}
        unseen: dict[str, Floats] = {}
        for n, is_out in enumerate(splits):
            kept, out = [g for g in groups if not is_out(g)], [g for g in groups if is_out(g)]
            seen = {key for group in kept for key in group.keys}
            fresh = {key: start[key] if key in seen or not wanted(key) else prior(key)[0] for key in start}
            touched = {key for group in out for key in group.keys}
            keys = pinned(kept, fresh, lambda key, touched=touched: wanted(key) and key in touched)
            near = [group for group in kept if not group.keys.isdisjoint(keys)]
            values = Fit(near, fresh, keys).run(HELD_OUT_ROUNDS)
            mark = f" without {devices[n]}" if splits is by_device else ""
            before |= {source + mark: each for source, each in errors_by_source(out, start).items()}
            unseen |= {source + mark: each for source, each in errors_by_source(out, values).items()}
        print(title, *report(before, unseen, "unseen"), sep="\n", flush=True)


def main() -> None:
    """Read, fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="folder with runs.csv")
    parser.add_argument("--only", default="", help="only constants whose dotted name starts so, comma-separated")
    parser.add_argument("--held-out", action="store_true", help="show errors on sources and devices left out")
    parser.add_argument("--write", action="store_true", help="write the values into the two tables")
    asked = parser.parse_args()
    groups = read_groups(asked.reference / "runs.csv")
    start = starting_values(groups)

    def wanted(key: Key) -> bool:
        return str(key).startswith(tuple(asked.only.split(",")))

    fitted = Fit(groups, start, pinned(groups, start, wanted))
    values = fitted.run()
    print(*report(errors_by_source(groups, start), errors_by_source(groups, values)), sep="\n")
    for key in fitted.keys:
        likely, about = prior(key)
        edge = "  AT ITS BOUND" if not about.low * 1.001 < values[key] < about.high * 0.999 else ""
        print(f"{key!s:52s} {start[key]:9.4g} -> {values[key]:9.4g}  (prior {likely:.4g}){edge}")
    if asked.write:
        write({key: values[key] for key in fitted.keys}, {key: _why(key, groups, values) for key in fitted.keys})
    if asked.held_out:
        held_out(groups, values, wanted)


def _why(key: Key, groups: Iterable[Group], values: Mapping[Key, float]) -> str:
    """The sources whose times the constant moves, and what was likely of it."""
    moved = {**values, key: values[key] * 1.2}
    own = [group for group in groups if key in group.keys]
    sources = {g.source for g in own if np.abs(g.residuals(moved) - g.residuals(values)).max() > LEAST_EFFECT}
    _, unit = SCALED.get(key.name, (key.name, 1.0))
    return reason(sources, prior(key)[0] / unit)


if __name__ == "__main__":
    main()
