"""The constants that are fitted, what is held to be likely of each, and the two files that they stand in."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tpdpdash.cost import frameworks

ROOT = Path(__file__).parents[1]
CATALOGUE = ROOT / "tpdpdash/cluster/catalogue.toml"
FRAMEWORKS = ROOT / "tpdpdash/cost/frameworks.toml"
DEFAULT = "default"
SCALED = {field: (key, unit) for key, (field, unit) in frameworks.SCALED.items()}
"""Fields that the table of frameworks writes in another unit: the key of each, and the unit."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One constant."""

    kind: str
    """device or framework."""
    owner: str
    """Its table: an architecture's, a framework's, or the frameworks' default."""
    name: str
    """The field of DeviceSpec or FrameworkHabits."""

    def __str__(self) -> str:
        return f"{self.kind}.{self.owner}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is likely of a constant before any run is seen."""

    value: float
    """The middle."""
    spread: float
    """Standard deviation of its logarithm."""
    low: float
    """Least possible."""
    high: float
    """Greatest possible."""
    by_owner: Mapping[str, float]
    """The middle for owners of whom more is known."""


def _prior(value: float, spread: float, low: float, high: float, **by_owner: float) -> Prior:
    named = {owner.replace("_", "-"): middle for owner, middle in by_owner.items()}
    return Prior(value=value, spread=spread, low=low, high=high, by_owner=named)


DEVICE_PRIORS = {
    "gemm_efficiency": _prior(
        0.8, 0.1, 0.2, 1.0, volta=0.75, ampere=0.95, hopper=0.75, hopper_500w=0.65, blackwell=0.7,
        blackwell_superchip=0.75, blackwell_ultra=0.7, blackwell_ultra_superchip=0.75, cdna=0.55,
    ),
    "gemm_half_k": _prior(700.0, 0.4, 50.0, 4000.0, volta=500.0, ampere=900.0),
    "attention_efficiency": _prior(
        0.55, 0.12, 0.1, 0.9, volta=0.35, ampere=0.6, hopper=0.6, blackwell=0.5, blackwell_superchip=0.5,
        blackwell_ultra=0.5, cdna=0.35,
    ),
    "portable_attention_efficiency": _prior(0.35, 0.12, 0.05, 0.9, ampere=0.6, hopper=0.35, blackwell=0.2, cdna=0.25),
}  # fmt: skip
"""Large products: cuBLAS reaches 250-290 of 312 TFLOP/s on A100, 700-750 of 989 on H100 at 700 W, 1.5-1.8 of 2.25-2.5
PFLOP/s on Blackwell; hipBLASLt 650-750 of 1,307 on MI300X. Attention: arXiv:2307.08691, 2407.08608."""
OWN_PRIORS = {
    "gemm_frac": _prior(0.95, 0.06, 0.5, 1.1, builtin=0.85, megatron_deepspeed=1.0),
    "attention_frac": _prior(1.0, 0.1, 0.3, 1.3, megatron_2022=0.5, megatron_deepspeed=0.45),
    "traffic_frac": _prior(1.3, 0.2, 0.8, 4.0, megatron_core=1.0, megatron_2022=1.0, megatron_deepspeed=1.0, jax=1.2),
    "layer_kernels": _prior(
        30.0, 0.3, 4.0, 400.0, megatron_core=24.0, megatron_2022=30.0, megatron_deepspeed=170.0, jax=6.0
    ),
}  # fmt: skip
"""Every framework has its own: how much slower than the device's curve, which Megatron defines; eager operators against
fused ones; kernels of a layer's forward pass."""
SHARED_PRIORS = {
    "message_kernels": _prior(6.0, 0.3, 1.0, 60.0, megatron_deepspeed=12.0),
    "backward_kernels": _prior(1.6, 0.15, 1.0, 3.0, megatron_deepspeed=1.25),
    "microbatch_s": _prior(4e-4, 0.5, 1e-5, 5e-2, megatron_deepspeed=1.5e-3, deepspeed=1.5e-3, jax=1e-4),
    "step_s": _prior(1e-2, 0.5, 5e-4, 1e-1, jax=3e-3),
    "hidden_frac": _prior(0.8, 0.1, 0.1, 0.98),
    "tp_hidden_frac": _prior(0.6, 0.2, 0.1, 0.98, fsdp2=0.5),
    "grouped_gemm_frac": _prior(0.8, 0.1, 0.3, 1.0),
    "moe_kernels": _prior(400.0, 0.4, 10.0, 2000.0),
}
"""A framework's own where its table has it, else the default's."""
DEFINING = ("megatron-core", "megatron-2022")
"""Frameworks whose GEMMs define the device's curve: their gemm_frac is 1."""
PRIORS = DEVICE_PRIORS | OWN_PRIORS | SHARED_PRIORS


