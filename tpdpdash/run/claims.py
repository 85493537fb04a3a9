"""Which run holds which device: claims in the user's state directory, one small file a device and run.

A claim is an exclusive lock (flock) on its file, inherited by the run's supervisor: the kernel lets it go with that
process, so that a run that died in whatever way blocks nobody. CPU ranks claim nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from tpdpdash.cluster.detection import Detection
from tpdpdash.cluster.occupants import DeviceProcess, device_key, device_processes, rank_devices
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.run.folder import RunFolder, read_json
from tpdpdash.run.processes import belongs_to_run
from tpdpdash.state_dir import made_private, state_dir
from tpdpdash.units import format_memory

FIELD = "devices"
_LOCK_LIMIT_S = 10.0
_ENDING = ".claim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One device that a living run holds."""

    device: str
    """Key of the device (cluster.occupants.device_key)."""
    run_id: str
    """The run."""
    folder: str
    """Its folder."""


def devices_in_use(detection: Detection, num_ranks: int) -> tuple[Fault, ...]:
    """By whom the devices that so many ranks would take are in use now: a fault a run or process, none where free."""
    keys = rank_devices(detection, num_ranks)
    try:
        claims = living_claims(keys)
    except (OSError, Timeout) as wrong:
        values = {"reason": str(wrong)}
        return (Fault(code="claims_unreadable", field=FIELD, value=str(_claims_dir()), values=values),)
    holders = {claim.run_id for claim in claims}
    strangers = [
        process
        for process in device_processes(detection, keys)
        if not any(belongs_to_run(process.pid, run_id) for run_id in holders)
    ]
    names = _names(detection)
    return (*_claim_faults(claims, names), *_process_faults(strangers, names))


def living_claims(devices: Sequence[str]) -> list[Claim]:
    """The claims on these devices whose run still lives. Raises OSError, or filelock.Timeout."""
    if not devices or not _claims_dir().is_dir():
        return []
    with _one_at_a_time():
        return _living(devices)


@contextmanager
def claimed(devices: Sequence[str], folder: RunFolder, *, shares: bool) -> Iterator[tuple[int, ...]]:
    """Claim devices for a run: descriptors for its supervisor to inherit, closed here at the end.

    Raises InvalidInputError when another run holds one of them and they are not to be shared, OSError and
    filelock.Timeout.
    """
    descriptors: list[int] = []
    try:
        if devices:
            made_private(made_private(state_dir()) / "devices")
            with _one_at_a_time():
                held = [] if shares else _living(devices)
                if held:
                    raise InvalidInputError(_claim_faults(held, {}))
                for device in devices:  # one by one: where a later one fails, those before it are let go below
                    descriptors.append(_claim(device, folder))
        yield tuple(descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _claims_dir() -> Path:
    return state_dir() / "devices"


def _one_at_a_time() -> FileLock:
    """Over all claims, for the moment in which they are looked at or made."""
    return FileLock(_claims_dir() / "all.lock", timeout=_LOCK_LIMIT_S)


def _claim(device: str, folder: RunFolder) -> int:
    """Make and lock one claim; the descriptor that holds it."""
    safe = re.sub(r"[^A-Za-z0-9-]", "_", device)
    path = _claims_dir() / f"{safe}.{folder.run_id}{_ENDING}"
    record = {"v": 1, "device": device, "run_id": folder.run_id, "folder": str(folder.path)}
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, json.dumps(record).encode())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _living(devices: Sequence[str]) -> list[Claim]:
    """Claims on these devices that are held; those of dead runs are cleared away. Under the lock over all claims."""
    found = []
    for path in sorted(_claims_dir().glob(f"*{_ENDING}")):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()  # nobody holds it: its run has ended
        except BlockingIOError:
            claim = _read(path)
            if claim is not None and claim.device in devices:
                found.append(claim)
        finally:
            os.close(descriptor)
    return found


def _read(path: Path) -> Claim | None:
    """What a claim says; None where its disk was full."""
    try:
        record = read_json(path)
        return Claim(device=str(record["device"]), run_id=str(record["run_id"]), folder=str(record["folder"]))
    except (ValueError, KeyError, TypeError):
        return None


def _names(detection: Detection) -> Mapping[str, str]:
    """What a person calls a device: GPU and NVML's number."""
    whole = {device_key(device): f"GPU {device.index}" for device in detection.healthy}
    return whole | {
        part.uuid: f"GPU {device.index} {part.uuid}" for device in detection.healthy for part in device.mig if part.uuid
    }


def _claim_faults(claims: Sequence[Claim], names: Mapping[str, str]) -> list[Fault]:
    """One fault a run."""
    by_run: dict[str, list[str]] = {}
    for claim in claims:
        by_run.setdefault(claim.run_id, []).append(names.get(claim.device, claim.device))
    return [
        Fault(code="devices_held_by_run", field=FIELD, value=", ".join(devices), values={"run": run_id})
        for run_id, devices in by_run.items()
    ]


def _process_faults(processes: Sequence[DeviceProcess], names: Mapping[str, str]) -> list[Fault]:
    """One fault a process, with all its devices."""
    by_pid: dict[int, list[DeviceProcess]] = {}
    for process in processes:
        by_pid.setdefault(process.pid, []).append(process)
    return [_process_fault(found, ", ".join(names.get(p.device, p.device) for p in found)) for found in by_pid.values()]


def _process_fault(found: Sequence[DeviceProcess], devices: str) -> Fault:
    first, sizes = found[0], [process.used_bytes for process in found if process.used_bytes is not None]
    used = sum(sizes) if sizes else None
    values = {"pid": first.pid, "used_bytes": used, "memory": format_memory(used)}
    known = first.name is not None
    who = {"name": first.name, "user": first.user} if known else {}
    code = "devices_held_by_process" if known else "devices_held_by_unseen_process"
    return Fault(code=code, field=FIELD, value=devices, values={**values, **who})
