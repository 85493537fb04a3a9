"""CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: which devices CUDA would show, and in which order.

The rules are those of the CUDA programming guide and of torch.cuda's own parser: the list ends at the first entry that
names no device (-1, an index out of range, an unknown or ambiguous UUID, another kind of entry); an entry that
comes twice empties the list; an index is read as C's strtol reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tpdpdash.cluster.detection import DetectedDevice

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleList:
    """CUDA_VISIBLE_DEVICES, taken apart. At most one of the fields holds entries."""

    is_set: bool = False
    """Without it, every device is visible."""
    indices: tuple[int, ...] = ()
    """Positions in CUDA's own order, up to the first negative one."""
    uuids: tuple[str, ...] = ()
    """GPU-… names or unique beginnings of them."""
    mig_uuids: tuple[str, ...] = ()
    """MIG-… names."""


def parse_visible(text: str | None) -> VisibleList:
    """Take the variable's text apart; None = not set."""
    if text is None:
        return VisibleList()
    entries = text.split(",")
    if text.startswith("GPU-"):
        return VisibleList(is_set=True, uuids=_with_prefix(entries, "GPU-"))
    if text.startswith("MIG-"):
        return VisibleList(is_set=True, mig_uuids=_with_prefix(entries, "MIG-"))
    indices: list[int] = []
    for entry in entries:
        index = _index(entry)
        if index in indices:
            return VisibleList(is_set=True)
        if index < 0:
            break
        indices.append(index)
    return VisibleList(is_set=True, indices=tuple(indices))


def _with_prefix(entries: Sequence[str], prefix: str) -> tuple[str, ...]:
    """The entries up to the first of another kind; none at all when one comes twice."""
    names: list[str] = []
    for entry in entries:
        if entry in names:
            return ()
        if not entry.startswith(prefix):
            break
        names.append(entry)
    return tuple(names)


def _index(entry: str) -> int:
    """As strtol: the number that the entry begins with; -1 when it begins with none."""
    number = re.match(r"[+-]?[0-9]+", entry.strip())
    return int(number.group()) if number else -1


def cuda_order(devices: Sequence[DetectedDevice], environ: Mapping[str, str]) -> tuple[int, ...] | None:
    """NVML indices of the healthy devices in CUDA's order; None when CUDA does not tell it.

    By PCI id with CUDA_DEVICE_ORDER=PCI_BUS_ID, and with devices of one kind in any case; FASTEST_FIRST, the default,
    sorts different devices by a rule of its own.
    """
    healthy = [device for device in devices if device.problem is None]
    by_pci = environ.get(ORDER_VARIABLE) == "PCI_BUS_ID"
    if not by_pci and len({device.name for device in healthy}) > 1:
        return None
    if len(healthy) > 1 and any(device.pci_bus_id is None for device in healthy):
        return None
    return tuple(device.index for device in sorted(healthy, key=lambda d: _pci_key(d.pci_bus_id)))


def _pci_key(pci_bus_id: str | None) -> tuple[int, ...]:
    """domain:bus:device.function as numbers."""
    return tuple(int(part, 16) for part in re.split(r"[:.]", pci_bus_id or "0"))


def mark_visible(
    devices: Sequence[DetectedDevice], environ: Mapping[str, str]
) -> tuple[tuple[DetectedDevice, ...], int]:
    """The devices with `visible` and `cuda_index` filled in, and how many devices CUDA would show."""
    asked = parse_visible(environ.get(VARIABLE))
    slices = _visible_slices(devices, asked)
    if asked.mig_uuids or slices:
        return tuple(_with_slices(device, slices) for device in devices), min(len(slices), 1)
    whole = [device for device in devices if device.problem is None and not device.mig_mode]
    order = cuda_order(whole, environ)
    if asked.uuids:
        shown = _by_uuid(asked.uuids, whole)
    elif not asked.is_set:
        shown = list(order) if order is not None else [device.index for device in whole]
    else:
        return _by_index(devices, whole, asked.indices, order)
    positions = {index: position for position, index in enumerate(shown)}
    known = asked.uuids or order is not None
    return tuple(
        replace(d, visible=d.index in positions, cuda_index=positions.get(d.index) if known else None) for d in devices
    ), len(shown)


def _by_index(
    devices: Sequence[DetectedDevice],
    whole: Sequence[DetectedDevice],
    indices: tuple[int, ...],
    order: tuple[int, ...] | None,
) -> tuple[tuple[DetectedDevice, ...], int]:
    """A list of indices: it ends at the first that is out of range."""
    in_range = []
    for index in indices:
        if index >= len(whole):
            break
        in_range.append(index)
    if order is None and len(in_range) not in (0, len(whole)):
        present = {device.index for device in whole}
        return tuple(replace(d, visible=None if d.index in present else False) for d in devices), len(in_range)
    if order is None:
        shown = {device.index for device in whole} if in_range else set()
        return tuple(replace(d, visible=d.index in shown) for d in devices), len(shown)
    positions = {order[index]: position for position, index in enumerate(in_range)}
    return tuple(replace(d, visible=d.index in positions, cuda_index=positions.get(d.index)) for d in devices), len(
        positions
    )


def _by_uuid(uuids: tuple[str, ...], whole: Sequence[DetectedDevice]) -> list[int]:
    """NVML indices by UUID or unique beginning; the list ends at the first that fits none or several."""
    shown: list[int] = []
    for uuid in uuids:
        found = [device.index for device in whole if device.uuid is not None and device.uuid.startswith(uuid)]
        if len(found) != 1:
            break
        if found[0] in shown:
            return []
        shown.append(found[0])
    return shown


def _visible_slices(devices: Sequence[DetectedDevice], asked: VisibleList) -> tuple[str, ...]:
    """UUIDs of the MIG slices that CUDA would show: one at most.

    Named by UUID; or, where every GPU is cut into slices, the first one.
    """
    known = [slice_.uuid for device in devices for slice_ in device.mig if slice_.uuid is not None]
    if asked.mig_uuids:
        first = asked.mig_uuids[0]
        found = [uuid for uuid in known if uuid.startswith(first)]
        return tuple(found) if len(found) == 1 else ()
    whole = [device for device in devices if device.problem is None and not device.mig_mode]
    if whole or not known or asked.uuids or (asked.is_set and asked.indices[:1] != (0,)):
        return ()
    return (known[0],)


def _with_slices(device: DetectedDevice, slices: tuple[str, ...]) -> DetectedDevice:
    """A device of which only the named slices are visible."""
    return replace(
        device,
        visible=False,
        mig=tuple(replace(slice_, visible=slice_.uuid in slices) for slice_ in device.mig),
    )
