"""What NVML finds on this machine: every GPU with every figure that its driver reports.

Any single question may go unanswered (unsupported, forbidden, a GPU that fell off the bus): then that figure is
unknown, and everything else is still told. The environment is handed in.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from tpdpdash.cluster.catalogue import devices_by_nvml_name, is_unified_memory
from tpdpdash.cluster.detection import DetectedDevice, Detection, HostMemory, MigInstance
from tpdpdash.cluster.host import host_memory
from tpdpdash.cluster.visible import VARIABLE, mark_visible
from tpdpdash.faults import Fault

__all__ = ["DetectedDevice", "Detection", "HostMemory", "MigInstance", "detect_devices"]

MILLIWATTS, PERCENT = 1000.0, 100.0


def detect_devices(environ: Mapping[str, str], host: HostMemory | None = None) -> Detection:
    """Look at this machine's GPUs. Never raises for what a driver answers; `problem` says why there are none."""
    import pynvml

    surroundings = host or host_memory()
    asked = environ.get(VARIABLE)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        problem = _init_problem(pynvml, error)
        return Detection(devices=(), driver_version=None, problem=problem, host=surroundings, visible_devices=asked)
    try:
        count = _Questions(pynvml)(pynvml.nvmlDeviceGetCount) or 0
        found = [_device(pynvml, index, surroundings) for index in range(count)]
        devices, num_visible = mark_visible(found, environ)
        return Detection(
            devices=devices,
            driver_version=_Questions(pynvml)(pynvml.nvmlSystemGetDriverVersion),
            problem=None if devices else Fault(code="no_gpu", field="devices", values={}),
            host=surroundings,
            visible_devices=asked,
            num_visible=num_visible,
        )
    finally:
        _Questions(pynvml)(pynvml.nvmlShutdown)


def _init_problem(pynvml: ModuleType, error: Any) -> Fault:
    """Why NVML did not start, as a fault that helps."""
    codes = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_driver",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "driver_not_loaded",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver_version_mismatch",
        pynvml.NVML_ERROR_NO_PERMISSION: "driver_no_permission",
    }
    values = {"reason": str(error), "user": _user()}
    return Fault(code=codes.get(error.value, "driver_failed"), field="devices", values=values)


def _user() -> str:
    """The user's name for a message; its number where it has no name (containers)."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        import os

        return str(os.getuid())


class _Questions:
    """Asks one NVML handle: an answer, or None when it has none; remembers whether the GPU turned out to be lost."""

    def __init__(self, pynvml: ModuleType) -> None:
        self._pynvml = pynvml
        self.last_error: Any = None
        self.lost = False

    def __call__(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None when NVML refuses it or answers with bytes that are no text."""
        try:
            return question(*arguments)
        except self._pynvml.NVMLError as error:
            self.last_error = error
            self.lost = self.lost or error.value == self._pynvml.NVML_ERROR_GPU_IS_LOST
        except UnicodeDecodeError as error:
            self.last_error = error
        return None

    def refused_as(self, code: int) -> bool:
        """Was the last refusal this NVML error?"""
        return getattr(self.last_error, "value", None) == code


def _device(pynvml: ModuleType, index: int, host: HostMemory) -> DetectedDevice:
    """One GPU, with what it answers."""
    ask = _Questions(pynvml)
    handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        code = "gpu_lost" if ask.lost else "gpu_unreachable"
        problem = Fault(code=code, field="devices", value=index, values={"reason": str(ask.last_error)})
        return DetectedDevice(index=index, visible=False, lost=ask.lost, problem=problem)
    facts = _identity(pynvml, ask, handle, host) | _readings(pynvml, ask, handle) | _nvlinks(pynvml, ask, handle)
    lost = Fault(code="gpu_lost", field="devices", value=index, values={"reason": "GPU is lost"}) if ask.lost else None
    return DetectedDevice(index=index, lost=ask.lost, problem=lost, **facts)


def _identity(pynvml: ModuleType, ask: _Questions, handle: Any, host: HostMemory) -> dict[str, Any]:
    """Which GPU it is, and its memory."""
    name = ask(pynvml.nvmlDeviceGetName, handle)
    pci = ask(pynvml.nvmlDeviceGetPciInfo, handle)
    total, used, free = _memory(pynvml, ask, handle)
    unified = name is not None and is_unified_memory(name)
    if _is_made_up(total, name, unified, host):
        total = used = free = None
    if unified:
        # Programs take from the same memory: what a driver calls free may long be in use.
        used, free = None, host.available_bytes
    return {
        "uuid": ask(pynvml.nvmlDeviceGetUUID, handle),
        "name": name,
        "pci_bus_id": None if pci is None else _text(pci.busId),
        "total_bytes": total,
        "used_bytes": used,
        "free_bytes": free,
        "unified_memory": unified,
        "pcie_generation": ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "pcie_width": ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    }


