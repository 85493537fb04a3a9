"""What the logs of an agent and of its ranks say of how each rank ended. Pure; standard library only."""

from __future__ import annotations

import re
import signal

_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout.*|NCCL communicator was aborted.*|.*ncclRemoteError.*"
)
"""What NCCL's watchdog writes before it aborts a rank that waited in vain."""
_REPORTED = re.compile(
    r"rank\s*: (?P<rank>\d+) \(local_rank: \d+\)\s+exitcode\s*: (?P<exit>-?\d+) \(pid: (?P<pid>\d+)\)"
)
_REPORTED_SHORT = re.compile(r"failed \(exitcode: (?P<exit>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: (?P<pid>\d+)\)")
_CLOSED = re.compile(r"Sending process (?P<pid>\d+) closing signal SIGTERM")
_FORCED = re.compile(r"Unable to shutdown process (?P<pid>\d+) via")
_TRACEBACK = "Traceback (most recent call last):"
_RAISED_FROM = "The above exception was the direct cause of the following exception:"
_SOURCE_LINE = re.compile(r"\[/\S+\.(cc|cpp|cu|h|hpp):\d+\] ")
MAX_ERROR = 1000


def reported_exits(agent_log: str, *, is_only_machine: bool = True) -> tuple[dict[int, int], set[int]]:
    """Exit code by rank, and the ranks that the agent itself ended, from what one machine's agent wrote.

    Of several machines only the agent's last report counts: its other lines number the ranks within the machine.

    The agent signals only ranks that still live: one that ended by SIGTERM without the agent's was somebody else's.
    """
    exits: dict[int, int] = {}
    pids: dict[int, int] = {}
    for pattern in (_REPORTED_SHORT, _REPORTED) if is_only_machine else (_REPORTED,):
        for match in pattern.finditer(agent_log):
            exits[int(match["rank"])] = int(match["exit"])
            pids[int(match["pid"])] = int(match["rank"])
    ended = set()
    for pattern, exit_code in ((_CLOSED, -signal.SIGTERM), (_FORCED, -signal.SIGKILL)):
        ranks = {pids[int(match["pid"])] for match in pattern.finditer(agent_log) if int(match["pid"]) in pids}
        ended |= {rank for rank in ranks if exits[rank] == exit_code}
    return exits, ended


def traceback_in(stderr: str) -> tuple[str, str] | None:
    """The last traceback of a rank's stderr and its last line: ("ValueError: boom", whole text)."""
    start = stderr.rfind(_TRACEBACK)
    if start < 0:
        return None
    lines = stderr[start:].splitlines()
    end = next((i for i, line in enumerate(lines[1:], 1) if line and not line[0].isspace()), len(lines) - 1)
    return lines[end].strip(), "\n".join(lines[: end + 1])


def watchdog_error(stderr: str) -> str | None:
    """Why NCCL's watchdog aborted a rank; None where it was not the watchdog."""
    found = _WATCHDOG.search(stderr)
    return _one_line(found[0])[:MAX_ERROR] if found else None


def told_error(error: str, traceback: str) -> str:
    """An exception in one line, its cause first where it was raised from one.

    A pipeline wraps whatever fails in a stage ("Failed to run stage backward" and the shapes of its tensors), a lost
    connection too: only the cause tells a rank's own failure from that of its peer.
    """
    told, cause = _one_line(error), _raised_from(traceback)
    return (f"{_one_line(cause)} ({told})" if cause is not None else told)[:MAX_ERROR]


def _raised_from(traceback: str) -> str | None:
    """Last line of the exception with which a chain of `raise … from …` began; None where there is no chain."""
    found, rest = None, traceback
    while (start := rest.rfind(_TRACEBACK)) > 0 and rest[:start].rstrip().endswith(_RAISED_FROM):
        rest = rest[:start].rstrip().removesuffix(_RAISED_FROM)
        cause = traceback_in(rest)
        found = cause[0] if cause is not None else found
    return found


def _one_line(error: str) -> str:
    """Without line ends, and without where in torch's own sources it was raised."""
    return _SOURCE_LINE.sub("", " ".join(error.split()))