def prior(key: Key) -> tuple[float, Prior]:
    """The middle for this owner, and the rest."""
    found = PRIORS[key.name]
    return found.by_owner.get(key.owner, found.value), found


@cache
def _read(path: Path) -> Mapping[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def device_keys(device: str) -> list[Key]:
    """The constants of a device, each in the table that states it."""
    catalogue = _read(CATALOGUE)
    keys = []
    for name in DEVICE_PRIORS:
        table = catalogue["devices"][device]["constants"]
        while name not in catalogue["constants"][table]:
            table = catalogue["constants"][table]["like"]
        keys.append(Key("device", table, name))
    return keys


def framework_keys(framework: str) -> list[Key]:
    """The constants of a framework."""
    stated = _read(FRAMEWORKS)[framework]
    own = [Key("framework", framework, n) for n in OWN_PRIORS if n != "gemm_frac" or framework not in DEFINING]
    return own + [
        Key("framework", framework if SCALED.get(n, (n,))[0] in stated else DEFAULT, n) for n in SHARED_PRIORS
    ]


def write(values: Mapping[Key, float], reasons: Mapping[Key, str]) -> None:
    """Put the values and their sources into the two files, comments and all else untouched."""
    for path, kind, put in ((CATALOGUE, "device", _in_catalogue), (FRAMEWORKS, "framework", _in_frameworks)):
        lines = path.read_text(encoding="utf-8").split("\n")
        for key in sorted(k for k in values if k.kind == kind):
            lines = put(lines, key, float(f"{values[key]:.3g}"), reasons[key])
        path.write_text("\n".join(lines), encoding="utf-8")
    _read.cache_clear()


def _section(lines: list[str], header: str) -> range:
    """Line numbers of a table, without its header."""
    start = lines.index(f"[{header}]") + 1
    return range(start, next((i for i in range(start, len(lines)) if lines[i].startswith("[")), len(lines)))


def _line_of(lines: list[str], header: str, name: str) -> int | None:
    return next((i for i in _section(lines, header) if re.match(rf"{name}\s*=", lines[i])), None)


def _in_catalogue(lines: list[str], key: Key, value: float, reason: str) -> list[str]:
    own = f"constants.{key.owner}"
    for header, text in ((own, f"{value}"), (f"{own}.sources", f'"fitted: {reason}"')):
        place = _line_of(lines, header, key.name)
        assert place is not None, (header, key)
        lines[place] = f"{key.name} = {text}"
    return lines


def _in_frameworks(lines: list[str], key: Key, value: float, reason: str) -> list[str]:
    name, unit = SCALED.get(key.name, (key.name, 1.0))
    line = f'{name} = {{ value = {float(f"{value / unit:.3g}")}, kind = "fitted", source = "{reason}" }}'
    place = _line_of(lines, key.owner, name)
    if place is not None:
        return [*lines[:place], line, *lines[place + 1 :]]
    after = _section(lines, key.owner).start
    return [*lines[:after], line, *lines[after:]]


def reason(sources: Iterable[str], likely: float) -> str:
    """What stands beside a fitted value."""
    return f"scripts/fit_constants.py on {', '.join(sorted(sources))}; {likely:.3g} assumed before"
