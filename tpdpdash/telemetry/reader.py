"""RunReader: follows the telemetry of a run and keeps its last steps, in bounded memory.

Memory: rings of at most MAX_CELLS rank × step cells; a longer run keeps its tail and says so (`dropped_steps`).
Time: a refresh reads new bytes only, and never more than telemetry.tail allows per file.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tpdpdash.telemetry.parse import BadLineError, parse_line
from tpdpdash.telemetry.record import PHASES, is_rank_file, telemetry_dir
from tpdpdash.telemetry.snapshot import Heartbeat, RankInfo, Telemetry
from tpdpdash.telemetry.tail import FileTail

__all__ = ["Heartbeat", "RankInfo", "RunReader", "Telemetry"]

MAX_STEPS = 2000
MAX_CELLS = 1_000_000
MAX_TIMELINE_STEPS = 8
MAX_EVENTS = 2000
MAX_ACTIONS = 400_000
"""Actions of all timelines that are kept, whatever the number of steps: about 80 MB."""
MAX_PROCESSES = 8
"""Processes that claim to be one rank: two already are one too many."""
_SCALARS = ("t", "step_s", "cpu_s", "tokens", "loss", "memory_bytes", "peak_memory_bytes", "regions")
_OTHER = PHASES.index("other")


@dataclass(slots=True)
class _RankState:
    """What is kept of a rank besides the rings."""

    info: RankInfo | None = None
    started: float = 0.0
    heartbeat: Heartbeat | None = None
    last_event: str = ""
    lost_records: int = 0
    processes: set[tuple[str, int]] = field(default_factory=set)


class RunReader:
    """Follows one run. Not thread-safe: one reader, one thread at a time."""

    def __init__(self, folder: Path, world_size: int) -> None:
        """`folder` is the run folder, `world_size` what its status says."""
        self.folder = folder
        self.world_size = world_size
        self._tails: dict[str, FileTail] = {}
        self._ranks_of_file: dict[str, set[int]] = {}
        self._restarts_seen: Counter[str] = Counter()
        self._bad: Counter[str] = Counter()
        self._unreadable: set[str] = set()
        self._capacity = max(16, min(MAX_STEPS, MAX_CELLS // max(1, world_size)))
        self._clear()

    def _clear(self) -> None:
        shape = (self.world_size, self._capacity)
        self._column_step = np.full(self._capacity, -1, dtype=np.int64)
        self._scalars = {name: np.full(shape, np.nan) for name in _SCALARS}
        self._phase_s = np.full((*shape, len(PHASES)), np.nan)
        self._states: dict[int, _RankState] = {}
        self._events: deque[tuple[float, int, str]] = deque(maxlen=MAX_EVENTS)
        self._timelines: dict[int, dict[int, tuple[Any, ...]]] = {}
        self._num_actions = 0
        self._num_steps = 0
        self._non_finite = 0

    def refresh(self) -> bool:
        """Read what is new; whether anything was. Files that cannot be read now are read the next time."""
        try:
            names = [name for name in os.listdir(telemetry_dir(self.folder)) if is_rank_file(name)]  # noqa: PTH208
        except OSError:
            return False
        read = {name: lines for name in sorted(names) if (lines := self._read(name)) is not None}
        # All files that began anew are forgotten first: a step of the former run would keep its column from a new one.
        begun_anew = [name for name in read if self._tails[name].restarts > self._restarts_seen[name]]
        for name in begun_anew:
            self._restarts_seen[name] = self._tails[name].restarts
            self._forget(self._ranks_of_file.pop(name, set()))
        for name, lines in read.items():
            for line in lines:
                self._take_line(name, line)
        return bool(begun_anew) or any(read.values())

    def _read(self, name: str) -> list[bytes] | None:
        """New lines of one file; None when it cannot be read now."""
        tail = self._tails.setdefault(name, FileTail(telemetry_dir(self.folder) / name))
        try:
            lines = tail.read()
        except OSError:
            self._unreadable.add(name)
            return None
        self._unreadable.discard(name)
        return lines

    def _forget(self, ranks: set[int]) -> None:
        """A file began anew: nothing of the former run is mixed with the new one."""
        for rank in ranks:
            self._states.pop(rank, None)
            self._phase_s[rank] = np.nan
            for ring in self._scalars.values():
                ring[rank] = np.nan
        for by_rank in self._timelines.values():
            for rank in ranks:
                self._num_actions -= len(by_rank.pop(rank, ()))
        is_empty = (self._column_step >= 0) & np.isnan(self._scalars["step_s"]).all(axis=0)
        self._column_step[is_empty] = -1
        self._num_steps -= int(is_empty.sum())
        if not self._states:
            self._clear()

    def _take_line(self, name: str, line: bytes) -> None:
        try:
            record = parse_line(line, self.world_size)
        except BadLineError as bad:
            self._bad[bad.kind] += 1
            return
        rank = record["rank"]
        self._ranks_of_file.setdefault(name, set()).add(rank)
        state = self._states.setdefault(rank, _RankState())
        lost = record.get("lost_records", 0)
        state.lost_records = max(state.lost_records, lost) if isinstance(lost, int) else state.lost_records
        _TAKE[record["kind"]](self, state, record)

    # ------------------------------------------------------------------------------- record kinds

    def _take_hello(self, state: _RankState, record: dict[str, Any]) -> None:
        if len(state.processes) < MAX_PROCESSES:
            state.processes.add((record["host"], record["pid"]))
        cost, local_rank = record.get("region_cost_s"), record.get("local_rank")
        state.info = RankInfo(
            rank=record["rank"],
            pid=record["pid"],
            host=record["host"],
            local_rank=local_rank if isinstance(local_rank, int) else record["rank"],
            coords=MappingProxyType(record["coords"]),
            backend=str(record.get("backend") or "")[:100],
            device=str(record.get("device") or "")[:100],
            region_cost_s=float(cost) if isinstance(cost, float) else float("nan"),
        )

    def _take_event(self, state: _RankState, record: dict[str, Any]) -> None:
        state.last_event = record["name"]
        self._events.append((float(record["t"]), record["rank"], record["name"]))

    def _take_heartbeat(self, state: _RankState, record: dict[str, Any]) -> None:
        collectives = record.get("collectives")
        state.heartbeat = Heartbeat(
            t=float(record["t"]),
            step=record.get("step"),
            phase=record.get("phase") or "",
            last_collective=record.get("last_collective"),
            collectives=collectives if isinstance(collectives, int) else 0,
        )

    def _take_step(self, _: _RankState, record: dict[str, Any]) -> None:
        step, rank = record["step"], record["rank"]
        column = self._column_of(step)
        if column is None:
            return
        for name, ring in self._scalars.items():
            value = record.get(name)
            ring[rank, column] = np.nan if value is None else float(value)
        phases = np.zeros(len(PHASES))
        for name, seconds in record["phase_s"].items():
            phases[PHASES.index(name) if name in PHASES else _OTHER] += seconds
        self._phase_s[rank, column] = phases
        self._non_finite += record.get("loss_is_finite") is False

    def _column_of(self, step: int) -> int | None:
        """The ring's column of a step, cleared when a newer step takes it; None for a step already dropped."""
        column = step % self._capacity
        held = int(self._column_step[column])
        if held > step:
            return None
        if held < step:
            self._column_step[column] = step
            self._phase_s[:, column] = np.nan
            for ring in self._scalars.values():
                ring[:, column] = np.nan
            self._num_steps += 1
        return column

    def _take_timeline(self, _: _RankState, record: dict[str, Any]) -> None:
        step, rank, actions = record["step"], record["rank"], tuple(map(tuple, record["actions"]))
        kept = self._timelines.setdefault(step, {})
        self._num_actions += len(actions) - len(kept.get(rank, ()))
        kept[rank] = actions
        while len(self._timelines) > MAX_TIMELINE_STEPS or (
            self._num_actions > MAX_ACTIONS and len(self._timelines) > 1
        ):
            dropped = self._timelines.pop(min(self._timelines))
            self._num_actions -= sum(map(len, dropped.values()))

    # ------------------------------------------------------------------------------------- answer

    def snapshot(self) -> Telemetry:
        """Everything that is kept, as it is now (copies: a later refresh does not change it)."""
        order = np.argsort(self._column_step, kind="stable")
        order = order[self._column_step[order] >= 0]
        rings = {name: ring[:, order] for name, ring in self._scalars.items()}
        states = self._states
        too_long = sum(tail.too_long for tail in self._tails.values())
        bad = self._bad + Counter(too_long=too_long, unreadable=len(self._unreadable))
        return Telemetry(
            world_size=self.world_size,
            ranks=MappingProxyType({rank: s.info for rank, s in sorted(states.items()) if s.info is not None}),
            steps=self._column_step[order],
            phase_s=self._phase_s[:, order],
            **rings,
            heartbeats=MappingProxyType({r: s.heartbeat for r, s in sorted(states.items()) if s.heartbeat is not None}),
            events=tuple(sorted(self._events)),
            last_event=MappingProxyType({rank: s.last_event for rank, s in sorted(states.items()) if s.last_event}),
            timelines=MappingProxyType(
                {s: MappingProxyType(dict(self._timelines[s])) for s in sorted(self._timelines)}
            ),
            num_steps=self._num_steps,
            bad_lines=MappingProxyType({kind: count for kind, count in sorted(bad.items()) if count}),
            lost_records=sum(state.lost_records for state in states.values()),
            skipped_bytes=sum(tail.skipped for tail in self._tails.values()),
            restarts=sum(tail.restarts for tail in self._tails.values()),
            duplicated_ranks=frozenset(rank for rank, state in states.items() if len(state.processes) > 1),
            non_finite_losses=self._non_finite,
        )


_TAKE = {
    "hello": RunReader._take_hello,
    "event": RunReader._take_event,
    "heartbeat": RunReader._take_heartbeat,
    "step": RunReader._take_step,
    "timeline": RunReader._take_timeline,
}
