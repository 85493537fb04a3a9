"""The first cause of a failed run, from what each rank left behind. Pure; standard library only.

When one rank dies, the others fail too: their connections close, or the agent ends them. Times alone cannot tell
(error.json counts whole seconds), so a cause of a rank's own goes before a
consequence, and then the earlier goes first.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from tpdpdash.faults import Fault
from tpdpdash.run.rank_logs import MAX_ERROR
from tpdpdash.run.status import FirstFailure

_CONSEQUENCE = re.compile(
    r"connection (closed|reset|refused|aborted)|broken pipe|connect(ion)? to peer|closed by peer|recvValue failed"
    r"|remote process exited|ncclRemoteError|NCCL communicator was aborted|failed to (recv|send)|Socket Timeout"
    r"|timed out (waiting|after)|Watchdog caught collective"
    r"|DistNetworkError|DistStoreError|connectFullMesh|Application timeout|SignalException",
    re.IGNORECASE,
)
_AGENT_SIGNALLED = re.compile(r"SignalException: Process \d+ got signal: (?P<number>\d+)")
_SRUN_TELLS = re.compile(r"^srun: error: (?P<what>\S+: task.*)$", re.MULTILINE)
_NAMES_ERROR = re.compile(r"\w*(Error|Exception)\b|errno|failed|fatal|cannot")
_CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL"})
_MAX_LINES = 40
SILENT_S = 15.0
"""A rank tells something every second; one that told nothing for longer before its peers gave up kept them waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended, as far as it is known."""

    rank: int
    """Which rank."""
    exit_code: int | None = None
    """As the agent reported it; negative: ended by that signal."""
    error: str | None = None
    """Last line of the exception it raised."""
    traceback: str | None = None
    """The exception's traceback, or the last lines of its stderr."""
    error_t: float | None = None
    """Wall time of the exception."""
    died_t: float | None = None
    """Wall time at which its process was seen to be gone."""
    last_t: float | None = None
    """Wall time of the last thing it told."""
    was_ended_by_agent: bool = False
    """Whether the agent's own signal ended it, after another rank had failed."""

    @property
    def time(self) -> float:
        """When it went wrong, as closely as is known."""
        return min((t for t in (self.error_t, self.died_t) if t is not None), default=float("inf"))

    @property
    def signal_name(self) -> str | None:
        """The signal that ended it."""
        return signal_name(self.exit_code)

    @property
    def has_failed(self) -> bool:
        """Whether it ended otherwise than by finishing."""
        return self.error is not None or self.exit_code not in (None, 0)


def signal_name(exit_code: int | None) -> str | None:
    """Name of the signal behind a negative exit code; a shell's 128 + n counts too."""
    if exit_code is None or -64 <= exit_code < 0:
        number = -exit_code if exit_code else 0
    else:
        number = exit_code - 128 if 128 < exit_code <= 128 + 64 else 0
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if number else None


def first_failure(
    ends: Sequence[RankEnd], *, agent_exit: int | None, agent_died_t: float | None = None, agent_log: str = ""
) -> FirstFailure | None:
    """The first cause; None where nothing failed."""
    failed = [end for end in ends if end.has_failed]
    by_weight = sorted(failed, key=lambda end: (_weight(end), end.time, end.rank))
    first = by_weight[0] if by_weight else None
    agent_signal = signal_name(agent_exit) or _caught_signal(agent_log)
    if agent_signal is not None and not _precedes(first, agent_died_t):
        return FirstFailure(code="agent_killed", signal=agent_signal, exit_code=agent_exit, error=_on_node(agent_log))
    left = _left_early(ends, by_weight)
    if left is not None:
        return FirstFailure(
            code="rank_left_early", rank=left.rank, exit_code=left.exit_code, others=_others(by_weight, left)
        )
    silent = _fell_silent(ends, by_weight)
    if silent is not None:
        return FirstFailure(code="rank_silent", rank=silent.rank, others=_others(by_weight, silent))
    if first is not None:
        return _failure_of(first, _others(by_weight, first))
    if agent_exit in (None, 0):
        return None
    gone = [] if agent_log.strip() else [end for end in ends if end.died_t is not None]
    if gone:  # the agent ended because a rank did, and could not say so: its disk was full
        return FirstFailure(code="rank_gone", rank=min(gone, key=lambda end: end.time).rank)
    return _agent_failure(agent_exit, agent_log)


def _weight(end: RankEnd) -> int:
    """0 a cause of its own, 1 a lost connection, 2 ended by the agent."""
    if end.was_ended_by_agent:
        return 2
    if end.error is not None and end.signal_name in (None, "SIGABRT"):
        return 1 if _CONSEQUENCE.search(end.error) else 0
    return 0


