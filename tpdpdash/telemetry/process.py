"""What /proc says about a process: start time, resident memory, boot. Standard library only, Linux only."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KIB = 1024


def start_time_s(pid: int) -> float | None:
    """Seconds between boot and the start of `pid` (proc(5), stat field 22); None when there is no such process.

    Together with the pid it names one process for as long as the machine is up: unlike a creation date it
    does not move when the clock is set.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields_after_name = stat[stat.rindex(b")") + 2 :].split()
    return int(fields_after_name[19]) / _TICKS_PER_S


def process_state(pid: int) -> str | None:
    """The one-letter state of proc(5): R, S, D, T (stopped), Z (zombie); None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return chr(stat[stat.rindex(b")") + 2])


def boot_id() -> str:
    """Names this boot of this machine; empty where /proc does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def resident_bytes() -> int | None:
    """Resident memory of this process now; None where /proc does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


def peak_resident_bytes() -> int:
    """The most resident memory that this process has had (getrusage(2): KiB on Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
