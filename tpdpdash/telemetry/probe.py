"""The probe: a few functions by which a training script tells where its time goes. Standard library only.

    probe = Probe.from_env(coords={"tp": 0, "pp": 1, "dp": 0}, backend="gloo", device="cpu")
    with probe.step(1) as step:
        with probe.phase("forward"):
            ...
            with probe.phase("tp"):      # counted as tp, not as forward
                dist.all_reduce(x)
        step.tokens, step.loss = 8192, 5.6

Times are exclusive: at any moment exactly one region is running, the innermost. The probe never synchronises,
never communicates, and never raises into the script because a record could not be written.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from tpdpdash.telemetry.process import boot_id, peak_resident_bytes, resident_bytes, start_time_s
from tpdpdash.telemetry.profiling import Profiling
from tpdpdash.telemetry.record import COLLECTIVE_PHASES, MAX_ACTIONS, PHASES, RUN_DIR_VARIABLE, RecordWriter, rank_file
from tpdpdash.telemetry.regions import NO_ACTION, OUTSIDE, Action, Region, State, Timed

HEARTBEAT_S = 1.0
MAX_TRACEBACK_CHARS = 20_000
_HERE = str(Path(__file__).parent)
_OTHER = PHASES.index("other")


class Step:
    """One optimizer step: fill in what is known; the record is written when the `with` block ends without error."""

    __slots__ = (
        "_cpu_start",
        "_probe",
        "_regions_start",
        "_start",
        "loss",
        "memory_bytes",
        "peak_memory_bytes",
        "read_loss",
        "step",
        "t",
        "tokens",
    )

    def __init__(self, probe: Probe, step: int) -> None:
        self._probe = probe
        self.step = step
        self.tokens: float | None = None
        """Tokens of this rank's replica in this step: global batch · seq_len / dp."""
        self.loss: float | None = None
        """Loss of the step; None off the last stage."""
        self.read_loss: Callable[[], float | None] | None = None
        """In place of `loss`: asked for it when the record is written, on a GPU a step later."""
        self.memory_bytes: int | None = None
        """Device memory held; the process's resident memory where None."""
        self.peak_memory_bytes: int | None = None
        """The most device memory held in this step; the process's peak where None."""

    def __enter__(self) -> Step:
        state, profiling = self._probe._state, self._probe._profiling
        if state.step is None:
            self._probe.event("first_step")
        if profiling.wanted is not None:
            profiling.begin(self.step)
        self.t = time.time()
        self._cpu_start = time.process_time()
        self._regions_start = state.num_regions
        state.step = self.step
        state.in_step = True
        state.seconds = [0.0] * (len(PHASES) + 1)
        self._start = state.since = state.clock()
        self._probe._begin_step(self, self._start)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        state = self._probe._state
        now = state.clock()
        state.seconds[state.current] += now - state.since
        state.since = now
        if kind is None:
            self._probe._write_step(self, now - self._start, list(state.seconds))
        state.in_step = False
        if self._probe._profiling.open is not None:
            self._probe._profiling.end(is_whole=kind is None)

    def drop(self) -> None:
        """End it without a record."""
        self._probe._state.in_step = False
        self._probe._profiling.end(is_whole=False)

    def fields(self, step_s: float, seconds: list[float]) -> dict[str, object]:
        """The step record's own fields (docs/reference.md) but the loss, and the process time beside the wall time."""
        on_cpu = self._probe.device.startswith("cpu")
        memory = resident_bytes() if self.memory_bytes is None and on_cpu else number(self.memory_bytes)
        peak = peak_resident_bytes() if self.peak_memory_bytes is None and on_cpu else number(self.peak_memory_bytes)
        return {
            "step": self.step,
            **time_fields(step_s, seconds),
            "tokens": number(self.tokens),
            "memory_bytes": memory,
            "peak_memory_bytes": peak,
            "cpu_s": round(time.process_time() - self._cpu_start, 6),
            "regions": self._probe._state.num_regions - self._regions_start,
        }

    def loss_fields(self) -> dict[str, object]:
        """The loss, and whether it is a number: JSON has no NaN."""
        raw = self.loss if self.read_loss is None else self.read_loss()
        loss = number(raw)
        return {"loss": loss, "loss_is_finite": raw is None or loss is not None}


def number(value: object) -> float | None:
    """A finite number that JSON has: scripts hand over tensors and numpy's scalars. None for anything else."""
    if value is None or type(value) is int:
        return value
    try:
        plain = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several elements
        return None
    return plain if math.isfinite(plain) else None