def _precedes(first: RankEnd | None, agent_died_t: float | None) -> bool:
    """Whether a rank's own failure came before the agent's death; an interrupted agent interrupts its ranks."""
    if first is None or first.signal_name is not None or first.error is None:
        return False
    if _CONSEQUENCE.search(first.error) or first.error == "KeyboardInterrupt":
        return False
    return agent_died_t is None or first.time < agent_died_t


def _left_early(ends: Sequence[RankEnd], failed: Sequence[RankEnd]) -> RankEnd | None:
    """A rank that ended in peace before the others lost their connection to it."""
    if not failed or _weight(failed[0]) == 0:
        return None
    gone = [end for end in ends if not end.has_failed and end.died_t is not None and end.died_t <= failed[0].time]
    return min(gone, key=lambda end: end.time, default=None)


def _fell_silent(ends: Sequence[RankEnd], failed: Sequence[RankEnd]) -> RankEnd | None:
    """The rank that told nothing while the others, all of whom only lost or missed somebody, waited for it."""
    if not failed or _weight(failed[0]) != 1:
        return None
    silent = [end for end in ends if end.last_t is not None and end.last_t < failed[0].time - SILENT_S]
    return min(silent, key=lambda end: end.last_t or 0.0) if 0 < len(silent) < len(ends) else None


def _others(failed: Sequence[RankEnd], first: RankEnd) -> tuple[tuple[int, str], ...]:
    return tuple(
        (end.rank, end.error or end.signal_name or f"exit {end.exit_code}") for end in failed if end is not first
    )


def _failure_of(end: RankEnd, others: tuple[tuple[int, str], ...]) -> FirstFailure:
    name = end.signal_name
    if _weight(end) == 1:
        code = "rank_lost_peers"
    elif name in _CRASHES:
        code = "rank_crashed"
    elif name == "SIGKILL":
        code = "rank_killed"
    elif name is not None:
        code = "rank_signalled"
    elif end.error is None:
        code = "rank_exited"
    else:
        code = "rank_raised"
    return FirstFailure(
        code=code,
        rank=end.rank,
        signal=name,
        exit_code=end.exit_code,
        error=end.error,
        traceback=end.traceback,
        others=others,
    )


def exit_of_agents(srun_exit: int | None, ends: Sequence[RankEnd]) -> int | None:
    """Exit code that counts of several machines' agents. srun tells the highest: that of an agent which srun itself
    ended by SIGTERM would hide the 1 of the one whose rank had failed."""
    own = any(end.has_failed and not end.was_ended_by_agent for end in ends)
    return 1 if own and signal_name(srun_exit) == "SIGTERM" else srun_exit


def first_words(agent_logs: Sequence[str]) -> str:
    """What the agents of several machines said of the cause: those that were ended because another failed know none."""
    others = [log for log in agent_logs if _caught_signal(log) is None]
    return "\n".join(others if any(log.strip() for log in others) else agent_logs)


def _caught_signal(agent_log: str) -> str | None:
    """The signal that torchrun caught and ended by: its own exit code is 1 then."""
    caught = _AGENT_SIGNALLED.search(agent_log)
    return signal_name(-int(caught["number"])) if caught is not None else None


def _on_node(agent_log: str) -> str | None:
    """Which node's agent ended first, where srun tells: "n1: task 1: Killed"."""
    told = _SRUN_TELLS.search(agent_log)
    return told["what"] if told is not None else None


def _agent_failure(agent_exit: int | None, agent_log: str) -> FirstFailure:
    """torchrun itself failed: its first line that names an error (the last line, if none does), and its last lines."""
    lines = [line.strip() for line in agent_log.splitlines() if line.strip()]
    error = next((line for line in lines if _NAMES_ERROR.search(line)), lines[-1] if lines else None)
    tail = "\n".join(agent_log.splitlines()[-_MAX_LINES:])
    return FirstFailure(
        code="agent_failed", exit_code=agent_exit, error=error and error[:MAX_ERROR], traceback=tail or None
    )


def failure_fault(failure: FirstFailure) -> Fault:
    """The first cause as a fault, for `text.fault_text`."""
    values = {"signal": failure.signal, "exit_code": failure.exit_code, "error": failure.error, "rank": failure.rank}
    has_node = failure.code == "agent_killed" and failure.error is not None
    code = "agent_killed_on_node" if has_node else failure.code
    return Fault(code=code, field="run", value=failure.rank, values=values)
