"""ClusterSpec: devices, the links between them, and how they are grouped into nodes and NVLink domains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

FigureKind = Literal["datasheet", "fitted", "assumed", "detected", "given", "measured"]
LinkKind = Literal["nvlink", "pcie", "xgmi", "shared-memory", "network"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSource:
    """Where one catalogue figure comes from."""

    kind: FigureKind
    """datasheet, fitted (by which script, on which rows), assumed, detected or measured here, or given by a person."""
    source: str
    """The document, page or script; for "assumed" the reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One kind of device. Peak FLOP/s are dense; bandwidths are per device and direction."""

    name: str
    """Catalogue name, as in reference data: A100-SXM4-80GB."""
    is_cpu: bool = False
    """A CPU rank over gloo instead of a GPU over NCCL."""
    architecture: str = ""
    """Family whose devices behave alike: volta, ampere, hopper, blackwell, cdna …; empty = not known."""
    memory_bytes: float
    """Nominal memory."""
    usable_bytes: float
    """What CUDA can hand out on an idle device: planned with, always less than nominal."""
    memory_bytes_per_s: float
    """Peak memory bandwidth."""
    peak_flops_per_s: Mapping[str, float]
    """Dense peak by precision: fp32 (TF32 where the device has it), fp32_simt (full fp32 where that is another), bf16,
    fp16, fp8, fp4.
    A missing key: not supported."""
    power_w: float
    """Board power limit, for energy."""
    gemm_efficiency: float
    """Share of the peak that a large GEMM reaches (cap of the curve)."""
    gemm_half_k: float
    """Inner size K at which a GEMM reaches half its cap: efficiency = cap · K / (K + K0)."""
    gemm_half_area: float
    """Output elements M · N at which a GEMM reaches half of that: about half a wave of tiles over the device."""
    attention_efficiency: float
    """Share of the peak that fused attention written for the device reaches in the forward pass."""
    portable_attention_efficiency: float
    """The same of fused attention that was written for an older device: FlashAttention 2, Triton."""
    memory_efficiency: float
    """Share of the memory bandwidth that element-wise operators reach."""
    launch_s: float
    """Host time to launch one kernel: the floor under small operators."""
    overhead_bytes: float
    """CUDA context and allocator slack, per rank."""
    communicator_bytes: float
    """Buffers of one NCCL communicator."""
    host_bytes_per_s: float
    """What copies between the device and its host's memory reach, one direction."""
    cublas_workspace_bytes: float
    """Workspace of one of torch's cuBLAS handles; forward and backward threads have one each."""
    te_workspace_bytes: float
    """Workspace of one stream of Transformer Engine's GEMMs."""
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
    message_s: float = 0.0
    """What a collective takes besides its hops and bytes: over gloo its threads, which wait for cores that compute."""
    efficiency: float
    """Share of the peak that large collectives reach."""
    sources: Mapping[str, FigureSource]
    """Source of each figure, by field name."""

    @property
    def reached_bytes_per_s(self) -> float:
        """Bandwidth that large messages reach."""
        return self.bytes_per_s * self.efficiency

    @property
    def source(self) -> FigureSource:
        """Where the bandwidth comes from."""
        return self.sources["bytes_per_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpeed:
    """What one of several ranks of a machine reaches while all of them compute, against one alone."""

    ranks: int
    """Ranks that compute at once."""
    compute_frac: float
    """Speed of products and of the host's own work: cores are shared."""
    memory_frac: float
    """Speed of element-wise operators: memory and caches are shared too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """That a cluster's figures were measured, and how its ranks share the machine."""

    date: str
    """When, UTC: 2026-11-30 17:40."""
    run_id: str
    """The run that measured."""
    cores: int
    """Cores of the machine."""
    speeds: tuple[RankSpeed, ...] = ()
    """By number of ranks, ascending; empty where each rank has a device of its own."""
    corrected_by: tuple[str, ...] = ()
    """Runs whose gaps have corrected the figures."""
    miss_fracs: tuple[float, ...] = ()
    """How far estimates of short runs of the built-in worker were off, each as a share of its estimate."""
    checked_ranks: int = 1
    """Most ranks of those runs."""

    def speed(self, ranks: int) -> RankSpeed:
        """Of one of `ranks` ranks: the nearest measured number below; beyond it all ranks share the cores evenly."""
        known = [each for each in self.speeds if each.ranks <= ranks] or [
            RankSpeed(ranks=1, compute_frac=1, memory_frac=1)
        ]
        nearest = known[-1]
        share = min(1.0, max(self.cores, nearest.ranks) / ranks)
        return RankSpeed(
            ranks=ranks, compute_frac=nearest.compute_frac * share, memory_frac=nearest.memory_frac * share
        )


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
    failures_per_device_day: float = 0.0
    """Failures that stop the job, for each device and day of training."""
    restart_s: float = 0.0
    """Seconds from a failure to the next step: noticing, replacing, starting, reading the checkpoint."""
    measured: Measured | None = None
    """Set where the figures were measured on this machine by `tpdpdash calibrate`."""
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