def _readings(pynvml: ModuleType, ask: _Questions, handle: Any) -> dict[str, Any]:
    """Load, power, temperature, and the slices that it is cut into."""
    mode = ask(pynvml.nvmlDeviceGetMigMode, handle)
    mig_mode = None if mode is None else bool(mode[0])
    # NVML answers 0 % for a busy GPU in MIG mode, where it answers at all.
    load = None if mig_mode else ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power = ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    limit = _first(ask, handle, pynvml.nvmlDeviceGetEnforcedPowerLimit, pynvml.nvmlDeviceGetPowerManagementLimit)
    sensor = pynvml.NVML_TEMPERATURE_GPU
    temperature = _first(
        ask,
        handle,
        lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, sensor),
        lambda gpu: pynvml.nvmlDeviceGetTemperatureV(gpu, sensor),
    )
    return {
        "utilisation_frac": None if load is None else load.gpu / PERCENT,
        "power_w": None if power is None else power / MILLIWATTS,
        "power_limit_w": None if limit is None else limit / MILLIWATTS,
        "temperature_c": None if temperature is None else float(temperature),
        "mig_mode": mig_mode,
        "mig": _slices(pynvml, handle) if mig_mode else (),
    }


def _first(ask: _Questions, handle: Any, *questions: Callable[[Any], Any]) -> Any:
    """The answer to the first question that is answered."""
    for question in questions:
        answer = ask(question, handle)
        if answer is not None:
            return answer
    return None


def _memory(pynvml: ModuleType, ask: _Questions, handle: Any) -> tuple[int | None, int | None, int | None]:
    """(total, used, free) in bytes. The second version leaves the driver's own reserve out of `used`."""
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    memory = memory or ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    if memory is None or memory.total == 0:
        return None, None, None
    return int(memory.total), int(memory.used), int(memory.free)


def _is_made_up(total: int | None, name: str | None, unified: bool, host: HostMemory) -> bool:
    """Does a GPU claim more memory than the machine has, without being known to have memory of its own?"""
    if total is None or host.total_bytes is None or total <= host.total_bytes:
        return False
    return unified or name is None or not devices_by_nvml_name(name)


def _nvlinks(pynvml: ModuleType, ask: _Questions, handle: Any) -> dict[str, Any]:
    """Active links, their version, what they lead to, and whether that is a switch.

    A GPU has fewer links than NVML knows, and refuses the first that it has not as an invalid argument.
    """
    active, answered, version, switch = 0, False, None, None
    peers: list[str] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            if ask.refused_as(pynvml.NVML_ERROR_INVALID_ARGUMENT) or ask.lost:
                break
            continue
        answered = True
        if state not in (pynvml.NVML_NVLINK_STATE_ACTIVE, pynvml.NVML_NVLINK_STATE_SLEEP):
            continue
        active += 1
        version = version or ask(pynvml.nvmlDeviceGetNvLinkVersion, handle, link)
        kind = ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind is not None:
            switch = bool(switch) or kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        remote = ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        if remote is not None and _text(remote.busId):
            peers.append(_text(remote.busId))
    if not answered:
        return {}
    return {
        "nvlink_links": active,
        "nvlink_version": version,
        "nvlink_peers": tuple(dict.fromkeys(peers)) if peers or not active else None,
        "nvswitch": switch,
    }


def _slices(pynvml: ModuleType, handle: Any) -> tuple[MigInstance, ...]:
    """The MIG slices of a GPU."""
    ask = _Questions(pynvml)
    found = []
    for index in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        slice_ = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if slice_ is None:
            continue
        total, used, free = _memory(pynvml, ask, slice_)
        found.append(
            MigInstance(
                uuid=ask(pynvml.nvmlDeviceGetUUID, slice_),
                name=ask(pynvml.nvmlDeviceGetName, slice_),
                total_bytes=total,
                used_bytes=used,
                free_bytes=free,
            )
        )
    return tuple(found)


def _text(value: bytes | str) -> str:
    """A field of an NVML structure as text."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
