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

from tpdpdash.telemetry.process import boot_id, peak_resident_bytes, resident_bytes, start_time_s
from tpdpdash.telemetry.record import COLLECTIVE_PHASES, MAX_ACTIONS, PHASES, RUN_DIR_VARIABLE, RecordWriter, rank_file
from tpdpdash.telemetry.regions import NO_ACTION, Action, Region, State, Timed

HEARTBEAT_S = 1.0
MAX_TRACEBACK_CHARS = 20_000
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
        self.memory_bytes: int | None = None
        """Device memory held; the process's resident memory where None."""
        self.peak_memory_bytes: int | None = None
        """The most device memory held in this step; the process's peak where None."""

    def __enter__(self) -> Step:
        state = self._probe._state
        if state.step is None:
            self._probe.event("first_step")
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

    def fields(self, step_s: float, seconds: list[float]) -> dict[str, object]:
        """The step record's own fields (docs/reference.md), and the process time beside the wall time."""
        on_cpu = self._probe.device.startswith("cpu")
        memory = resident_bytes() if self.memory_bytes is None and on_cpu else number(self.memory_bytes)
        peak = peak_resident_bytes() if self.peak_memory_bytes is None and on_cpu else number(self.peak_memory_bytes)
        loss = number(self.loss)
        return {
            "step": self.step,
            **time_fields(step_s, seconds),
            "tokens": number(self.tokens),
            "loss": loss,
            "loss_is_finite": self.loss is None or loss is not None,
            "memory_bytes": memory,
            "peak_memory_bytes": peak,
            "cpu_s": round(time.process_time() - self._cpu_start, 6),
            "regions": self._probe._state.num_regions - self._regions_start,
        }


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


class Probe:
    """Writes one rank's telemetry. Regions belong to one flow of control: the thread that runs the step, and
    autograd's thread while that one waits for it."""

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
        self._hello: dict[str, object] = {"local_rank": local_rank, "world_size": world_size}
        self._hello |= {"coords": dict(coords or {}), "backend": backend, "device": device}
        self._state = State(clock)
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
        lines = traceback.format_exception(raised)
        fields = {"name": "error", "step": self._state.step, "phase": self._state.phase_name()}
        text = "".join(lines)[-MAX_TRACEBACK_CHARS:]
        self._writer.write("event", {**fields, "error": lines[-1].strip()[:1000], "traceback": text})

    def phase(self, name: str, collective: str = "") -> Timed:
        """A region; enter it with `with`. `collective` says what runs in it (all_reduce, …): told after a hang."""
        region = self._regions.get((name, collective))
        if region is None:
            index = PHASES.index(name) if name in PHASES else _OTHER
            label = f"{name} {collective}".strip() if name in COLLECTIVE_PHASES else None
            region = self._regions[name, collective] = self._new_region(index, label)
        return region

    def action(self, kind: str, stage: int, microbatch: int) -> Timed:
        """One pipeline action ("F" or "B"); kept on sampled steps only."""
        actions = self._actions
        if actions is None or len(actions) >= MAX_ACTIONS:
            return NO_ACTION
        return Action(actions, self._state.clock, self._origin, [kind, stage, microbatch])

    def step(self, step: int) -> Step:
        """One optimizer step; use it with `with`."""
        return Step(self, step)

    def close(self) -> None:
        """Tell that the script has finished, and stop the heartbeat."""
        self._flush()
        self.event("finished")
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

    def _measure_region_cost_s(self, repeats: int = 200) -> float:
        """Seconds that one region costs here: the best of five short loops.

        regions · cost / step_s bounds the probe's share of a step, without a second run to compare with.
        """
        before, best = self._state.num_regions, math.inf
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(repeats):
                with self.phase("other"):
                    continue
            best = min(best, time.perf_counter() - start)
        self._state.num_regions = before
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

    def _begin_step(self, step: Step, origin: float) -> None:
        is_sampled = step.step >= 2 and (step.step - 2) % self._timeline_every == 0
        self._actions = [] if is_sampled else None
        self._origin = origin

    def _write_step(self, step: Step, step_s: float, seconds: list[float]) -> None:
        self._write_records(step, step.fields(step_s, seconds), self._actions)
        self._actions = None

    def _write_records(self, step: Step, fields: Mapping[str, object], actions: list[list[object]] | None) -> None:
        self._writer.write("step", fields, t=step.t)
        if actions:
            self._writer.write("timeline", {"step": step.step, "actions": actions}, t=step.t)

    def _beat(self) -> None:
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
