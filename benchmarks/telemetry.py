"""A run of many ranks that is watched: `python -m benchmarks.telemetry [--ranks N] [--steps N]`. Asserts nothing.

Its telemetry is written by the real writer and followed by what the supervisor follows it with, which writes the
rollup. Then a dashboard of its own opens the run cold, with the rollup and without, and one tab and two look at it once
a second while all ranks tell a step a second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import socket
import tempfile
import time
from pathlib import Path

from benchmarks.watched import watched
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.job import parse_job, write_job
from tpdpdash.run.folder import RunFolder, new_run_folder, write_json
from tpdpdash.run.ranks import Ranks
from tpdpdash.run.status import RunStatus
from tpdpdash.telemetry.process import boot_id, start_time_s
from tpdpdash.telemetry.reader import RunReader
from tpdpdash.telemetry.record import RecordWriter, rank_file
from tpdpdash.telemetry.rollup import rollup_dir
from tpdpdash.units import KIB, MIB

TP, PP = 8, 8
MICROBATCHES = 8
UPDATE_EVERY = 20
"""Steps between two looks of the supervisor while the past of the run is made."""
TICKS = 20
JOB = """
[model]
preset = "gpt3-175b"
[cluster]
device = "H100-SXM5-80GB"
nodes = {nodes}
[training]
seq_len = 2048
global_batch_size = {batch}
[layout]
tp = 8
pp = 8
"""


class ManyRanks:
    """Writers of all ranks, and the steps that they tell."""

    def __init__(self, folder: RunFolder, count: int, first_step: int = 1) -> None:
        self.next_step = first_step
        self._random = random.Random(first_step)
        self._writers = [RecordWriter(rank_file(folder.path, rank), rank) for rank in range(count)]

    def hello(self) -> None:
        """Who each rank is: TP 8 × PP 8 × DP."""
        for rank, writer in enumerate(self._writers):
            coords = {"tp": rank % TP, "cp": 0, "dp": rank // TP % (len(self._writers) // TP // PP or 1)}
            coords["pp"] = rank * PP // len(self._writers)
            who = {"pid": 1000 + rank, "start_time": 1.0, "host": f"node-{rank // 8:03d}", "local_rank": rank % 8}
            about = {"world_size": len(self._writers), "coords": coords, "backend": "nccl", "device": "cuda:0"}
            writer.write("hello", {**who, **about, "region_cost_s": 1e-6})

    def step(self) -> None:
        """One step and heartbeat of every rank; every tenth step with its timeline."""
        step, uniform = self.next_step, self._random.uniform
        self.next_step += 1
        for rank, writer in enumerate(self._writers):
            names = ("data", "forward", "backward", "tp", "pp", "dp", "optimizer")
            phases = {name: round(uniform(0.09, 0.11), 7) for name in names}
            told = {"step": step, "step_s": round(sum(phases.values()) + 0.01, 7), "phase_s": phases}
            memory = {"memory_bytes": 60_000_000_000, "peak_memory_bytes": 70_000_000_000 + rank}
            told |= {"tokens": 8192, "loss": 2.5, "loss_is_finite": True, **memory, "cpu_s": 0.7, "regions": 300}
            writer.write("step", told)
            if step % 10 == 2:
                actions = [["FB"[i % 2], 0, i // 2, i / 20, 0.04] for i in range(2 * MICROBATCHES)]
                writer.write("timeline", {"step": step, "actions": actions})
            beat = {"step": step, "phase": "dp", "last_collective": "dp all_reduce", "collectives": step, "regions": 1}
            writer.write("heartbeat", beat)


def status_of(ranks: int) -> RunStatus:
    """A run whose supervisor is this process."""
    return RunStatus(
        state="running", engine="local", host=socket.gethostname(), boot_id=boot_id(), supervisor_pid=os.getpid(),
        supervisor_start_time=start_time_s(os.getpid()) or 0.0, created=time.time(), started=time.time(), name="many",
        layout="tp8-pp8-dp16", world_size=ranks, phase="running",
    )  # fmt: skip


def plan_run(folder: RunFolder, ranks: int) -> None:
    """The Job that its ranks are said to run, and its prediction."""
    batch = MICROBATCHES * ranks // TP // PP
    job = parse_job(JOB.format(nodes=ranks // 8, batch=batch)).resolved()
    folder.job.write_text(write_job(job))
    write_json(folder.prediction, estimate_job(job).to_json())


def make_run(root: Path, ranks: int, steps: int) -> RunFolder:
    """Tell so many steps while a supervisor's half follows them; what each side costs is printed."""
    folder = new_run_folder(root, "many")
    write_json(folder.status, status_of(ranks).to_json())
    plan_run(folder, ranks)
    writers, followed = ManyRanks(folder, ranks), Ranks(folder, ranks)
    writers.hello()
    writing = following = 0.0
    for begin in range(0, steps, UPDATE_EVERY):
        started = time.process_time()
        for _ in range(min(UPDATE_EVERY, steps - begin)):
            writers.step()
        written = time.process_time()
        followed.update()
        writing, following = writing + written - started, following + time.process_time() - written
    started = time.process_time()
    followed.close_rollup()
    following += time.process_time() - started
    lines = ranks * steps * 2.1
    print(f"written: {lines / 1e6:,.1f} million lines, {writing / lines * 1e6:.1f} µs each")
    print(f"followed by the supervisor: {following / lines * 1e6:.1f} µs of CPU a line")
    sizes = [sum(p.stat().st_size for p in place.iterdir() if p.is_file()) for place in _places(folder)]
    print(f"telemetry {sizes[0] / MIB:,.0f} MiB, rollup {sizes[1] / MIB:,.0f} MiB", flush=True)
    return folder


