"""RunStatus: status.json as a type. Whoever answers for a run writes it (status_file), everyone else reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast, get_args

State = Literal["created", "starting", "running", "stopping", "finished", "failed", "stopped"]
STATES: tuple[str, ...] = get_args(State)
FINAL_STATES = frozenset({"finished", "failed", "stopped"})
PHASES = ("starting", "importing", "connecting", "building", "first step", "running")
"""How far a run is: that of the rank that is least far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFailure:
    """The first cause of a failure: one rank, or the agent."""

    code: str
    """rank_killed, rank_crashed, rank_signalled, rank_raised, rank_exited, rank_left_early, rank_silent,
    rank_lost_peers, rank_gone, agent_killed, agent_failed, supervisor_failed, batch_job_ended,
    job_ended_by_slurm."""
    rank: int | None = None
    """The rank that failed first; None when it was the agent."""
    signal: str | None = None
    """Name of the signal that ended it: SIGKILL."""
    exit_code: int | None = None
    """Its exit code where it ended by itself."""
    error: str | None = None
    """The exception in one line, its cause first: "ValueError: boom"."""
    traceback: str | None = None
    """The exception's traceback, or the last lines that the rank wrote."""
    others: tuple[tuple[int, str], ...] = ()
    """What the other ranks said after it: (rank, last line); they stopped because of the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerJob:
    """The job of a run in the queue of a cluster, as Slurm last told."""

    id: str
    """Its number, for squeue and scancel."""
    state: str
    """Slurm's own word: PENDING, RUNNING, NODE_FAIL."""
    partition: str = ""
    """Where it waits or runs."""
    reason: str = ""
    """Why it waits: Resources, Priority."""
    position: int | None = None
    """Its place among the waiting jobs of its partition, 1 = next; None where it does not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """One run as whoever answers for it sees it: its supervisor, or the watch on its batch job."""

    state: State
    """created → starting → running → stopping → finished, failed or stopped."""
    engine: str
    """local, hosts (ranks on other machines are started by hand) or slurm."""
    host: str
    """Machine of the supervisor."""
    boot_id: str
    """Boot of that machine: pids mean nothing in another one."""
    supervisor_pid: int
    """Process id of the supervisor."""
    supervisor_start_time: float
    """Its start in seconds since boot: tells it from a later process of the same id."""
    created: float
    """Wall time at which the folder was made."""
    name: str = ""
    """Name of the Job."""
    layout: str = ""
    """Short name of the layout: tp2-pp2-dp2."""
    world_size: int = 1
    """Ranks."""
    rehearsal: bool = False
    """Whether the Job was shrunken for this machine."""
    steps: int | None = None
    """Steps that the Job asks for."""
    started: float | None = None
    """Wall time at which the agent was started."""
    ended: float | None = None
    """Wall time of the end."""
    heartbeat: float | None = None
    """Wall time of the last write: readers on other hosts judge by its age."""
    exit_code: int | None = None
    """The agent's; negative: ended by that signal."""
    stop_requested_by: str | None = None
    """Who asked for the end: dashboard, cli, signal, deletion, slurm; unknown where the request cannot be read."""
    phase: str = PHASES[0]
    """One of PHASES."""
    ranks_by_phase: Mapping[str, int] = field(default_factory=dict)
    """How many ranks are in each phase."""
    last_step: int | None = None
    """The last step that any rank has finished."""
    first_failure: FirstFailure | None = None
    """The first cause, once the run has failed."""
    could_not_kill: tuple[int, ...] = ()
    """Processes that outlived SIGKILL (they hang in the kernel)."""
    scheduler: SchedulerJob | None = None
    """The job in Slurm's queue; None on other engines."""

    @property
    def is_final(self) -> bool:
        """Whether the run has ended."""
        return self.state in FINAL_STATES

    def to_json(self) -> dict[str, Any]:
        """status.json's object, as docs/reference.md names its fields."""
        document = asdict(self)
        supervisor = {"pid": document.pop("supervisor_pid"), "start_time": document.pop("supervisor_start_time")}
        return {"v": 1, "state": document.pop("state"), "supervisor": supervisor, **document}

    @classmethod
    def from_json(cls, document: Any) -> RunStatus:
        """Read status.json's object. Raises ValueError when a field is missing or of another kind."""
        if not isinstance(document, dict) or document.get("v") != 1:
            raise ValueError("status.json is not an object of version 1")
        supervisor = _table(document, "supervisor")
        failure = document.get("first_failure")
        known = {name: document[name] for name in _PLAIN if name in document}
        _check_kinds(known)
        if document.get("state") not in STATES:
            raise ValueError(f"status.json: state is {document.get('state')!r}")
        pid, start_time = supervisor.get("pid"), supervisor.get("start_time")
        if not _is_of_kind(pid, _WHOLE) or not _is_of_kind(start_time, _NUMBER):
            raise ValueError("status.json: supervisor.pid and start_time must be numbers")
        missing = [name for name in ("engine", "host", "boot_id", "created") if name not in known]
        if missing:
            raise ValueError(f"status.json: {missing[0]} is missing")
        known["could_not_kill"] = _pids(document.get("could_not_kill"))
        known["scheduler"] = _scheduler(document.get("scheduler"))
        return cls(
            state=document["state"],
            supervisor_pid=cast("int", pid),
            supervisor_start_time=float(cast("float", start_time)),
            first_failure=_failure(failure) if failure is not None else None,
            **known,
        )


