"""This machine as a cluster: detected GPUs looked up in the catalogue, or the CPU over gloo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpdpdash.cluster.catalogue import (
    CPU,
    REQUIRED_FIGURES,
    catalogue_device,
    catalogue_link,
    default_cluster,
    device_names,
    devices_by_nvml_name,
)
from tpdpdash.cluster.detection import DetectedDevice, Detection, HostMemory
from tpdpdash.cluster.measured import MeasuredFile, with_measured
from tpdpdash.cluster.spec import ClusterSpec, DeviceSpec, FigureSource, LinkSpec, RankSpeed
from tpdpdash.cluster.topology import GENERATIONS, joined_by_nvlink, nvlink_bytes_per_s
from tpdpdash.faults import Fault, InvalidInputError, range_values
from tpdpdash.fields import nearest
from tpdpdash.units import format_memory

FIELD = "cluster.device"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """This machine as a cluster, and what a person should know about how it was read."""

    cluster: ClusterSpec
    """What to plan with."""
    notices: tuple[Fault, ...] = ()
    """Mixed GPUs, links that do not join every GPU, a figure that was assumed."""


def read_local(detection: Detection, *, nodes: int | None = None, devices_per_node: int | None = None) -> LocalCluster:
    """What is detected here, `nodes` times (default once); every machine is taken to be like this one.

    Without a GPU that CUDA would show: CPU ranks over gloo, one a core. Raises InvalidInputError for a GPU whose
    figures are not known, and for more devices_per_node than there are.
    """
    usable = [device for device in detection.healthy if device.visible is not False]
    sliced = [slice_ for device in detection.healthy for slice_ in device.mig if slice_.visible]
    if sliced:
        raise InvalidInputError([_unknown(sliced[0].name or "MIG", sliced[0].total_bytes)])
    count = min(detection.num_visible, len(usable))
    if count == 0:
        ranks = devices_per_node or max(detection.host.cores, 1)
        usable_file, notices = _measured(detection, CPU)
        cluster = cpu_cluster(detection.host, ranks=ranks, nodes=nodes or 1, measured=usable_file)
        return LocalCluster(cluster=cluster, notices=tuple(notices))
    if devices_per_node is not None and devices_per_node > count:
        values = range_values(devices_per_node, 1, count)
        raise InvalidInputError(
            [Fault(code="more_than_detected", field="cluster.devices_per_node", value=devices_per_node, values=values)]
        )
    device, notices = _smallest_device(usable, detection.host)
    per_node = devices_per_node or count
    cluster = default_cluster(device.name, nodes or 1, per_node)
    link, link_notices = _scale_up(usable, cluster.scale_up)
    cluster = replace(cluster, device=device, scale_up=link, asked_device="local")
    file, file_notices = _measured(detection, device.name)
    return LocalCluster(
        cluster=cluster if file is None else with_measured(cluster, file),
        notices=(*notices, *link_notices, *file_notices),
    )


def _measured(detection: Detection, device: str) -> tuple[MeasuredFile | None, list[Fault]]:
    """The cluster file where it is of this device and machine, and what to say about it."""
    file, cores = detection.measured, detection.host.cores
    if file is None:
        return None, list(detection.measured_faults)
    values: dict[str, object] = {"date": file.date, "run": file.run, "device": file.device, "cores": file.cores}
    if (file.device, file.cores) != (device, cores):
        values |= {"here": device, "here_cores": cores}
        return None, [Fault(code="measured_elsewhere", field=FIELD, value=device, values=values)]
    return file, [Fault(code="measured_here", field=FIELD, value=device, values=values)]


# ------------------------------------------------------------------------------------------------------------- GPUs


def _smallest_device(usable: Sequence[DetectedDevice], host: HostMemory) -> tuple[DeviceSpec, list[Fault]]:
    """The kind of device to plan with: the one with the least memory where they differ, and that is said."""
    specs = [_spec(device, host) for device in usable]
    smallest = min(specs, key=lambda spec: (spec.usable_bytes, max(spec.peak_flops_per_s.values())))
    kinds = Counter(spec.name for spec in specs)
    if len(kinds) < 2:
        return smallest, []
    found = tuple(f"{number} × {name}" for name, number in sorted(kinds.items()))
    return smallest, [Fault(code="mixed_devices", field=FIELD, value=smallest.name, values={"found": found})]


def _spec(device: DetectedDevice, host: HostMemory) -> DeviceSpec:
    """The catalogue's figures of a detected GPU, with the memory that its driver reports."""
    name = device.name or ""
    found = devices_by_nvml_name(name, device.total_bytes)
    if len(found) > 1:
        raise InvalidInputError([Fault(code="ambiguous_device", field=FIELD, value=name, values={"candidates": found})])
    if not found:
        raise InvalidInputError([_unknown(name, device.total_bytes, host if device.unified_memory else None)])
    spec = catalogue_device(found[0])
    detected = FigureSource(kind="detected", source="NVML")
    if device.power_limit_w is not None:
        spec = replace(spec, power_w=device.power_limit_w, sources={**spec.sources, "power_w": detected})
    if device.total_bytes is None:
        return spec
    # The driver's total still holds what CUDA keeps for itself: the catalogue's usable figure stays the upper bound.
    total = float(device.total_bytes)
    sources = {**spec.sources, "memory_bytes": detected}
    return replace(spec, memory_bytes=total, usable_bytes=min(spec.usable_bytes, total), sources=sources)