def time_fields(step_s: float, seconds: Sequence[float]) -> dict[str, object]:
    """step_s and phase_s of a step record; phases that took no time are left out."""
    phase_s = {name: round(spent, 7) for name, spent in zip(PHASES, seconds, strict=False) if spent > 0}
    return {"step_s": round(step_s, 7), "phase_s": phase_s}


def _without_probe(told: traceback.TracebackException) -> traceback.TracebackException:
    """The traceback without the probe's own lines: it only handed on what was raised in the script."""
    lines = [line for line in told.stack if not line.filename.startswith(_HERE)]
    if lines:
        told.stack[:] = lines
    for before in (told.__cause__, told.__context__):
        if before is not None:
            _without_probe(before)
    return told


class Probe:
    """Writes one rank's telemetry. Regions belong to one flow of control: the thread that runs the step, and
    autograd's thread while that one waits for it."""

    writing: ClassVar[Probe | None] = None
    """The one that writes this process's records."""

    def __init__(
        self,
        folder: str | Path | None,
        *,
        rank: int,
        world_size: int,
        local_rank: int = 0,
        coords: Mapping[str, int] | None = None,
        backend: str = "",
        device: str = "cpu",
        timeline_every: int = 10,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`folder` is the run folder; None: nothing is written. A timeline is kept of every `timeline_every`-th step
        from step 2 on."""
        self.rank = rank
        self.device = device
        self.is_unasked = False
        """Whether the run started it, and not the script: it gives way to any other."""
        self.has_failed = False
        """Whether an exception was told."""
        self._hello: dict[str, object] = {"local_rank": local_rank, "world_size": world_size}
        self._hello |= {"coords": dict(coords or {}), "backend": backend, "device": device}
        if Probe.writing is not None and Probe.writing.is_unasked:
            Probe.writing.retire()  # the script has one of its own
        Probe.writing = self if folder is not None else None
        self._state = State(clock)
        self._profiling = Profiling(None if folder is None else Path(folder), rank, self._state, self._tell_profile)
        self._regions: dict[tuple[str, str], Timed] = {}
        self._timeline_every = timeline_every
        self._actions: list[list[object]] | None = None
        self._origin = 0.0
        self._region_cost_s = self._measure_region_cost_s()
        self._writer = RecordWriter(None if folder is None else rank_file(Path(folder), rank), rank)
        self.hello()
        self._stopped = threading.Event()
        self._heartbeat: threading.Thread | None = None
        if folder is not None:
            self._heartbeat = threading.Thread(target=self._beat, name="tpdpdash-heartbeat", daemon=True)
            self._heartbeat.start()
            self._chain_excepthook()

    @classmethod
    def from_env(
        cls,
        *,
        coords: Mapping[str, int] | None = None,
        backend: str = "",
        device: str = "cpu",
        environ: Mapping[str, str] | None = None,
    ) -> Probe:
        """A probe for the process that torchrun started. Outside a run it measures and writes nothing."""
        variables = os.environ if environ is None else environ
        return cls(
            variables.get(RUN_DIR_VARIABLE) or None,
            rank=int(variables.get("RANK", "0")),
            world_size=int(variables.get("WORLD_SIZE", "1")),
            local_rank=int(variables.get("LOCAL_RANK", "0")),
            coords=coords,
            backend=backend,
            device=device,
        )

    def hello(self, **changes: object) -> None:
        """Say who this rank is; call it again with what became known later (coords, backend, device)."""
        self._hello |= changes
        self.device = str(self._hello["device"])
        who = {"pid": os.getpid(), "start_time": start_time_s(os.getpid()), "host": socket.gethostname()}
        self._writer.write("hello", {**who, "boot_id": boot_id(), **self._hello, "region_cost_s": self._region_cost_s})

    def event(self, name: str) -> None:
        """Tell that something began: importing, connecting, building, first_step, checkpoint, …"""
        self._state.last_event = name
        self._writer.write("event", {"name": name, "step": self._state.step})

    def error(self, raised: BaseException) -> None:
        """Tell that the script ends by this exception; done by itself for one that nobody catches."""
        lines = list(_without_probe(traceback.TracebackException.from_exception(raised)).format())
        self.has_failed = True
        fields = {"name": "error", "step": self._state.step, "phase": self._state.phase_name()}
        text = "".join(lines)[-MAX_TRACEBACK_CHARS:]
        self._writer.write("event", {**fields, "error": lines[-1].strip()[:1000], "traceback": text})

    def _tell_profile(self, name: str, step: int, said: Mapping[str, object]) -> None:
        self._writer.write("event", {"name": name, "step": step, **said})

    def trouble(self, wrong: BaseException) -> None:
        """Tell that the probe could not do something: the event probe_failed. The script goes on."""
        self._writer.write("event", {"name": "probe_failed", "step": self._state.step, "error": repr(wrong)[:1000]})

    def phase(self, name: str, collective: str = "") -> Timed:
        """A region; enter it with `with`. `collective` says what runs in it (all_reduce, …): told after a hang."""
        region = self._regions.get((name, collective))
        if region is None:
            index = PHASES.index(name) if name in PHASES else _OTHER
            label = f"{name} {collective}".strip() if name in COLLECTIVE_PHASES else None
            region = self._regions[name, collective] = self._new_region(index, label)
        return region

    def action(self, kind: str, stage: int, microbatch: int) -> Timed:
        """One pipeline action: "F", "B", or "I" and "W" of a split backward; kept on sampled steps only."""
        actions = self._actions
        if actions is None or len(actions) >= MAX_ACTIONS:
            return NO_ACTION
        return Action(actions, self._state.clock, self._origin, [kind, stage, microbatch])

    def step(self, step: int) -> Step:
        """One optimizer step; use it with `with`."""
        return Step(self, step)

    def between(self, name: str | None) -> None:
        """What the time in no region is from here on: a phase, or (None) unattributed. Inside a region: no change."""
        state = self._state
        if not state.stack:
            state.num_regions += 1
            if self._profiling.open is not None:
                self._profiling.open.note()
            self._go_over(OUTSIDE if name is None else PHASES.index(name))

    def close(self) -> None:
        """Tell that the script has finished, and stop the heartbeat."""
        self._flush()
        self.event("finished")
        self.retire()

    def retire(self) -> None:
        """Stop the heartbeat and write no more, without a word: another probe goes on, or an error was told."""
        self._profiling.end(is_whole=False)
        self._flush()
        self._stopped.set()
        if self._heartbeat is not None:
            self._heartbeat.join(timeout=2 * HEARTBEAT_S)
        self._writer.close()

    @property
    def lost_records(self) -> int:
        """Records that could not be written so far."""
        return self._writer.lost_records

    def _flush(self) -> None:
        """Write what is not written yet; nothing is, where times are known at once."""

    def price(self, call: Callable[[], object]) -> None:
        """Measure what one region costs where it is entered by `call`; told in the next hello."""
        self._region_cost_s = self._measure_region_cost_s(call=call)

    def _enter_other(self) -> None:
        with self.phase("other"):
            pass

    def _measure_region_cost_s(self, repeats: int = 200, call: Callable[[], object] | None = None) -> float:
        """Seconds that one region costs here: the best of five short loops.

        regions · cost / step_s bounds the probe's share of a step, without a second run to compare with.
        """
        state, enter = self._state, call or self._enter_other
        before, best = (state.num_regions, state.num_collectives, state.last_collective, state.in_step), math.inf
        state.in_step = True  # elsewhere a region does not do all of its work
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(repeats):
                enter()
            best = min(best, time.perf_counter() - start)
        state.num_regions, state.num_collectives, state.last_collective, state.in_step = before
        return round(best / repeats, 9)

    def _chain_excepthook(self) -> None:
        """Note an uncaught exception at the moment it ends the script: peers fail within milliseconds of it."""
        before = sys.excepthook

        def noting(kind: type[BaseException], raised: BaseException, trace: TracebackType | None) -> None:
            self.error(raised)
            before(kind, raised, trace)

        sys.excepthook = noting

    def _new_region(self, phase: int, collective: str | None) -> Timed:
        return Region(self._state, phase, collective)

    def _go_over(self, phase: int) -> None:
        """From here on the time is that of `phase`; no region is open."""
        state = self._state
        now = state.clock()
        state.seconds[state.current] += now - state.since
        state.current, state.since = phase, now

    def _begin_step(self, step: Step, origin: float) -> None:
        is_sampled = self._profiling.open is not None or (
            step.step >= 2 and (step.step - 2) % self._timeline_every == 0
        )
        self._actions = [] if is_sampled else None
        self._origin = origin

    def _write_step(self, step: Step, step_s: float, seconds: list[float]) -> None:
        self._write_records(step, step.fields(step_s, seconds), self._actions)
        self._actions = None

    def _write_records(self, step: Step, fields: Mapping[str, object], actions: list[list[object]] | None) -> None:
        self._writer.write("step", {**fields, **step.loss_fields()}, t=step.t)
        if actions:
            self._writer.write("timeline", {"step": step.step, "actions": actions}, t=step.t)

    def _beat(self) -> None:
        self._profiling.look()
        while not self._stopped.wait(HEARTBEAT_S):
            state = self._state
            self._writer.write(
                "heartbeat",
                {
                    "step": state.step,
                    "phase": state.phase_name(),
                    "last_collective": state.last_collective,
                    "collectives": state.num_collectives,
                    "regions": state.num_regions,
                },
            )
            self._profiling.look()
