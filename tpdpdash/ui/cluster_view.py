"""What Cluster shows, as rows of text and numbers: devices with their live readings, and figures with their source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tpdpdash.cluster.topology import link_matrix
from tpdpdash.text import fault_text, t
from tpdpdash.ui.parts import Metric, literal, plain
from tpdpdash.units import (
    GIB,
    UNKNOWN,
    format_bandwidth,
    format_flops,
    format_memory,
    format_memory_of,
    format_money,
    format_power,
    format_share,
    format_temperature,
    format_time,
    percent,
)

if TYPE_CHECKING:
    import pandas as pd

    from tpdpdash.cluster.detection import DetectedDevice, Detection, HostMemory
    from tpdpdash.cluster.spec import ClusterSpec, FigureSource

UUID_CHARS = 12
MAX_NAMED = 4
IDLE_BYTES = 2 * GIB
"""A GPU that holds less is called free: drivers and displays take some hundred MiB."""


def machine_line(detection: Detection) -> str:
    """What is here, in one line: "8 × H100-SXM5-80GB here" or "CPU, 2 cores, 23.4 GiB here, no NVIDIA GPU"."""
    host = detection.host
    names = sorted({d.name for d in detection.devices if d.name})
    if detection.devices:
        kinds = ", ".join(literal(name) for name in names) or t("unknown GPU")
        return t("{count} × {kinds} here", count=len(detection.devices), kinds=kinds)
    return t("{cpu} here  \nno NVIDIA GPU", cpu=cpu_line(host))


def cpu_line(host: HostMemory) -> str:
    """ "CPU, 2 cores, 23.4 GiB"."""
    memory = t("unknown memory") if not host.total_bytes else format_memory(host.total_bytes)
    return t("CPU, {cores} cores, {memory}", cores=host.cores or t("unknown"), memory=memory)


def here_sentence(detection: Detection) -> tuple[str, str]:
    """What is here: the sentence and the quieter second line (markdown)."""
    cpu = cpu_line(detection.host)
    if not detection.devices:
        why = t("No NVIDIA driver here") if detection.problem is None else literal(fault_text(detection.problem))
        plan = t("You can plan for any cluster, and rehearse on the CPU.")
        is_missing = detection.problem is None or detection.problem.code == "no_driver"
        if is_missing:
            return t("**No NVIDIA driver here: {cpu}.** {plan}", cpu=cpu, plan=plan), ""
        return t("**{why}.** {cpu}. {plan}", why=why.rstrip("."), cpu=cpu, plan=plan), ""
    kinds: dict[str, int] = {}
    for device in detection.devices:
        name = device.name or t("a GPU that is lost")
        kinds[name] = kinds.get(name, 0) + 1
    listed = ", ".join(f"{count} × {literal(name)}" for name, count in kinds.items())
    hidden = sum(device.visible is False for device in detection.devices)
    lost = [str(device.index) for device in detection.devices if device.lost]
    notes = [t("Driver {version}", version=literal(detection.driver_version or t(UNKNOWN))), cpu]
    if hidden:
        notes.append(t("{count} hidden by CUDA\\_VISIBLE\\_DEVICES", count=hidden))
    if lost:
        notes.append(t("lost: GPU {index}", index=", ".join(lost)))
    if detection.problem is not None:
        notes.append(literal(fault_text(detection.problem)))
    joined = t(", all joined by NVSwitch") if all(d.nvswitch for d in detection.devices) and len(kinds) == 1 else ""
    return f"**{listed}{joined}.** {_in_use(detection.devices)}".rstrip(), ". ".join(notes) + "."


def _in_use(devices: tuple[DetectedDevice, ...]) -> str:
    """Which GPUs hold more than an idle driver takes."""
    busy = [
        t("GPU {index} holds {memory}", index=device.index, memory=format_memory(device.used_bytes))
        for device in devices
        if device.used_bytes is not None and device.used_bytes > IDLE_BYTES
    ]
    free = sum(device.used_bytes is not None and device.used_bytes <= IDLE_BYTES for device in devices)
    if not busy:
        return t("All are free.") if free == len(devices) else ""
    return t("{n} free; {busy}.", n=free, busy=", ".join(busy[:MAX_NAMED]) + (" …" if len(busy) > MAX_NAMED else ""))


def device_rows(devices: tuple[DetectedDevice, ...]) -> list[dict[str, Any]]:
    """A row a GPU; a field that is not reported reads *unknown*."""
    return [
        {
            t("GPU"): str(device.index),
            t("Model"): plain(device.name or (t("lost") if device.lost else t(UNKNOWN))),
            "UUID": plain(device.uuid)[:UUID_CHARS] + "…" if device.uuid else t(UNKNOWN),
            t("Used"): _used_percent(device),
            t("Memory"): _memory_text(device),
            t("Load"): format_share(device.utilisation_frac),
            t("Power"): format_power(device.power_w),
            t("Temperature"): format_temperature(device.temperature_c),
            t("Links"): _links_text(device),
        }
        for device in devices
    ]


def _used_percent(device: DetectedDevice) -> float | None:
    """For the bar; nothing is drawn where it is unknown."""
    if device.used_bytes is None or not device.total_bytes:
        return None
    return percent(device.used_bytes / device.total_bytes)


def _links_text(device: DetectedDevice) -> str:
    return t(UNKNOWN) if device.nvlink_links is None else t("{n} NVLinks", n=device.nvlink_links)


def _memory_text(device: DetectedDevice) -> str:
    if device.unified_memory:
        return t("shares the host's memory")
    if device.total_bytes is None:
        return t("not reported by the driver")
    if device.used_bytes is None:
        return t("unknown of {total}", total=format_memory(device.total_bytes))
    return format_memory_of(device.used_bytes, device.total_bytes)


def link_table(devices: tuple[DetectedDevice, ...]) -> pd.DataFrame:
    """How each pair of GPUs is joined, as the plan takes it: NVLink, by a switch or directly, PCIe, or unknown."""
    import pandas as pd

    words = {"nvswitch": t("NVSwitch"), "nvlink": t("NVLink"), "pcie": t("PCIe"), None: t(UNKNOWN)}
    rows = []
    for i, kinds in enumerate(link_matrix(devices)):
        cells = {f"GPU {devices[j].index}": "·" if i == j else words[kind] for j, kind in enumerate(kinds)}
        rows.append({"": f"GPU {devices[i].index}", **cells})
    return pd.DataFrame(rows)


def live_metrics(detection: Detection) -> list[Metric]:
    """What the devices hold and draw in all; a sum says how many reported."""
    devices = detection.devices
    totals = [d.total_bytes for d in devices if d.total_bytes is not None]
    powers = [d.power_w for d in devices if d.power_w is not None]
    free = [d.free_bytes for d in devices if d.free_bytes is not None]
    return [
        Metric(label=t("GPUs"), value=str(len(devices)), note=t("{n} visible to CUDA", n=detection.num_visible)),
        _sum_metric(t("Memory"), totals, len(devices), format_memory),
        _sum_metric(t("Free now"), free, len(devices), format_memory),
        _sum_metric(t("Power"), powers, len(devices), format_power),
    ]


def _sum_metric(label: str, values: Sequence[float], count: int, written: Callable[[float], str]) -> Metric:
    if not values:
        return Metric(label=label, value=t(UNKNOWN), note=t("none of {count} reports it", count=count))
    note = t("all report") if len(values) == count else t("{n} of {count} report", n=len(values), count=count)
    value, _, unit = written(sum(values)).partition(" ")
    return Metric(label=label, value=value, unit=unit, note=note)


def spec_metrics(cluster: ClusterSpec) -> list[Metric]:
    """A described cluster in six cards."""
    device = cluster.device
    peak = device.peak_flops_per_s.get("bf16") or device.peak_flops_per_s.get("fp16")
    kind = t("bf16 dense") if "bf16" in device.peak_flops_per_s else t("fp16 dense")
    price = cluster.price_per_device_hour
    return [
        Metric(
            label=t("Devices"),
            value=f"{cluster.world_size:,}",
            note=t("{nodes} × {per_node}", nodes=f"{cluster.nodes:,}", per_node=cluster.devices_per_node),
        ),
        Metric(
            label=t("Usable memory"),
            value=format_memory(device.usable_bytes),
            unit=t("each"),
            note=t("nominal {memory}", memory=format_memory(device.memory_bytes)),
        ),
        Metric(label=t("Peak, {kind}", kind=kind), value=format_flops(peak), note=t("each")),
        Metric(
            label=plain(cluster.scale_up.name),
            value=format_bandwidth(cluster.scale_up.bytes_per_s),
            note=t("each, one direction, {n} devices", n=cluster.scale_up_domain_size),
        ),
        Metric(
            label=plain(cluster.network.name),
            value=format_bandwidth(cluster.network.bytes_per_s),
            note=t("each, one direction"),
        ),
        Metric(
            label=t("Price"),
            value=t(UNKNOWN) if price is None else format_money(price),
            note=t("no cost is shown") if price is None else t("per device and hour"),
        ),
    ]


_PEAKS = "peak_flops_per_s."
"""Before a precision, the key of its peak's source."""


