"""Measured runs beside their estimates: residuals.json, which error bars come from and the screen of accuracy draws.

The file is written by `python -m tpdpdash.compare.accuracy`, never by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.layout.frameworks import known_framework
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import LOW_PRECISIONS, Training

What = Literal["time", "memory"]
FILE = "residuals.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKind:
    """What decides which measured runs are near an estimate. None = any."""

    framework: str | None = None
    """training.framework, or the nearest known one."""
    architecture: str | None = None
    """The device's family; empty where it is not known."""
    is_moe: bool | None = None
    """A mixture of experts."""
    is_low_precision: bool | None = None
    """GEMMs in fp8, mxfp8 or nvfp4."""
    is_lora: bool | None = None
    """Adapters are trained on frozen weights."""

    def holds(self, other: RunKind) -> bool:
        """Whether a run of the kind `other` is of this kind too."""
        return (
            self.framework in (None, other.framework)
            and self.is_moe in (None, other.is_moe)
            and self.architecture in (None, other.architecture)
            and self.is_low_precision in (None, other.is_low_precision)
            and self.is_lora in (None, other.is_lora)
        )

    def wider(self) -> Iterator[RunKind]:
        """This kind and wider ones, the nearest first: what a run shares with it counts in the order adapters or all
        weights, dense or mixture of experts, framework, architecture, precision."""
        yield self
        yield replace(self, is_low_precision=None)
        yield replace(self, architecture=None)
        yield replace(self, architecture=None, is_low_precision=None)
        yield replace(self, framework=None)
        yield replace(self, framework=None, is_low_precision=None)
        yield RunKind(is_moe=self.is_moe, is_low_precision=self.is_low_precision, is_lora=self.is_lora)
        yield RunKind(is_moe=self.is_moe, is_lora=self.is_lora)
        yield RunKind(is_lora=self.is_lora)
        yield RunKind()


def run_kind(model: ModelSpec, cluster: ClusterSpec | None, training: Training) -> RunKind:
    """The kind of a run. cluster: None = hardware that is not known."""
    return RunKind(
        framework=known_framework(training.framework),
        architecture="" if cluster is None else cluster.device.architecture,
        is_moe=model.is_moe,
        is_low_precision=training.precision in LOW_PRECISIONS,
        is_lora=training.trainable == "lora",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One measured run and its estimate."""

    row: int
    """Data row of the table that it came from, from 0."""
    source: str
    """Who published it; all releases of one project are one source."""
    model: str
    """The model's name."""
    layout: str
    """Its layout in short: tp4-pp2-dp8."""
    device: str
    """The hardware as the row names it."""
    kind: RunKind
    """What kind of run it is, every field known."""
    world_size: int
    """Devices."""
    tokens_per_step: float
    """Tokens of one step."""
    cp: int
    """Context parallel degree."""
    ep: int
    """Expert parallel degree."""
    schedule: str
    """Pipeline schedule; none where there is one stage."""
    predicted: float
    """Seconds of a step, or bytes of the peak as it was read."""
    measured: float
    """The same, measured."""
    is_stated: bool = True
    """Whether the row says how many tokens a microbatch has. Where that is guessed, a miss tells of the guess and not
    of the estimate: such a run is shown, and no bar is made of it."""

    @property
    def error(self) -> float:
        """predicted / measured − 1."""
        return self.predicted / self.measured - 1

    @property
    def miss_frac(self) -> float:
        """|measured − predicted| / predicted: the half-width of the bar, as a share of the estimate, that just holds
        the measurement."""
        return abs(self.measured / self.predicted - 1)


KIND_COLUMNS = tuple(field.name for field in fields(RunKind))
OWN_COLUMNS = tuple(field.name for field in fields(Residual) if field.name != "kind")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Residuals:
    """Every published run that could be predicted. Equal only to itself, so that what was drawn from it can be kept."""

    date: str
    """When they were taken, YYYY-MM-DD."""
    commit: str
    """The code that predicted."""
    time: tuple[Residual, ...]
    """Step times [s]."""
    memory: tuple[Residual, ...]
    """Peaks of one device's memory [bytes]."""

    def of(self, what: What) -> tuple[Residual, ...]:
        """Those of step times, or of peaks."""
        return self.time if what == "time" else self.memory


def residuals_text(residuals: Residuals) -> str:
    """The JSON text that `residuals_from_text` reads back: one run a line, so that a change of one shows as such."""

    def lines(rows: Sequence[Residual]) -> str:
        return ",\n".join(json.dumps(_cells(row), ensure_ascii=False, separators=(",", ":")) for row in rows)

    head = {"date": residuals.date, "commit": residuals.commit, "columns": (*OWN_COLUMNS, *KIND_COLUMNS)}
    opened = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items())
    return f'{{{opened},\n"time": [\n{lines(residuals.time)}\n],\n"memory": [\n{lines(residuals.memory)}\n]}}\n'


def _cells(row: Residual) -> list[object]:
    own = [_rounded(getattr(row, name)) for name in OWN_COLUMNS]
    return [*own, *(getattr(row.kind, name) for name in KIND_COLUMNS)]


def _rounded(value: object) -> object:
    """Five digits are enough for an error bar."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def residuals_from_text(text: str) -> Residuals:
    """The file's text as residuals."""
    document = json.loads(text)
    own = len(OWN_COLUMNS)
    if document["columns"] != [*OWN_COLUMNS, *KIND_COLUMNS]:
        raise ValueError(f"{FILE} is of another version: write it anew with python -m tpdpdash.compare.accuracy")

    def rows(name: What) -> tuple[Residual, ...]:
        found: list[list[Any]] = document[name]
        kinds = {key: RunKind(**dict(zip(KIND_COLUMNS, key, strict=True))) for key in {tuple(r[own:]) for r in found}}
        return tuple(
            Residual(**dict(zip(OWN_COLUMNS, row[:own], strict=True)), kind=kinds[tuple(row[own:])]) for row in found
        )

    return Residuals(date=document["date"], commit=document["commit"], time=rows("time"), memory=rows("memory"))


@cache
def packaged_residuals() -> Residuals:
    """The residuals that came with this version, read once."""
    return residuals_from_text(files("tpdpdash.cost").joinpath(FILE).read_text(encoding="utf-8"))
