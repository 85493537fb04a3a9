"""Who computes on this machine's GPUs now: the processes that NVML names, with what the kernel says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import psutil

from tpdpdash.cluster.detection import DetectedDevice, Detection


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that computes on a GPU."""

    device: str
    """device_key of the GPU, or of its slice."""
    pid: int
    """Process id, as the driver counts."""
    name: str | None
    """Its program; None where that process is not seen from here (another container)."""
    user: str | None
    """Whose it is; None where it is not seen from here."""
    used_bytes: int | None
    """Memory that it holds there; None where the driver does not say."""


def device_key(device: DetectedDevice) -> str:
    """What tells this GPU from every other: its UUID, else its place on the bus, else its number."""
    return device.uuid or device.pci_bus_id or f"gpu-{device.index}"


def rank_devices(detection: Detection, num_ranks: int) -> tuple[str, ...]:
    """Keys of the devices that so many ranks take here, one each: cuda:0, cuda:1, … as CUDA would show them.

    Where CUDA's order is not known, all that it may show: any of them may be taken.
    """
    slices = [part.uuid for device in detection.healthy for part in device.mig if part.visible and part.uuid]
    if slices:
        return tuple(slices[:num_ranks])
    shown = [device for device in detection.healthy if device.visible is not False]
    ordered = {device.cuda_index: device for device in shown if device.cuda_index is not None}
    if len(ordered) == len(shown):
        shown = [ordered[index] for index in sorted(ordered)][:num_ranks]
    return tuple(device_key(device) for device in shown)


def device_processes(detection: Detection, keys: Sequence[str]) -> tuple[DeviceProcess, ...]:
    """Processes that compute on these devices now. Never raises for what a driver answers: where it refuses, none."""
    places = _places(detection, keys)
    if not places:
        return ()
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(found for key, place in places.items() for found in _on(pynvml, key, place))
    finally:
        pynvml.nvmlShutdown()


def _places(detection: Detection, keys: Sequence[str]) -> Mapping[str, tuple[int, str | None]]:
    """(NVML index, UUID of the slice, if it is one) by key."""
    whole = {device_key(device): (device.index, None) for device in detection.healthy}
    parts = {part.uuid: (device.index, part.uuid) for device in detection.healthy for part in device.mig if part.uuid}
    known = {**whole, **parts}
    return {key: known[key] for key in keys if key in known}


def _on(pynvml: ModuleType, key: str, place: tuple[int, str | None]) -> list[DeviceProcess]:
    """The processes of one device."""
    index, slice_uuid = place
    try:
        handle = (
            pynvml.nvmlDeviceGetHandleByIndex(index)
            if slice_uuid is None
            else pynvml.nvmlDeviceGetHandleByUUID(slice_uuid)
        )
        listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return []
    return [_process(key, entry) for entry in listed]


def _process(key: str, entry: Any) -> DeviceProcess:
    name, user = _seen(entry.pid)
    used = entry.usedGpuMemory
    return DeviceProcess(
        device=key, pid=entry.pid, name=name, user=user, used_bytes=None if used is None else int(used)
    )


def _seen(pid: int) -> tuple[str | None, str | None]:
    """(program, user); neither for a process that has ended or lives in another container."""
    try:
        process = psutil.Process(pid)
        return process.name(), process.username()
    except psutil.Error:
        return None, None