def _peak_name(precision: str) -> str:
    """fp32 products run as TF32 where a GPU has it: the catalogue's figure is that one."""
    return t("Peak fp32 (TF32 where it has it), dense") if precision == "fp32" else t("Peak {p}, dense", p=precision)


def figures_table(cluster: ClusterSpec) -> pd.DataFrame:
    """Every figure that estimates use, its value, and where it comes from."""
    import pandas as pd

    device = cluster.device
    peaks = {f"{_PEAKS}{name}": format_flops(value) for name, value in device.peak_flops_per_s.items()}
    shown = {
        "memory_bytes": (t("Memory, nominal"), format_memory(device.memory_bytes)),
        "usable_bytes": (t("Memory, usable"), format_memory(device.usable_bytes)),
        "memory_bytes_per_s": (t("Memory bandwidth"), format_bandwidth(device.memory_bytes_per_s)),
        **{key: (_peak_name(key.removeprefix(_PEAKS)), text) for key, text in peaks.items()},
        "power_w": (t("Power limit"), format_power(device.power_w)),
        "gemm_efficiency": (t("Reached by large matrix products"), format_share(device.gemm_efficiency)),
        "gemm_half_k": (t("Inner size at half of that"), f"{device.gemm_half_k:,.0f}"),
        "gemm_half_area": (t("Output elements at half of that"), f"{device.gemm_half_area:,.0f}"),
        "attention_efficiency": (t("Reached by fused attention"), format_share(device.attention_efficiency)),
        "portable_attention_efficiency": (
            t("Reached by fused attention for older devices"),
            format_share(device.portable_attention_efficiency),
        ),
        "memory_efficiency": (t("Reached by element-wise operators"), format_share(device.memory_efficiency)),
        "launch_s": (t("Launch of one kernel"), format_time(device.launch_s)),
        "overhead_bytes": (t("Context and allocator"), format_memory(device.overhead_bytes)),
        "communicator_bytes": (t("Buffers of a communicator"), format_memory(device.communicator_bytes)),
        "cublas_workspace_bytes": (t("Workspace of a cuBLAS handle"), format_memory(device.cublas_workspace_bytes)),
        "te_workspace_bytes": (t("Workspace of Transformer Engine"), format_memory(device.te_workspace_bytes)),
        "host_bytes_per_s": (t("Copies to host memory"), format_bandwidth(device.host_bytes_per_s)),
    }
    rows = [(name, value, *_origin(_source_of(device.sources, key))) for key, (name, value) in shown.items()]
    for link, where in ((cluster.scale_up, t("inside a domain")), (cluster.network, t("between domains"))):
        name = f"{plain(link.name)}, {where}"
        rows.append((name, format_bandwidth(link.bytes_per_s), *_origin(link.source)))
        latency, reached = (_origin(_source_of(link.sources, key)) for key in ("latency_s", "efficiency"))
        rows.append((t("{name}: latency", name=name), format_time(link.latency_s), *latency))
        if link.message_s:
            taken = _origin(_source_of(link.sources, "message_s"))
            rows.append((t("{name}: each collective besides", name=name), format_time(link.message_s), *taken))
        rows.append((t("{name}: reached by large messages", name=name), format_share(link.efficiency), *reached))
    return pd.DataFrame(rows, columns=[t("Figure"), t("Value"), t("From"), t("Source")])


def _source_of(sources: Any, key: str) -> FigureSource | None:
    """The source of a field; the peaks share one where each has none of its own."""
    return sources.get(key) or sources.get(key.partition(".")[0])


def _origin(source: FigureSource | None) -> tuple[str, str]:
    return (t(source.kind), plain(source.source)) if source else ("", "")
