"""The machine around the devices: memory and cores, as far as this process may use them."""

from __future__ import annotations

import os
from pathlib import Path

from tpdpdash.cluster.detection import HostMemory

CGROUP = Path("/sys/fs/cgroup")


def host_memory(cgroup: Path = CGROUP) -> HostMemory:
    """Memory and cores of this machine, or of the container (cgroup v2) that we run in if that has less."""
    import psutil

    memory = psutil.virtual_memory()
    total, available = int(memory.total), int(memory.available)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is not None and limit < total:
        total = limit
        available = min(available, max(limit - (used or 0), 0))
    return HostMemory(total_bytes=total, available_bytes=available, cores=_cores())


def _cores() -> int:
    """Cores that this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _number(path: Path) -> int | None:
    """The whole number in a file; None when there is no such file or it says "max"."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() else None
