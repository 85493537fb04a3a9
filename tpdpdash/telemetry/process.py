"""What /proc says about a process: start time, resident memory, boot. Standard library only, Linux only."""

from __future__ import annotations

import os
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


def peak_resident_bytes() -> int | None:
    """The most resident memory that this program has had (proc(5), VmHWM); None where /proc does not tell.

    Not getrusage's ru_maxrss: that one survives exec, so a rank would show the peak of the agent that started it.
    """
    try:
        status = Path("/proc/self/status").read_bytes()
        return int(status[status.index(b"VmHWM:") + 6 :].split(maxsplit=1)[0]) * _KIB
    except (OSError, IndexError, ValueError):
        return None
