"""Predicted against measured steps of the built-in worker on this machine, right after measuring it: `python -m
benchmarks.calibrated [--steps 20] [--size small] [--all]`. Prints tables; asserts nothing. The user's own cluster file
and runs are left alone.

On a machine with other load the clock tells that load too: the processor time of the busiest rank stands beside it, and
what was predicted of it (computation and optimizer).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

from tpdpdash.compare.recalibrate import take_over
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.job import Job, detect_here, parse_job
from tpdpdash.report.calibration import calibration_lines
from tpdpdash.run.calibrate import start_calibration
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.follow import follow
from tpdpdash.run.history import RunView
from tpdpdash.run.start import runnable, start_run
from tpdpdash.telemetry.reader import RunReader

_KEYS = ("hidden_size", "ffn_hidden_size", "num_attention_heads", "vocab_size", "seq_len")
SIZES = {
    "tiny": dict(zip(_KEYS, (64, 256, 4, 1024, 128), strict=True)),
    "small": dict(zip(_KEYS, (256, 688, 4, 1024, 128), strict=True)),
    "middle": dict(zip(_KEYS, (512, 1376, 8, 4096, 256), strict=True)),
}
LAYOUTS = {"1 rank": "", "TP 2": "tp = 2", "PP 2": "pp = 2", "DP 2": "dp = 2"}
MORE_LAYOUTS = {
    "TP 2, whole sequence": "tp = 2\nsequence_parallel = false",
    "TP 2 x DP 2": "tp = 2\ndp = 2",
    "PP 4": "pp = 4",
    **{f"DP 2, ZeRO {stage}": f"dp = 2\nzero_stage = {stage}" for stage in (0, 2, 3)},
}
"""With --all: twice as many ranks as cores on a machine of two, and what else sends otherwise."""
WARM_UP = 3
"""Steps that are not counted."""


def job_of(size: str, layout: str, steps: int) -> Job:
    """Four layers, eight microbatches of one sequence."""
    widths = SIZES[size]
    model = "\n".join(f"{key} = {value}" for key, value in widths.items() if key != "seq_len")
    return runnable(
        parse_job(
            f"""
[model]
name = "{size}"
num_layers = 4
{model}
[cluster]
device = "local"
[training]
seq_len = {widths["seq_len"]}
global_batch_size = 8
steps = {steps}
precision = "fp32"
framework = "builtin"
[layout]
{(LAYOUTS | MORE_LAYOUTS)[layout]}
"""
        )
    )


def ended(folder: RunFolder) -> RunView:
    """The run when it is over. Raises RuntimeError when it did not finish."""
    *_, last = follow(folder)
    if last.view.state != "finished":
        raise RuntimeError(f"{folder.path}: {last.view.state}")
    return last.view


def measure(job: Job) -> tuple[float, float, float]:
    """(median step by the clock, its least, processor time of the busiest rank in the median step) [s]."""
    folder = start_run(job)
    ended(folder)
    reader = RunReader(folder.path, job.layout().world_size)
    while reader.refresh():
        pass
    told = reader.snapshot()
    steps = np.nanmax(told.step_s[:, WARM_UP:], axis=0)
    busiest = float(np.nanmedian(told.cpu_s[:, WARM_UP:], axis=1).max())
    return float(np.median(steps)), float(steps.min()), busiest


def line(size: str, layout: str, steps: int) -> str:
    """One layout of one size."""
    job = job_of(size, layout, steps)
    parts = estimate_job(job).time
    median, least, processor = measure(job)
    work = parts.compute_s + parts.optimizer_s
    return (
        f"{size:7s}{layout:22s}{parts.step_s * 1e3:11.1f}{median * 1e3:11.1f}{parts.step_s / median - 1:+9.1%}"
        f"{least * 1e3:10.1f}{work * 1e3:12.1f}{processor * 1e3:11.1f}{os.getloadavg()[0]:7.1f}"
    )


def main() -> None:
    """Measure the machine, then each layout of each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", choices=SIZES, action="append")
    parser.add_argument("--all", action="store_true", help="more layouts than the four")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= {"XDG_CONFIG_HOME": scratch, "TPDPDASH_RUNS": str(Path(scratch) / "runs")}
        file, figures = take_over(ended(start_calibration(detect_here())))
        print(*calibration_lines(file, figures), sep="\n")
        margin = " " * 29
        print(f"\n{margin}predicted   measured     off     least   predicted  processor   load")
        print(f"{margin}  step ms    step ms               ms     work ms         ms")
        for size in options.size or ("small",):
            for layout in {**LAYOUTS, **(MORE_LAYOUTS if options.all else {})}:
                print(line(size, layout, options.steps), flush=True)


if __name__ == "__main__":
    main()