def _places(folder: RunFolder) -> tuple[Path, Path]:
    return folder.telemetry, rollup_dir(folder.telemetry)


def report(name: str, folder: RunFolder, world_size: int, most_tabs: int) -> None:
    """Watch the run in a server of its own."""
    write_json(folder.status, status_of(world_size).to_json())
    reader = RunReader(folder.path, world_size)
    reader.refresh()
    writers = ManyRanks(folder, world_size, int(reader.snapshot().steps[-1]) + 1)
    del reader
    print(f"{name}:")
    for found in asyncio.run(watched(folder, writers.step, TICKS, most_tabs)):
        ticks = sorted(found.tick_cpu_s)
        opened_s, opened_cpu_s = found.opened_s
        print(f"  tab {found.num_tabs}: whole page after {opened_s:.2f} s ({opened_cpu_s:.2f} s of CPU)")
        print(
            f"    a second of {found.num_tabs} tabs: {1e3 * sum(ticks) / len(ticks):.0f} ms of the server's CPU ",
            end="",
        )
        print(f"(median {1e3 * ticks[len(ticks) // 2]:.0f}, worst {1e3 * ticks[-1]:.0f}), ", end="")
        print(
            f"{found.tick_bytes / KIB:,.0f} KiB to each; the server's peak {found.peak_bytes / MIB:,.0f} MiB",
            flush=True,
        )


def main() -> None:
    """Make a run and watch it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=600, help="10,000 take 10 minutes and 5 GB")
    parser.add_argument("--run", type=Path, help="watch one that an earlier call kept")
    parser.add_argument("--keep", type=Path, help="make the run in this folder, and keep it")
    asked = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a file a rank
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(asked.run) if asked.run else make_run(asked.keep or Path(place), asked.ranks, asked.steps)
        report("with the rollup", folder, asked.ranks, 2)
        hidden = rollup_dir(folder.telemetry).rename(folder.path / "hidden")
        report("without it", folder, asked.ranks, 1)
        hidden.rename(rollup_dir(folder.telemetry))


if __name__ == "__main__":
    main()
