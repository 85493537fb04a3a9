"""Preflight: what would go wrong, before anything starts. Checks are data; the screens put them into words."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from tpdpdash.cluster.detection import HostMemory
from tpdpdash.cluster.host import host_memory
from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.job import Job, as_builtin
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.rules import check_layout
from tpdpdash.run.folder import runs_root
from tpdpdash.units import MIB, format_memory

Level = Literal["ok", "warning", "failed"]
PROCESS_BYTES = 320 * MIB
"""Resident memory of a CPU rank before its model: torch and its imports (measured, torch 2.13: 318 MiB)."""
MIN_FREE_BYTES = 256 * MIB
"""Records and logs of a long run stay well below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    code: str
    """layout, world_size, devices, in_use, fits, platform, torch, cores, memory, runs_folder, disk; for Slurm: slurm,
    partition, nodes, shared_folder."""
    level: Level
    """ok; warning: it will run, but badly; failed: it would not run."""
    values: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """What the sentence needs."""
    faults: tuple[Fault, ...] = ()
    """What exactly is wrong, where that is a person's input."""


def preflight(
    job: Job,
    *,
    here: ClusterSpec | None = None,
    prediction: Mapping[str, Any] | None = None,
    root: Path | None = None,
    host: HostMemory | None = None,
    in_use: Sequence[Fault] = (),
    share_devices: bool = False,
    nodes: int = 1,
) -> list[Check]:
    """Everything that is looked at before a Job starts on this machine with the built-in worker.

    `here`: this machine's devices; None = no GPU. `prediction`: estimate of the job (the object of `estimate --json`),
    for its memory. `in_use`: by whom its devices are in use (run.claims.devices_in_use), which is no obstacle where
    they may be shared. `nodes`: machines that take part, of which this one can be looked at. Starts and writes nothing.
    """
    memory = host or host_memory()
    where = root or runs_root(os.environ)
    try:
        layout = job.layout()
    except InvalidInputError as wrong:
        return [Check(code="layout", level="failed", faults=wrong.faults), *machine_checks(where)]
    return [
        layout_check(job, layout),
        _world_check(job, layout, nodes),
        _cores_check(job, layout.world_size // nodes, memory),
        _memory_check(job, layout.world_size // nodes, memory, prediction),
        *_gpu_checks(job, layout.world_size // nodes, here, prediction),
        *_use_checks(job, in_use, share_devices),
        *machine_checks(where),
    ]


def num_nodes(job: Job) -> int:
    """Machines of a job: those of its cluster; one where the world only follows from the layout."""
    return 1 if job.world_follows_layout else job.cluster.nodes


def failed(checks: list[Check]) -> list[Fault]:
    """Faults that stand against a start, one a failed check that has none of its own."""
    found: list[Fault] = []
    for check in checks:
        if check.level == "failed":
            sizes = {key.removesuffix("_bytes"): _size(value) for key, value in check.values.items() if "_bytes" in key}
            own = Fault(code=f"preflight_{check.code}", field="run", values={**check.values, **sizes})
            found += check.faults or (own,)
    return found


def _size(value: object) -> str:
    return format_memory(value if isinstance(value, int | float) else None)


def layout_check(job: Job, layout: Layout) -> Check:
    """Whether the built-in worker can run it: the same rules that the worker itself asks."""
    faults = tuple(check_layout(job.model, as_builtin(job).training, job.cluster, layout))
    return Check(code="layout", level="failed" if faults else "ok", faults=faults)


def _world_check(job: Job, layout: Layout, nodes: int) -> Check:
    """One process a device, on as many machines as asked."""
    values = {"world_size": layout.world_size, "nodes": job.cluster.nodes, "devices": job.cluster.devices_per_node}
    has_nodes = job.world_follows_layout or job.cluster.nodes == nodes
    fits = job.world_follows_layout or layout.world_size <= nodes * job.cluster.devices_per_node
    return Check(code="world_size", level="ok" if has_nodes and fits else "failed", values=values)


def _gpu_checks(job: Job, ranks: int, here: ClusterSpec | None, prediction: Mapping[str, Any] | None) -> list[Check]:
    """Whether the GPUs that the job is for are the ones of this machine, and hold it; nothing to ask of a CPU job."""
    if job.cluster.device.is_cpu:
        return []
    values = {"ranks": ranks, "asked": job.cluster.device.name, "here": _devices_of(here)}
    same = here is not None and here.device.name == job.cluster.device.name
    enough = here is not None and here.devices_per_node >= ranks
    devices = Check(code="devices", level="ok" if same and enough else "failed", values=values)
    return [devices, *fit_checks(job, prediction)]


def fit_checks(job: Job, prediction: Mapping[str, Any] | None) -> list[Check]:
    """Whether the predicted peak fits the job's device; nothing where there is no prediction."""
    peak = _predicted_peak_bytes(prediction)
    if peak is None:
        return []
    usable = job.cluster.device.usable_bytes
    sizes = {"needed_bytes": peak, "available_bytes": usable}
    return [Check(code="fits", level="ok" if peak <= usable else "failed", values=sizes)]


def _use_checks(job: Job, in_use: Sequence[Fault], share_devices: bool) -> list[Check]:
    """Whether the job would have its GPUs for itself; CPU ranks share the cores with whoever is there."""
    if job.cluster.device.is_cpu:
        return []
    level: Level = "ok" if not in_use else "warning" if share_devices else "failed"
    return [Check(code="in_use", level=level, faults=tuple(in_use))]


def _devices_of(here: ClusterSpec | None) -> str:
    return "CPU" if here is None or here.device.is_cpu else f"{here.devices_per_node} × {here.device.name}"


def _cores_check(job: Job, ranks: int, host: HostMemory) -> Check:
    values = {"ranks": ranks, "cores": host.cores}
    shares = job.cluster.device.is_cpu and ranks > host.cores
    return Check(code="cores", level="warning" if shares else "ok", values=values)


def _memory_check(job: Job, ranks: int, host: HostMemory, prediction: Mapping[str, Any] | None) -> Check:
    """Host memory of all ranks: each process, and on the CPU its predicted peak too."""
    own = ranks * PROCESS_BYTES
    peak = _predicted_peak_bytes(prediction) if job.cluster.device.is_cpu else None
    needed = own if peak is None else ranks * max(PROCESS_BYTES, peak)
    values = {"needed_bytes": needed, "available_bytes": host.available_bytes}
    if host.available_bytes is None:
        return Check(code="memory", level="warning", values=values)
    return Check(code="memory", level="failed" if needed > host.available_bytes else "ok", values=values)


def _predicted_peak_bytes(prediction: Mapping[str, Any] | None) -> float | None:
    memory = (prediction or {}).get("memory")
    peak = memory.get("peak_bytes") if isinstance(memory, Mapping) else None
    return float(peak) if isinstance(peak, int | float) else None


def machine_checks(root: Path) -> list[Check]:
    """What every run needs of the machine that starts it."""
    is_linux = sys.platform.startswith("linux")
    has_torch = importlib.util.find_spec("torch") is not None  # looked up, not imported
    return [
        Check(code="platform", level="ok" if is_linux else "failed", values={"platform": sys.platform}),
        Check(code="torch", level="ok" if has_torch else "failed"),
        *_folder_checks(root),
    ]


def _folder_checks(root: Path) -> list[Check]:
    """The folder of runs, or the nearest one above it that stands: writable, and with room. A path that is too long
    shows at the start itself."""
    # os.path: where a path is too long or may not be looked at, Path.exists raises instead of saying False.
    stands = next(folder for folder in (root, *root.parents) if os.path.exists(folder))  # noqa: PTH110
    writable = stands.is_dir() and os.access(stands, os.W_OK | os.X_OK)
    free = shutil.disk_usage(stands).free
    disk = {"path": str(root), "free_bytes": free, "needed_bytes": MIN_FREE_BYTES}
    return [
        Check(code="runs_folder", level="ok" if writable else "failed", values={"path": str(root)}),
        Check(code="disk", level="ok" if free >= MIN_FREE_BYTES else "failed", values=disk),
    ]
