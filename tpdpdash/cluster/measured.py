"""The cluster file: what `tpdpdash calibrate` measured on this machine, in the user's config directory.

Device "local" uses it from then on. A file that is damaged, or of another machine, is ignored, and that is said.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tpdpdash.cluster.figures import DEVICE_LIMITS, LINK_LIMITS, DeviceFigures, LinkFigures, spec_field
from tpdpdash.cluster.spec import ClusterSpec, DeviceSpec, FigureSource, LinkSpec, Measured, RankSpeed
from tpdpdash.faults import Fault
from tpdpdash.fields import Limits, read_fields
from tpdpdash.units import MIB, TERA

VERSION = 1
FIELD = "cluster file"
FACTOR_LIMITS: Limits = {"compute": (0.02, 50), "messages": (0.02, 50)}
"""A run that is further off than that was not what was estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What a finished run says about the figures."""

    run: str
    """The run."""
    date: str
    """When it was trusted, UTC."""
    compute: float = 1.0
    """Measured seconds of computation per estimated one."""
    messages: float = 1.0
    """The same of messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A short run of the built-in worker beside what the figures, uncorrected, say of it."""

    layout: str
    """Its layout in short: tp2."""
    hidden_size: int
    """Of its model."""
    ranks: int
    """That it ran on."""
    predicted_s: float
    """Seconds of a step by the figures."""
    measured_s: float
    """Seconds of its middle step by the clock."""

    @property
    def miss_frac(self) -> float:
        """By how much the estimate is off, as a share of it: above 0 where it is too low."""
        return self.measured_s / self.predicted_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFile:
    """The content of the file, in human units."""

    v: int
    """Version of the format."""
    date: str
    """When it was measured, UTC."""
    run: str
    """The run that measured."""
    device: str
    """Catalogue name of the device; CPU for CPU ranks."""
    cores: int
    """Cores of the machine."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Keys of DeviceFigures."""
    links: Mapping[str, float] = field(default_factory=dict)
    """Keys of LinkFigures."""
    speeds: tuple[RankSpeed, ...] = ()
    """How ranks share the machine."""
    corrections: tuple[Correction, ...] = ()
    """Of trusted runs, the first one first."""
    checks: tuple[Check, ...] = ()
    """What says how far estimates by the figures are off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The keys of the file that stand in no table."""

    v: int
    date: str
    run: str
    device: str
    cores: int


_HEAD_LIMITS: Limits = {"v": (VERSION, VERSION), "cores": (1, 1_000_000)}
_SPEED_LIMITS: Limits = {"ranks": (1, 1_000_000), "compute_frac": (1e-3, 2), "memory_frac": (1e-3, 2)}
_CHECK_LIMITS: Limits = {
    "hidden_size": (1, 1_000_000),
    "ranks": (1, 1_000_000),
    "predicted_s": (1e-9, 1e9),
    "measured_s": (1e-9, 1e9),
}
_ROWS = (
    ("speeds", RankSpeed, _SPEED_LIMITS),
    ("corrections", Correction, FACTOR_LIMITS),
    ("checks", Check, _CHECK_LIMITS),
)
_TABLES = ("device_figures", "links", *(name for name, _, _ in _ROWS))


def config_path() -> Path:
    """Where the file is, whether it exists or not."""
    from platformdirs import user_config_path

    return user_config_path("tpdpdash", appauthor=False) / "cluster.toml"


def read_measured(path: Path) -> tuple[MeasuredFile | None, tuple[Fault, ...]]:
    """The file; (None, faults) where it is damaged, (None, ()) where there is none."""
    try:
        if path.stat().st_size > MIB:
            raise ValueError(f"more than {MIB} bytes")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, ()
    except (OSError, ValueError, RecursionError) as wrong:
        reason = (wrong.strerror if isinstance(wrong, OSError) else None) or str(wrong)
        return None, (_ignored(path, reason),)
    found, faults = _parsed(document)
    if found is None:
        return None, (_ignored(path, "; ".join(sorted({fault.field for fault in faults}))), *faults)
    return found, ()


def _ignored(path: Path, reason: str) -> Fault:
    return Fault(code="measured_file_wrong", field=FIELD, value=str(path), values={"reason": reason})


