"""One Perfetto file of a run: what its ranks and devices told, beside what its estimate says of the same step."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpdpdash.compare.prediction import read_prediction
from tpdpdash.compare.run_plan import read_run_plan
from tpdpdash.cost.timeline import step_timeline
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.layout.schedules import SCHEDULE_FACTS, part_of
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.history import read_state
from tpdpdash.schedule.timeline import KINDS
from tpdpdash.telemetry.profile_file import DeepProfile, kept_profiles, read_profile
from tpdpdash.telemetry.reader import RunReader
from tpdpdash.telemetry.tail import FileTail
from tpdpdash.telemetry.trace import CounterSample, PredictedSpan, trace_events, write_trace
from tpdpdash.units import gib

MAX_PREDICTED = 20_000
"""Actions of the predicted step: beyond it the file would hold little else."""
MAX_SAMPLES = 20_000
MAX_PROFILE_EVENTS = 400_000
"""Of all deep profiles: the newest ones that fit, and one in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTrace:
    """A trace that was written."""

    path: Path
    """The file."""
    num_events: int
    """Events that it holds."""
    num_ranks: int
    """Ranks with a lane."""
    num_steps: int
    """Steps of which something is told."""
    has_prediction: bool
    """Whether the predicted schedule stands beside the measured one."""
    num_profiles: int
    """Deep profiles of a step that it holds."""
    left_out_profiles: int
    """Those that it does not: too many, or damaged."""


def write_run_trace(folder: RunFolder, out: Path) -> WrittenTrace:
    """Write the trace of a run, also of one that is under way. Raises InvalidInputError."""
    view = read_state(folder)
    reader = RunReader(folder.path, view.world_size)
    reader.refresh()
    telemetry = reader.snapshot()
    if not telemetry.ranks:
        raise InvalidInputError([Fault(code="nothing_told", field="run", value=folder.run_id)])
    predicted = predicted_spans(folder)
    profiles, left_out = deep_profiles(folder)
    about = {"run": folder.run_id, "state": view.state, "dropped_steps": telemetry.dropped_steps}
    temporary: Path | None = None
    try:
        suffix = ".gz" if out.suffix == ".gz" else ".json"
        descriptor, name = tempfile.mkstemp(prefix=f".{out.name}.", suffix=suffix, dir=out.parent)
        os.close(descriptor)
        temporary = Path(name)
        events = trace_events(telemetry, predicted, list(device_samples(folder)), profiles)
        count = write_trace(temporary, events, about)
        temporary.replace(out)
    except OSError as wrong:
        values = {"reason": wrong.strerror or str(wrong)}
        raise InvalidInputError([Fault(code="not_written", field="--out", value=str(out), values=values)]) from wrong
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return WrittenTrace(
        path=out,
        num_events=count,
        num_ranks=len(telemetry.ranks),
        num_steps=len(telemetry.steps),
        has_prediction=bool(predicted),
        num_profiles=len(profiles),
        left_out_profiles=left_out,
    )


def deep_profiles(folder: RunFolder) -> tuple[list[DeepProfile], int]:
    """A run's deep profiles, the newest first, and how many of them are not there: too many, or damaged."""
    kept = kept_profiles(folder.path)
    profiles: list[DeepProfile] = []
    num_events = 0
    for each in kept:
        try:
            profile = read_profile(each.path)
        except (OSError, ValueError):
            continue  # one damaged profile hides no other: it is counted
        num_events += len(profile.events)
        if profiles and num_events > MAX_PROFILE_EVENTS:
            break
        profiles.append(profile)
    return profiles, len(kept) - len(profiles)


def predicted_spans(folder: RunFolder) -> tuple[PredictedSpan, ...]:
    """The predicted step of a run's Job; nothing where there is no Job, or the estimate of this machine is another."""
    run, told_s = read_run_plan(folder), read_prediction(folder).step_s
    if run is None or told_s is None:
        return ()
    estimate, layout = run.estimate, run.estimate.layout
    actions = 2 * layout.pp * layout.num_model_chunks * estimate.num_microbatches
    if not run.still_takes(told_s) or actions > MAX_PREDICTED:
        return ()
    step = step_timeline(run.job, estimate)
    ran, placement = step.pipeline, SCHEDULE_FACTS[layout.schedule].placement
    spans = [
        PredictedSpan(
            stage=int(ran.rank[i]),
            name=f"{KINDS[ran.kind[i]]} {ran.microbatch[i]}",
            kind=f"{KINDS[ran.kind[i]]}, part {part_of(placement, layout.pp, int(ran.rank[i]), int(ran.chunk[i]))}",
            start_s=float(ran.start_s[i]),
            duration_s=float(ran.duration_s[i]),
        )
        for i in range(len(ran.rank))
    ]
    spans += [
        PredictedSpan(stage=b.stage, name=b.part, kind=b.part, start_s=b.start_s, duration_s=b.duration_s)
        for b in step.bars
        if b.duration_s > 0
    ]
    return tuple(spans)


def device_samples(folder: RunFolder) -> Iterator[CounterSample]:
    """Load and memory of each machine's CPU and GPUs; a line that is none is passed over."""
    lines = []
    for path in sorted(folder.devices.glob("node-*.jsonl")):
        lines += FileTail(path).read()
    for line in lines[-MAX_SAMPLES:]:
        try:
            record = json.loads(line)
            yield from _samples(record)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # one damaged sample hides no other


def _samples(record: dict[str, Any]) -> list[CounterSample]:
    """The counters of one record of run.devices."""
    if record["kind"] == "cpu":
        told = {"cpu busy, share": record["cpu_frac"], "memory, GiB": _gib(record["used_bytes"])}
    else:
        told = {}
        for device in record["devices"]:
            name = f"gpu {device['index']}"
            told[f"{name} busy, share"] = device["utilisation_frac"]
            told[f"{name} memory, GiB"] = _gib(device["used_bytes"])
            told[f"{name} power, W"] = device["power_w"]
    node, t = int(record["node"]), float(record["t"])
    return [
        CounterSample(node=node, t=t, name=name, value=float(value))
        for name, value in told.items()
        if isinstance(value, int | float) and math.isfinite(value) and math.isfinite(t)
    ]


def _gib(num_bytes: float | None) -> float | None:
    return None if num_bytes is None else gib(num_bytes)
