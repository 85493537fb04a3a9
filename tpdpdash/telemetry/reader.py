"""RunReader: follows the telemetry of a run and keeps its last steps, in bounded memory.

Memory: rings of at most rows.MAX_CELLS rank × step cells; a longer run keeps its tail and says so (`dropped_steps`).
Time: the supervisor's rollup is read first where there is one, then what the ranks wrote since; a refresh reads new
bytes only, and never more than telemetry.files allows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tpdpdash.telemetry.files import RankFiles
from tpdpdash.telemetry.grid import RankGrid, RankInfo
from tpdpdash.telemetry.profiling import PROFILE_EVENTS
from tpdpdash.telemetry.record import telemetry_dir
from tpdpdash.telemetry.rings import Rings, rows_of
from tpdpdash.telemetry.rollup import MAX_EVENTS, MAX_PROCESSES, drop_first, profile_key
from tpdpdash.telemetry.rollup_reader import read_rollup
from tpdpdash.telemetry.rows import MAX_TIMELINE_STEPS, kept_steps, step_row
from tpdpdash.telemetry.snapshot import Heartbeat, ProfileNote, Telemetry

__all__ = ["Heartbeat", "RankInfo", "RunReader", "Telemetry"]

MAX_ACTIONS = 100_000
"""Actions of all timelines that are kept, whatever the number of steps: about 20 MB."""


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
        self._is_open = False
        self._begin()

    def _begin(self) -> None:
        self._files = RankFiles(telemetry_dir(self.folder), self.world_size)
        self._clear()

    def _clear(self) -> None:
        self._rings = Rings(self.world_size, kept_steps(self.world_size))
        self._new_rows: list[bytes] = []
        self._states: dict[int, _RankState] = {}
        self._grid: RankGrid | None = None
        self._events: deque[tuple[float, int, str]] = deque(maxlen=MAX_EVENTS)
        self._timelines: dict[int, dict[int, tuple[Any, ...]]] = {}
        self._num_actions = 0
        self._profiles: dict[tuple[int, int], ProfileNote] = {}
        self._non_finite = 0

    def refresh(self) -> bool:
        """Read what is new; whether anything was. Files that cannot be read now are read the next time."""
        is_news = not self._is_open and self._open_rollup()
        self._is_open = True
        news = self._files.read()
        for ranks in news.begun_anew.values():
            self._forget(ranks)
        for _, record in self._files.records(news):
            self._take(record)
        self._put_rows()
        return is_news or bool(news.begun_anew) or any(news.lines.values())

    def _open_rollup(self) -> bool:
        """Begin with what the supervisor has parsed; whether there was anything. Without it all files are read."""
        rollup = read_rollup(telemetry_dir(self.folder), self.world_size)
        if rollup is None:
            return False
        try:
            self._files.resume(rollup.points, rollup.ranks_of)
        except (OSError, ValueError):  # files were replaced since: nothing of the rollup is theirs
            self._begin()
            return False
        self._files.bad_lines.update(rollup.bad_lines)
        told = filter(None, map(self._files.record_of, rollup.lines))
        for record in (*told, *rollup.timelines):
            self._take(record)
        for rank, lost in rollup.lost_records.items():
            self._states.setdefault(rank, _RankState()).lost_records = lost
        self._rings.put(rollup.rows)
        self._rings.num_steps = rollup.num_steps
        self._non_finite = rollup.non_finite
        return True

    def _put_rows(self) -> None:
        self._rings.put(rows_of(b"".join(self._new_rows)))
        self._new_rows = []

    def _forget(self, ranks: set[int]) -> None:
        """A file began anew: nothing of the former run is mixed with the new one."""
        self._grid = None
        for rank in ranks:
            self._states.pop(rank, None)
        self._rings.forget(sorted(ranks))
        for by_rank in self._timelines.values():
            for rank in ranks:
                self._num_actions -= len(by_rank.pop(rank, ()))
        self._events = deque((told for told in self._events if told[1] not in ranks), maxlen=MAX_EVENTS)
        self._profiles = {key: note for key, note in self._profiles.items() if note.rank not in ranks}
        if not self._states:
            self._clear()

    def _take(self, record: Mapping[str, Any]) -> None:
        state = self._states.setdefault(record["rank"], _RankState())
        lost = record.get("lost_records", 0)
        state.lost_records = max(state.lost_records, lost) if isinstance(lost, int) else state.lost_records
        _TAKE[record["kind"]](self, state, record)

    # ------------------------------------------------------------------------------- record kinds

    def _take_hello(self, state: _RankState, record: Mapping[str, Any]) -> None:
        if len(state.processes) < MAX_PROCESSES:
            state.processes.add((record["host"], record["pid"]))
        local_rank = record.get("local_rank")
        self._grid = None
        state.info = RankInfo(
            rank=record["rank"],
            pid=record["pid"],
            host=record["host"],
            local_rank=local_rank if isinstance(local_rank, int) else record["rank"],
            coords=MappingProxyType(record["coords"]),
            backend=str(record.get("backend") or "")[:100],
            device=str(record.get("device") or "")[:100],
        )

    def _take_event(self, state: _RankState, record: Mapping[str, Any]) -> None:
        if record["name"] in PROFILE_EVENTS:
            self._take_profile(record)
        else:
            state.last_event = record["name"]
        self._events.append((float(record["t"]), record["rank"], record["name"]))

    def _take_profile(self, record: Mapping[str, Any]) -> None:
        key = profile_key(record)
        if key is None:
            return
        step, rank = key
        reason = str(record.get("error") or "")[:1000]
        note = ProfileNote(rank=rank, step=step, t=float(record["t"]), event=record["name"], reason=reason)
        self._profiles[key] = note
        drop_first(self._profiles)

    def _take_heartbeat(self, state: _RankState, record: Mapping[str, Any]) -> None:
        collectives = record.get("collectives")
        state.heartbeat = Heartbeat(
            t=float(record["t"]),
            step=record.get("step"),
            phase=record.get("phase") or "",
            last_collective=record.get("last_collective"),
            collectives=collectives if isinstance(collectives, int) else 0,
        )

    def _take_step(self, _: _RankState, record: Mapping[str, Any]) -> None:
        self._new_rows.append(step_row(record))
        self._non_finite += record.get("loss_is_finite") is False

    def _take_timeline(self, _: _RankState, record: Mapping[str, Any]) -> None:
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
        steps, told = self._rings.by_step()
        states = self._states
        if self._grid is None:
            self._grid = RankGrid({rank: state.info for rank, state in states.items() if state.info is not None})
        unreadable = len(self._files.unreadable.keys() & self._files.tails.keys())
        bad = self._files.bad_lines + Counter(too_long=self._files.too_long, unreadable=unreadable)
        return Telemetry(
            world_size=self.world_size,
            ranks=self._grid,
            steps=steps,
            **told,
            heartbeats=MappingProxyType({r: s.heartbeat for r, s in sorted(states.items()) if s.heartbeat is not None}),
            events=tuple(sorted(self._events)),
            last_event=MappingProxyType({rank: s.last_event for rank, s in sorted(states.items()) if s.last_event}),
            timelines=MappingProxyType(
                {s: MappingProxyType(dict(self._timelines[s])) for s in sorted(self._timelines)}
            ),
            num_steps=self._rings.num_steps,
            bad_lines=MappingProxyType({kind: count for kind, count in sorted(bad.items()) if count}),
            lost_records=sum(state.lost_records for state in states.values()),
            skipped_bytes=self._files.skipped_bytes,
            restarts=self._files.restarts,
            duplicated_ranks=frozenset(rank for rank, state in states.items() if len(state.processes) > 1),
            non_finite_losses=self._non_finite,
            profiles=tuple(note for _, note in sorted(self._profiles.items())),
        )


_TAKE = {
    "hello": RunReader._take_hello,
    "event": RunReader._take_event,
    "heartbeat": RunReader._take_heartbeat,
    "step": RunReader._take_step,
    "timeline": RunReader._take_timeline,
}
