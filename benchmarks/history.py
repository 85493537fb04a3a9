"""Opening a history of 10,000 runs on this machine: `python -m benchmarks.history [--runs N]`. Asserts nothing."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tpdpdash.run.folder import RUNS_VARIABLE, RunFolder, write_json
from tpdpdash.run.history import count_runs, list_runs
from tpdpdash.run.status import RunStatus

STEP_S = 60.0


def make_runs(root: Path, count: int) -> None:
    """Folders with the status of a finished run, one a minute, as the supervisor writes it."""
    status = RunStatus(
        state="finished", engine="local", host=socket.gethostname(), boot_id="none", supervisor_pid=1,
        supervisor_start_time=1.0, created=0.0, started=1.0, ended=50.0, name="llama-3-8b", layout="tp2-pp2-dp2",
        world_size=8, steps=20, last_step=20, phase="running",
    )  # fmt: skip
    document = status.to_json()
    for i in range(count):
        created = 1.75e9 + i * STEP_S
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(created))
        folder = RunFolder(root / f"{stamp}-llama-3-8b-{i:05d}")
        folder.make()
        write_json(folder.status, {**document, "created": created, "started": created}, durable=False)


def main() -> None:
    """Make the runs, then list a page of them here and on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    count = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        root.mkdir()
        make_runs(root, count)
        begun = time.perf_counter()
        shown, known = len(list_runs(root, limit=50)), count_runs(root)
        print(f"{shown} of {known:,} runs listed       {time.perf_counter() - begun:8.3f} s")
        environment = {**os.environ, RUNS_VARIABLE: str(root)}
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "tpdpdash", "runs"], env=environment, check=True, capture_output=True)
        print(f"tpdpdash runs, the process     {time.perf_counter() - begun:8.3f} s")


if __name__ == "__main__":
    main()
