"""ClusterSpec: devices, the links between them, and how they are grouped into nodes and NVLink domains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

FigureKind = Literal["datasheet", "fitted", "assumed", "detected", "given"]
LinkKind = Literal["nvlink", "pcie", "xgmi", "shared-memory", "network"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSource:
    """Where one catalogue figure comes from."""

    kind: FigureKind
    """datasheet, fitted (by which script, on which rows), assumed, detected on this machine, or given by the person."""
    source: str
    """The document, page or script; for "assumed" the reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One kind of device. Peak FLOP/s are dense; bandwidths are per device and direction."""

    name: str
    """Catalogue name, as in reference data: A100-SXM4-80GB."""
    is_cpu: bool = False
    """A CPU rank over gloo instead of a GPU over NCCL."""
    memory_bytes: float
    """Nominal memory."""
    usable_bytes: float
    """What CUDA can hand out on an idle device: planned with, always less than nominal."""
    memory_bytes_per_s: float
    """Peak memory bandwidth."""
    peak_flops_per_s: Mapping[str, float]
    """Dense peak by precision: fp32 (TF32 where the device has it), bf16, fp16, fp8, fp4.
    A missing key: not supported."""
    power_w: float
    """Board power limit, for energy."""
    gemm_efficiency: float
    """Share of the peak that a large GEMM reaches (cap of the curve)."""
    gemm_half_k: float
    """Inner size K at which a GEMM reaches half its cap: efficiency = cap · K / (K + K0)."""
    attention_efficiency: float
    """Share of the peak that fused (flash) attention reaches in the forward pass."""
    memory_efficiency: float
    """Share of the memory bandwidth that element-wise operators reach."""
    launch_s: float
    """Host time to launch one kernel: the floor under small operators."""
    overhead_bytes: float
    """CUDA context, cuBLAS workspace and allocator slack, per rank."""
    sources: Mapping[str, FigureSource] = field(default_factory=lambda: MappingProxyType({}))
    """Source of each figure, by field name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """One kind of link. Bandwidth is per device, one direction."""

    name: str
    """NVLink 3, PCIe 4 x16, InfiniBand HDR, loopback, …"""
    kind: LinkKind | None = None
    """What it is made of; None = not known."""
    bytes_per_s: float
    """Peak bandwidth of one device in one direction."""
    latency_s: float
    """Time of one hop of a small message."""
    efficiency: float
    """Share of the peak that large collectives reach."""
    sources: Mapping[str, FigureSource]
    """Source of each figure, by field name."""

    @property
    def source(self) -> FigureSource:
        """Where the bandwidth comes from."""
        return self.sources["bytes_per_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A homogeneous cluster: `nodes` × `devices_per_node` of one device."""

    device: DeviceSpec
    """Every device is of this kind."""
    nodes: int
    """Machines."""
    devices_per_node: int
    """Devices in each machine."""
    scale_up: LinkSpec
    """The link inside a domain: NVLink, PCIe, xGMI; shared memory on a CPU."""
    scale_up_domain_size: int
    """Devices that the scale-up link joins: devices_per_node, or 72 for an NVL72 rack that spans machines."""
    network: LinkSpec
    """The link between domains: bandwidth per device when every device of the node sends."""
    price_per_device_hour: float | None = None
    """Dollars; None = unknown, and then no cost is shown."""
    asked_device: str = ""
    """The device as the person wrote it ("local", a catalogue name, "inline")."""
    asked_figures: Mapping[str, object] = field(default_factory=dict)
    """The table of figures as the person wrote it, where asked_device is "inline"."""
    asked_links: Mapping[str, object] = field(default_factory=dict)
    """The keys of [cluster.links] as the person wrote them."""

    @property
    def world_size(self) -> int:
        """Devices in all."""
        return self.nodes * self.devices_per_node
