"""Run folders as supervisor and ranks leave them, written with the real record writer: no process is started."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from run_statuses import own_status

from tpdpdash.run.folder import RunFolder, write_json
from tpdpdash.run.status import FirstFailure, RunStatus
from tpdpdash.telemetry.process import boot_id, start_time_s
from tpdpdash.telemetry.record import RecordWriter, rank_file

WORLD = 8
JOB = """\
name = "llama-3-8b"
[model]
name = "small"
num_layers = 4
hidden_size = 64
num_attention_heads = 4
num_kv_heads = 4
head_dim = 16
ffn_hidden_size = 128
vocab_size = 256
[cluster]
device = "local"
[training]
seq_len = 32
global_batch_size = 8
steps = 20
precision = "fp32"
framework = "builtin"
[layout]
tp = 2
pp = 2
dp = 2
"""
PHASE_S = {"data": 0.01, "forward": 0.3, "backward": 0.6, "tp": 0.2, "pp": 0.3, "dp": 0.1, "optimizer": 0.05}
FAILURE = FirstFailure(code="rank_killed", rank=3, signal="SIGKILL", error=None, traceback="bye")


def coords(rank: int) -> dict[str, int]:
    """TP 2 × DP 2 × PP 2 in the default order."""
    return {"tp": rank % 2, "cp": 0, "dp": rank // 2 % 2, "pp": rank // 4}


def status(state: str, **changes: Any) -> RunStatus:
    """A rehearsal for a minute by now, with this very process as supervisor: alive, unless a pid is given."""
    base = own_status(
        state=state,
        created=time.time() - 60,
        started=time.time() - 58,
        name="llama-3-8b",
        layout="tp2-pp2-dp2",
        world_size=WORLD,
        rehearsal=True,
        steps=20,
        phase="running",
        ranks_by_phase={"running": WORLD},
    )
    return replace(base, **changes)


def fake_run(
    root: Path,
    state: str = "running",
    *,
    run_id: str = "20261130-101500-llama-3-8b-abcd",
    steps: int = 15,
    slow_rank: int | None = None,
    silent_ranks: tuple[int, ...] = (),
    pause_s: float = 0.0,
    behind_rank: int | None = None,
    events: tuple[str, ...] = ("importing", "connecting", "building", "first_step"),
    **changes: Any,
) -> RunFolder:
    """A run in this state with `steps` finished steps a rank, the last `pause_s` ago; silent ranks sent nothing."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = RunFolder(root / run_id)
    folder.make()
    folder.job.write_text(JOB)
    folder.asked.write_text(JOB)
    write_json(folder.command, {"v": 1, "argv": ["python"], "cwd": "/", "env": {}, "rehearsal": True, "steps": 20})
    for rank in range(WORLD):
        if rank not in silent_ranks:
            collectives = 8 if rank == behind_rank else 9
            writer = write_rank(folder, rank, steps, slow=rank == slow_rank, events=events, pause_s=pause_s)
            last = {"step": steps or None, "phase": "forward" if rank == behind_rank else "dp"}
            writer.write("heartbeat", {**last, "last_collective": "dp all_reduce", "collectives": collectives})
            writer.close()
    write_json(folder.status, status(state, last_step=steps or None, **changes).to_json())
    return folder


def write_rank(
    folder: RunFolder, rank: int, steps: int, *, slow: bool, events: tuple[str, ...], pause_s: float
) -> RecordWriter:
    """The telemetry of one rank, from a minute ago until now; the writer is still open."""
    start = time.time() - 50
    writer = RecordWriter(rank_file(folder.path, rank), rank)
    hello = {"pid": os.getpid(), "start_time": start_time_s(os.getpid()), "host": socket.gethostname()}
    where = {"local_rank": rank, "world_size": WORLD, "coords": coords(rank), "backend": "gloo", "device": "cpu"}
    writer.write("hello", {**hello, "boot_id": boot_id(), **where}, t=start)
    for i, name in enumerate(events):
        writer.write("event", {"name": name, "step": None}, t=start + 5 * i)
    for step in range(1, steps + 1):
        t = time.time() - pause_s - 1.7 * (steps - step + 1)
        phases = {name: seconds * (1 + 0.02 * ((step * 7 + rank) % 3)) for name, seconds in PHASE_S.items()}
        if slow and step > steps // 2:
            phases["backward"] *= 1.5
        step_s = 1.65 + 0.3 * (step > steps // 2) + 0.01 * ((step + rank) % 5)
        fields = {"step": step, "step_s": step_s, "phase_s": phases, "tokens": 128}
        loss = 5.6 - 0.05 * step if rank >= WORLD // 2 else None
        memory = {"memory_bytes": 300 << 20, "peak_memory_bytes": (320 + rank) << 20}
        writer.write(
            "step", {**fields, "loss": loss, "loss_is_finite": True, **memory, "cpu_s": 1.0, "regions": 40}, t=t
        )
        if step >= 2 and (step - 2) % 10 == 0:
            writer.write("timeline", {"step": step, "actions": _actions(coords(rank)["pp"])}, t=t)
    return writer


def _actions(stage: int) -> list[list[object]]:
    """1F1B of two microbatches on two stages."""
    if stage == 0:
        order = [("F", 0, 0.0), ("F", 1, 0.2), ("B", 0, 0.6), ("B", 1, 1.1)]
    else:
        order = [("F", 0, 0.2), ("B", 0, 0.35), ("F", 1, 0.7), ("B", 1, 0.85)]
    return [[kind, stage, microbatch, start, 0.14 if kind == "F" else 0.28] for kind, microbatch, start in order]
