"""What a look at this machine found: plain facts, in which None means that nobody reported it."""

from __future__ import annotations

from dataclasses import dataclass

from tpdpdash.cluster.measured import MeasuredFile
from tpdpdash.faults import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The machine around the devices."""

    total_bytes: int | None
    """Memory of the machine, or of the container that we run in if that is less."""
    available_bytes: int | None
    """What can be taken now without swapping."""
    cores: int
    """Cores that this process may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A slice of a GPU. NVML reports no load for it."""

    uuid: str | None
    """MIG-…: the name that CUDA_VISIBLE_DEVICES takes."""
    name: str | None = None
    """NVML's name, with the profile in it."""
    total_bytes: int | None = None
    """Memory of the slice."""
    used_bytes: int | None = None
    """Taken by processes and the driver."""
    free_bytes: int | None = None
    """Left."""
    visible: bool = False
    """Would CUDA show it to a process here? It shows one slice at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedDevice:
    """One GPU as NVML reports it. Each field is None when NVML does not report it."""

    index: int
    """NVML's index."""
    cuda_index: int | None = None
    """N of cuda:N in this environment; None when hidden or unknown."""
    uuid: str | None = None
    """GPU-…."""
    name: str | None = None
    """NVML's product name."""
    pci_bus_id: str | None = None
    """domain:bus:device.function."""
    total_bytes: int | None = None
    """Memory of the device; None for one that shares the host's."""
    used_bytes: int | None = None
    """Taken by processes and the driver."""
    free_bytes: int | None = None
    """Left."""
    utilisation_frac: float | None = None
    """Share of the last sample period in which a kernel ran; None on a GPU that is cut into MIG slices."""
    power_w: float | None = None
    """Drawn now."""
    power_limit_w: float | None = None
    """Enforced limit."""
    temperature_c: float | None = None
    """Of the GPU."""
    nvlink_links: int | None = None
    """Active NVLinks."""
    nvlink_version: int | None = None
    """NVML's code of the generation of its links."""
    nvlink_peers: tuple[str, ...] | None = None
    """PCI ids of what its links lead to, GPUs or switches, each once."""
    nvswitch: bool | None = None
    """Do its links lead to a switch?"""
    pcie_generation: int | None = None
    """Highest that the card and its slot have in common."""
    pcie_width: int | None = None
    """Lanes that the card and its slot have in common."""
    visible: bool | None = None
    """Would CUDA show it to a process here? None: that depends on an order that CUDA does not tell."""
    lost: bool = False
    """Fallen off the bus."""
    unified_memory: bool = False
    """Shares the host's memory: what the host has available is what it has."""
    mig_mode: bool | None = None
    """Is it cut into slices?"""
    mig: tuple[MigInstance, ...] = ()
    """Its slices."""
    problem: Fault | None = None
    """Why nothing is known about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """Everything that one look found."""

    devices: tuple[DetectedDevice, ...]
    """In NVML's order; lost ones included."""
    driver_version: str | None
    """Of the NVIDIA driver; None without one."""
    problem: Fault | None
    """Why no GPU could be looked at; None when NVML answered."""
    host: HostMemory
    """The machine around them."""
    visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES as it is set; None when it is not."""
    num_visible: int = 0
    """Devices that CUDA would show to a process here."""
    measured: MeasuredFile | None = None
    """What `tpdpdash calibrate` has measured."""
    measured_faults: tuple[Fault, ...] = ()
    """Why the file of it cannot be used."""

    @property
    def healthy(self) -> tuple[DetectedDevice, ...]:
        """The GPUs that answered."""
        return tuple(device for device in self.devices if device.problem is None)

    @property
    def lost(self) -> tuple[int, ...]:
        """NVML indices of the GPUs that fell off the bus."""
        return tuple(device.index for device in self.devices if device.lost)