def _parsed(document: Mapping[str, Any]) -> tuple[MeasuredFile | None, list[Fault]]:
    """The tables of the file, every fault at once."""
    head, faults = read_fields(_Head, {k: v for k, v in document.items() if k not in _TABLES}, FIELD, _HEAD_LIMITS)
    read: dict[str, Any] = {}
    for key, kind, limits in (
        ("device_figures", DeviceFigures, DEVICE_LIMITS),
        ("links", LinkFigures, LINK_LIMITS),
    ):
        table = document.get(key, {})
        if not isinstance(table, dict):
            faults.append(Fault(code="not_table", field=f"{FIELD}.{key}", value=table))
            continue
        read[key], more = read_fields(kind, table, f"{FIELD}.{key}", limits)
        faults += more
    for name, entry, limits in _ROWS:
        rows = document.get(name, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            faults.append(Fault(code="not_list", field=f"{FIELD}.{name}", value=rows))
            continue
        values = [read_fields(entry, row, f"{FIELD}.{name}", limits) for row in rows]
        faults += [fault for _, more in values for fault in more]
        read[name] = values
    if faults:
        return None, faults
    speeds = sorted((RankSpeed(**values) for values, _ in read["speeds"]), key=lambda speed: speed.ranks)
    return MeasuredFile(
        **head,
        figures=read["device_figures"],
        links=read["links"],
        speeds=tuple(speeds),
        corrections=tuple(Correction(**values) for values, _ in read["corrections"]),
        checks=tuple(Check(**values) for values, _ in read["checks"]),
    ), []


def write_measured(path: Path, measured: MeasuredFile) -> None:
    """Replace the file, whole or not at all. Raises OSError."""
    import tomli_w

    document = {f.name: getattr(measured, f.name) for f in fields(_Head)}
    document |= {"device_figures": dict(measured.figures), "links": dict(measured.links)}
    document |= {name: [asdict(row) for row in getattr(measured, name)] for name, _, _ in _ROWS}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(tomli_w.dumps(document), encoding="utf-8")
    draft.replace(path)


def forget_measured(path: Path) -> bool:
    """Remove the file; whether there was one. Raises OSError."""
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


# ------------------------------------------------------------------------------------------- using it


def with_measured(cluster: ClusterSpec, measured: MeasuredFile) -> ClusterSpec:
    """The cluster with the measured figures, each with its source, and the corrections of trusted runs."""
    source = FigureSource(kind="measured", source=f"this machine on {measured.date}, run {measured.run}")
    compute = messages = 1.0
    for each in measured.corrections:
        compute, messages = compute * each.compute, messages * each.messages
    trusted = tuple(each.run for each in measured.corrections)
    if trusted:
        source = replace(source, source=f"{source.source}, corrected by {', '.join(trusted)}")
    return replace(
        cluster,
        device=_device(cluster.device, measured.figures, source, compute),
        scale_up=_link(cluster.scale_up, measured.links, source, messages),
        measured=Measured(
            date=measured.date,
            run_id=measured.run,
            cores=measured.cores,
            speeds=measured.speeds,
            corrected_by=trusted,
            miss_fracs=tuple(abs(check.miss_frac) for check in measured.checks),
            checked_ranks=max((check.ranks for check in measured.checks), default=1),
        ),
    )


def _device(device: DeviceSpec, figures: Mapping[str, float], source: FigureSource, slower: float) -> DeviceSpec:
    """The device with its figures changed, and then all of its speeds by one factor."""
    peaks, changed, sources = dict(device.peak_flops_per_s), {}, dict(device.sources)
    for key, value in figures.items():
        if key.startswith("peak_"):
            precision = key.removeprefix("peak_").removesuffix("_tflops")
            peaks[precision] = value * TERA
            sources[f"peak_flops_per_s.{precision}"] = sources["peak_flops_per_s"] = source
        elif key not in ("name", "like"):
            name, factor = spec_field(key)
            changed[name] = value * factor
            sources[name] = source
    known = replace(device, **changed)  # type: ignore[arg-type]  # keys of DEVICE_LIMITS, all of them numbers
    return replace(
        known,
        sources=sources,
        peak_flops_per_s={name: peak / slower for name, peak in peaks.items()},
        memory_bytes_per_s=known.memory_bytes_per_s / slower,
        launch_s=known.launch_s * slower,
    )


def _link(link: LinkSpec, figures: Mapping[str, float], source: FigureSource, slower: float) -> LinkSpec:
    """The link inside a machine with its figures changed, and then slower by a factor."""
    changed: dict[str, float] = {}
    for key, value in figures.items():
        if key.startswith("scale_up_") and key != "scale_up_domain_size":
            name, factor = spec_field(key.removeprefix("scale_up"))
            changed[name.removeprefix("_")] = value * factor
    known = replace(link, **changed, sources={**link.sources, **dict.fromkeys(changed, source)})  # type: ignore[arg-type]
    return replace(
        known,
        bytes_per_s=known.bytes_per_s / slower,
        latency_s=known.latency_s * slower,
        message_s=known.message_s * slower,
    )
