"""Figures in human units → DeviceSpec and LinkSpec: the one place where the cluster room converts units.

The same keys stand in catalogue.toml and in a person's [cluster.device] and [cluster.links] tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import get_args

from tpdpdash.cluster.spec import DeviceSpec, FigureKind, FigureSource, LinkKind, LinkSpec
from tpdpdash.fields import Limits
from tpdpdash.units import BITS_PER_BYTE, GB, GIB, MIB, MICROSECOND, TERA

PRECISIONS = ("fp32", "fp32_simt", "bf16", "fp16", "fp8", "fp4")

# Longest first: memory_gb_per_s ends in _gb_per_s before it could end in anything shorter.
_SUFFIXES: tuple[tuple[str, str, float], ...] = (
    ("_gbit_per_s", "_bytes_per_s", GB / BITS_PER_BYTE),
    ("_gb_per_s", "_bytes_per_s", GB),
    ("_gib", "_bytes", GIB),
    ("_mib", "_bytes", MIB),
    ("_gb", "_bytes", GB),
    ("_us", "_s", MICROSECOND),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """What a person may say about a device, in human units. Peaks are dense."""

    name: str = "described device"
    """How it is called in answers."""
    like: str | None = None
    """A catalogue device whose figures hold where none is given here."""
    memory_gib: float | None = None
    """Nominal memory, binary."""
    memory_gb: float | None = None
    """Nominal memory, decimal: instead of memory_gib."""
    usable_gib: float | None = None
    """What CUDA can hand out; without it, a share of the nominal memory is assumed, and said."""
    memory_gb_per_s: float | None = None
    """Peak memory bandwidth."""
    peak_fp32_tflops: float | None = None
    """Dense TF32 (or fp32) peak."""
    peak_fp32_simt_tflops: float | None = None
    """Peak of products in full fp32, where the fp32 peak is TF32's."""
    peak_bf16_tflops: float | None = None
    """Dense bf16 peak."""
    peak_fp16_tflops: float | None = None
    """Dense fp16 peak."""
    peak_fp8_tflops: float | None = None
    """Dense fp8 peak."""
    peak_fp4_tflops: float | None = None
    """Dense fp4 peak."""
    power_w: float | None = None
    """Board power limit; without it, energy is unknown."""
    gemm_efficiency: float | None = None
    """Share of the peak that a large GEMM reaches."""
    gemm_half_k: float | None = None
    """Inner size at which a GEMM reaches half its cap."""
    gemm_half_area: float | None = None
    """Output elements at which a GEMM reaches half of that."""
    attention_efficiency: float | None = None
    """Share of the peak that fused attention reaches forward."""
    portable_attention_efficiency: float | None = None
    """The same of fused attention that was written for an older device."""
    memory_efficiency: float | None = None
    """Share of the memory bandwidth that element-wise operators reach."""
    launch_us: float | None = None
    """Host time of one kernel launch."""
    overhead_gib: float | None = None
    """Context and allocator slack of one rank."""
    communicator_gib: float | None = None
    """Buffers of one NCCL communicator."""
    host_gb_per_s: float | None = None
    """What copies to and from host memory reach, one direction."""
    cublas_workspace_mib: float | None = None
    """Workspace of one of torch's cuBLAS handles."""
    te_workspace_mib: float | None = None
    """Workspace of one stream of Transformer Engine's GEMMs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """What a person may say about the links: [cluster.links]. Bandwidth is per device, one direction."""

    scale_up_gb_per_s: float | None = None
    """Inside a node or NVLink domain."""
    scale_up_latency_us: float | None = None
    """One hop of a small message inside a domain."""
    scale_up_message_us: float | None = None
    """What a collective takes besides its hops and bytes."""
    scale_up_efficiency: float | None = None
    """Share of the bandwidth that large collectives reach inside a domain."""
    scale_up_domain_size: int | None = None
    """Devices that the scale-up link joins."""
    network_gb_per_s: float | None = None
    """Between domains, per device when every device of the node sends."""
    network_gbit_per_s: float | None = None
    """The same in gigabit: instead of network_gb_per_s."""
    network_latency_us: float | None = None
    """One hop of a small message between nodes."""
    network_efficiency: float | None = None
    """Share of the bandwidth that large collectives reach between nodes."""


DEVICE_LIMITS: Limits = {
    **dict.fromkeys(("memory_gib", "memory_gb", "usable_gib"), (0.01, 100_000)),
    "memory_gb_per_s": (0.1, 10_000_000),
    **{f"peak_{precision}_tflops": (1e-4, 10_000_000) for precision in PRECISIONS},
    "power_w": (0.1, 1_000_000),
    **dict.fromkeys(
        ("gemm_efficiency", "attention_efficiency", "portable_attention_efficiency", "memory_efficiency"), (0.01, 1.0)
    ),
    "gemm_half_k": (0, 1_000_000),
    "gemm_half_area": (0, 1_000_000_000),
    "launch_us": (0, 1_000_000),
    **dict.fromkeys(("overhead_gib", "communicator_gib"), (0, 10_000)),
    "host_gb_per_s": (1e-3, 1_000_000),
    **dict.fromkeys(("cublas_workspace_mib", "te_workspace_mib"), (0, 100_000)),
}
LINK_LIMITS: Limits = {
    **dict.fromkeys(("scale_up_gb_per_s", "network_gb_per_s"), (0, 1_000_000)),
    "network_gbit_per_s": (0, 10_000_000),
    **dict.fromkeys(("scale_up_latency_us", "scale_up_message_us", "network_latency_us"), (0, 10_000_000)),
    **dict.fromkeys(("scale_up_efficiency", "network_efficiency"), (0.01, 1.0)),
    "scale_up_domain_size": (1, 1_000_000),
}


def spec_field(key: str) -> tuple[str, float]:
    """The field of a spec that a human-unit key fills, and the factor of the conversion."""
    for suffix, spec_suffix, factor in _SUFFIXES:
        if key.endswith(suffix):
            return key.removesuffix(suffix) + spec_suffix, factor
    return key, 1.0


def human(key: str, value: float) -> float:
    """A spec's value in the unit of `key`; the inverse of the conversion, without the dust of floating point."""
    return float(f"{value / spec_field(key)[1]:.12g}")


