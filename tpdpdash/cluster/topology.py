"""Which devices NVLink joins, from what NVML says about each device's links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tpdpdash.cluster.detection import DetectedDevice
from tpdpdash.units import GB

LinkKind = Literal["nvswitch", "nvlink", "pcie"]

# NVML's version code → GB/s of one link in one direction. Source: NVIDIA's whitepapers of Pascal (1), Volta and
# Turing (2), A100 (3.0), GA10x (3.1: 14.0625), Hopper (4), Blackwell (5).
LINK_GB_PER_S: dict[int, float] = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 14.0625, 6: 25.0, 7: 50.0}
GENERATIONS: dict[int, str] = {1: "1", 2: "2", 3: "2", 4: "3", 5: "3", 6: "4", 7: "5"}


def nvlink_bytes_per_s(device: DetectedDevice) -> float | None:
    """What all active links of a device carry in one direction; None when the generation is unknown."""
    rate = LINK_GB_PER_S.get(device.nvlink_version or 0)
    return None if rate is None or not device.nvlink_links else device.nvlink_links * rate * GB


def link_kind(first: DetectedDevice, second: DetectedDevice) -> LinkKind | None:
    """How two devices of one machine reach each other; None when a device does not report its links.

    A link to a switch reaches every other device on it; a bridge reaches the device that it names.
    """
    if first.nvlink_links == 0 or second.nvlink_links == 0:
        return "pcie"
    if first.nvlink_links is None or second.nvlink_links is None:
        return None
    if first.nvswitch and second.nvswitch:
        return "nvswitch"
    peers = (first.nvlink_peers or (), second.nvlink_peers or ())
    if second.pci_bus_id in peers[0] or first.pci_bus_id in peers[1]:
        return "nvlink"
    # Drivers without the question for the remote's type: an id that both lead to is a switch.
    return (
        "nvswitch" if set(peers[0]) & set(peers[1]) - _ids((first, second)) and not _bridged(first, second) else "pcie"
    )


def _ids(devices: Sequence[DetectedDevice]) -> set[str | None]:
    return {device.pci_bus_id for device in devices}


def _bridged(first: DetectedDevice, second: DetectedDevice) -> bool:
    """Do both say that their links lead to GPUs, not to a switch?"""
    return first.nvswitch is False and second.nvswitch is False


def link_matrix(devices: Sequence[DetectedDevice]) -> tuple[tuple[LinkKind | None, ...], ...]:
    """Row by column: how each pair of devices is linked; None on the diagonal and where it is unknown."""
    return tuple(tuple(None if a is b else link_kind(a, b) for b in devices) for a in devices)


def joined_by_nvlink(devices: Sequence[DetectedDevice]) -> bool | None:
    """Does NVLink join all of them, directly or over each other? None when that is not reported."""
    matrix = link_matrix(devices)
    if len(devices) < 2:
        links = devices[0].nvlink_links if devices else None
        return None if links is None else links > 0
    if any(kind is None for row, kinds in enumerate(matrix) for column, kind in enumerate(kinds) if row != column):
        return None
    reached, front = {0}, [0]
    while front:
        row = front.pop()
        near = {column for column, kind in enumerate(matrix[row]) if kind in ("nvlink", "nvswitch")} - reached
        reached |= near
        front.extend(near)
    return len(reached) == len(devices)