_NUMBER, _TEXT, _WHOLE = (int, float), (str,), (int,)
_PLAIN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("created", "started", "ended", "heartbeat"), _NUMBER),
    **dict.fromkeys(("engine", "host", "boot_id", "name", "layout", "stop_requested_by", "phase"), _TEXT),
    **dict.fromkeys(("world_size", "steps", "exit_code", "last_step"), _WHOLE),
    "rehearsal": (bool,),
    "ranks_by_phase": (dict,),
}
_OPTIONAL = frozenset({"started", "ended", "heartbeat", "stop_requested_by", "steps", "exit_code", "last_step"})


_MAX_NUMBER = 1e11
"""Dates, steps and pids lie below; a screen could not show what lies beyond."""
_MAX_RANKS = 1 << 20


def _is_of_kind(value: object, kinds: tuple[type, ...]) -> bool:
    """Whether a value read from a file is of one of the kinds; a bool is no number, and a number is a possible one."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        return False
    return not isinstance(value, int | float) or abs(value) < _MAX_NUMBER  # False for NaN too


def _check_kinds(known: Mapping[str, object]) -> None:
    for name, value in known.items():
        if not _is_of_kind(value, _PLAIN[name]) and not (value is None and name in _OPTIONAL):
            raise ValueError(f"status.json: {name} is {str(value)[:100]}")
    size, by_phase = known.get("world_size", 1), known.get("ranks_by_phase", {})
    if not 1 <= cast("int", size) <= _MAX_RANKS:
        raise ValueError(f"status.json: world_size is {size}")
    if not all(_is_of_kind(count, _WHOLE) for count in cast("dict[str, object]", by_phase).values()):
        raise ValueError("status.json: ranks_by_phase does not count ranks")


def _pids(listed: object) -> tuple[int, ...]:
    if listed is None:
        return ()
    if not isinstance(listed, list) or not all(_is_of_kind(pid, _WHOLE) for pid in listed):
        raise ValueError("status.json: could_not_kill is not a list of processes")
    return tuple(listed)


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name)
    if not isinstance(table, dict):
        raise ValueError(f"status.json: {name} is not an object")
    return table


def _scheduler(table: Any) -> SchedulerJob | None:
    if table is None:
        return None
    kinds = {"id": _TEXT, "state": _TEXT, "partition": _TEXT, "reason": _TEXT}
    if not isinstance(table, dict) or not all(_is_of_kind(table.get(name), kind) for name, kind in kinds.items()):
        raise ValueError("status.json: scheduler is not a job of a queue")
    position = table.get("position")
    if position is not None and not _is_of_kind(position, _WHOLE):
        raise ValueError("status.json: scheduler.position is not a number")
    return SchedulerJob(**{name: table[name] for name in kinds}, position=position)


def _failure(table: Any) -> FirstFailure:
    if not isinstance(table, dict) or not isinstance(table.get("code"), str):
        raise ValueError("status.json: first_failure is not an object with a code")
    kinds = {"rank": _WHOLE, "signal": _TEXT, "exit_code": _WHOLE, "error": _TEXT, "traceback": _TEXT}
    for name, kind in kinds.items():
        if table.get(name) is not None and not _is_of_kind(table[name], kind):
            raise ValueError(f"status.json: first_failure.{name} is {str(table[name])[:100]}")
    return FirstFailure(code=table["code"], **{name: table.get(name) for name in kinds}, others=_others(table))


def _others(table: Mapping[str, Any]) -> tuple[tuple[int, str], ...]:
    listed = table.get("others") or []
    pairs = listed if isinstance(listed, list) else [listed]
    if not all(isinstance(pair, list) and list(map(type, pair)) == [int, str] for pair in pairs):
        raise ValueError("status.json: first_failure.others is not a list of ranks and lines")
    return tuple((rank, line) for rank, line in pairs)