def figure_source(text: str) -> FigureSource:
    """ "datasheet: V100 datasheet" as a FigureSource."""
    kind, separator, source = text.partition(": ")
    kinds: dict[str, FigureKind] = {kind: kind for kind in get_args(FigureKind)}
    if not separator or kind not in kinds:
        raise ValueError(f"a figure's source must read 'kind: text' with kind one of {sorted(kinds)}, not {text!r}")
    return FigureSource(kind=kinds[kind], source=source)


def device_spec(
    name: str,
    figures: Mapping[str, float],
    sources: Mapping[str, str],
    *,
    is_cpu: bool = False,
    architecture: str = "",
) -> DeviceSpec:
    """A DeviceSpec from figures in human units and the source text of each; every field must have its figure."""
    values: dict[str, float] = {}
    peaks: dict[str, float] = {}
    origin: dict[str, FigureSource] = {}
    for key, figure in figures.items():
        source = figure_source(sources[key])
        if key.startswith("peak_"):
            precision = key.removeprefix("peak_").removesuffix("_tflops")
            peaks[precision] = figure * TERA
            origin[f"peak_flops_per_s.{precision}"] = source
        else:
            field, factor = spec_field(key)
            values[field] = figure * factor
            origin[field] = source
    main = next((p for p in ("bf16", "fp16", "fp32") if p in peaks), None)
    if main is not None:
        origin["peak_flops_per_s"] = origin[f"peak_flops_per_s.{main}"]
    return DeviceSpec(
        name=name, is_cpu=is_cpu, architecture=architecture, peak_flops_per_s=peaks, sources=origin, **values
    )


def link_spec(
    name: str, figures: Mapping[str, float], sources: Mapping[str, str], kind: LinkKind | None = None
) -> LinkSpec:
    """A LinkSpec from gb_per_s or gbit_per_s, latency_us and efficiency, and the source text of each."""
    key = "gbit_per_s" if "gbit_per_s" in figures else "gb_per_s"
    keys = {"bytes_per_s": key, "latency_s": "latency_us", "efficiency": "efficiency"}
    return LinkSpec(
        name=name,
        kind=kind,
        bytes_per_s=figures[key] * spec_field(f"_{key}")[1],
        latency_s=figures["latency_us"] * MICROSECOND,
        efficiency=figures["efficiency"],
        sources={field: figure_source(sources[written]) for field, written in keys.items()},
    )


def device_figures(device: DeviceSpec) -> dict[str, float]:
    """A DeviceSpec back in human units: what a [cluster.device] table needs to describe it."""
    keys = [f.name for f in fields(DeviceFigures) if f.name not in ("name", "like", "memory_gb")]
    figures = {k: human(k, getattr(device, spec_field(k)[0])) for k in keys if not k.startswith("peak_")}
    return figures | {f"peak_{p}_tflops": float(f"{f / TERA:.12g}") for p, f in device.peak_flops_per_s.items()}