def _unknown(name: str, total_bytes: float | None, host: HostMemory | None = None) -> Fault:
    """A GPU that the catalogue does not know: which figures to give, and what was detected of them.

    `host`: of a GPU that shares the host's memory; what is available there is the most that it can be given.
    """
    values: dict[str, object] = {"figures": REQUIRED_FIGURES, "nearest": nearest(name, device_names())}
    if host is not None:
        values |= {"available_bytes": host.available_bytes, "available": format_memory(host.available_bytes)}
        return Fault(code="unified_memory_device", field=FIELD, value=name, values=values)
    return Fault(
        code="detected_device_unknown",
        field=FIELD,
        value=name,
        values=values | {"total_bytes": total_bytes, "memory": format_memory(total_bytes)},
    )


def _scale_up(usable: Sequence[DetectedDevice], usual: LinkSpec) -> tuple[LinkSpec, list[Fault]]:
    """The link that really joins the detected GPUs: the catalogue's word only where NVML does not report."""
    joined = joined_by_nvlink(usable)
    if joined is None:
        return usual, []
    if joined:
        return _nvlink(min(usable, key=lambda d: nvlink_bytes_per_s(d) or 0.0), usual), []
    notices = []
    if any(device.nvlink_links for device in usable):
        notices = [Fault(code="partial_nvlink", field=FIELD, values={"used": "PCIe"})]
    return _pcie(usable[0], usual), notices


def _pcie(device: DetectedDevice, usual: LinkSpec) -> LinkSpec:
    """PCIe as the slot has it; the catalogue's where the driver does not say."""
    generation, width = device.pcie_generation, device.pcie_width
    if not generation or not width:
        return usual if usual.kind == "pcie" else catalogue_link("pcie4")
    base = catalogue_link(f"pcie{min(max(generation, 3), 5)}")
    rate = base.bytes_per_s * width / 16 * 2.0 ** (generation - min(max(generation, 3), 5))
    return _detected(base, f"PCIe {generation} x{width}", rate)


def _nvlink(device: DetectedDevice, usual: LinkSpec) -> LinkSpec:
    """NVLink with the detected number of links; latency and efficiency are the catalogue's of an NVLink."""
    rate = nvlink_bytes_per_s(device)
    if rate is None:
        return usual
    base = usual if usual.kind == "nvlink" else catalogue_link("nvlink3")
    name = f"NVLink {GENERATIONS[device.nvlink_version or 0]}, {device.nvlink_links} links"
    return _detected(base, name, rate)


def _detected(base: LinkSpec, name: str, bytes_per_s: float) -> LinkSpec:
    """A link of the catalogue with the bandwidth that NVML reports."""
    sources = {**base.sources, "bytes_per_s": FigureSource(kind="detected", source="NVML")}
    return replace(base, name=name, bytes_per_s=bytes_per_s, sources=sources)


# -------------------------------------------------------------------------------------------------------------- CPU


def cpu_cluster(host: HostMemory, *, ranks: int, nodes: int = 1, measured: MeasuredFile | None = None) -> ClusterSpec:
    """`ranks` CPU ranks a node over gloo that share this machine's memory and cores, one core a rank at most."""
    usual = default_cluster(CPU, nodes, ranks)
    speed = _assumed_speed(host.cores, ranks)
    if measured is not None:
        usual = with_measured(usual, measured)
        speed = usual.measured.speed(ranks) if usual.measured else speed
    device = usual.device
    sources = dict(device.sources)
    memory, usable = device.memory_bytes, device.usable_bytes
    if host.total_bytes is not None:
        shared = FigureSource(kind="detected", source=f"this machine's memory, shared by {ranks} ranks")
        sources |= {"memory_bytes": shared, "usable_bytes": shared}
        memory = host.total_bytes / ranks
        usable = (host.available_bytes if host.available_bytes is not None else host.total_bytes) / ranks
    shown = replace(device, memory_bytes=memory, usable_bytes=usable, sources=sources)
    power_w = device.power_w * min(1.0, host.cores / ranks)
    return replace(usual, device=replace(_at_speed(shown, speed), power_w=power_w), asked_device="local")


def _assumed_speed(cores: int, ranks: int) -> RankSpeed:
    """Of one of `ranks` ranks that share cores, where nothing was measured."""
    share = min(1.0, cores / ranks)
    return RankSpeed(ranks=ranks, compute_frac=share, memory_frac=share)


def _at_speed(device: DeviceSpec, speed: RankSpeed) -> DeviceSpec:
    """The device as one of several ranks has it."""
    return replace(
        device,
        memory_bytes_per_s=device.memory_bytes_per_s * speed.memory_frac,
        peak_flops_per_s={name: peak * speed.compute_frac for name, peak in device.peak_flops_per_s.items()},
        launch_s=device.launch_s / speed.compute_frac,
    )


def with_ranks(cluster: ClusterSpec, ranks: int) -> ClusterSpec:
    """One CPU machine with another number of ranks: they share its memory, and its cores when they are more."""
    before, device = cluster.devices_per_node, cluster.device
    share, slower = before / ranks, _assumed_speed(before, ranks)
    if cluster.measured is not None:
        now, then = cluster.measured.speed(ranks), cluster.measured.speed(before)
        slower = RankSpeed(
            ranks=ranks,
            compute_frac=now.compute_frac / then.compute_frac,
            memory_frac=now.memory_frac / then.memory_frac,
        )
    shared = replace(
        _at_speed(device, slower),
        memory_bytes=device.memory_bytes * share,
        usable_bytes=device.usable_bytes * share,
        power_w=device.power_w * min(1.0, share),
    )
    return replace(cluster, device=shared, nodes=1, devices_per_node=ranks, scale_up_domain_size=ranks)
