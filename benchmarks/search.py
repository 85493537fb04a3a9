"""Speed of the planner on this machine: `python -m benchmarks.search [--profile CASE]`. Prints tables; asserts nothing.

One layout is priced through the public call, from a Job to an Estimate with all its parts. A search counts the layouts
that it considers (refused ones included) and the memory of a process of its own.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.peers import peer_lines
from tpdpdash.cluster.catalogue import default_cluster
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.job import Job
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.model.presets import preset
from tpdpdash.search.plan import plan
from tpdpdash.training import Training
from tpdpdash.units import KIB, MIB

CASES = (
    ("llama-3-8b", "H100-SXM5-80GB", 1, 8192, 64),
    ("gpt3-175b", "A100-SXM4-80GB", 128, 2048, 1536),
    ("mixtral-8x7b", "H100-SXM5-80GB", 8, 4096, 512),
    ("deepseek-v3", "H100-SXM5-80GB", 2048, 4096, 15360),
    ("llama-3.1-405b", "H100-SXM5-80GB", 12500, 8192, 10000),
)
"""Model, device, nodes, tokens of a sequence, sequences of a step."""
ONE_LAYOUT = (
    (1, LayoutPins(tp=8, pp=8, recompute="full")),
    (3, LayoutPins(tp=2, pp=16, ep=64, recompute="full")),
)
"""Case and pins of the layouts that are priced alone."""


def job_of(model: str, device: str, nodes: int, seq_len: int, batch: int, pins: LayoutPins | None = None) -> Job:
    """A job of presets."""
    return Job(
        name=model,
        model=preset(model),
        cluster=default_cluster(device, nodes),
        training=Training(seq_len=seq_len, global_batch_size=batch),
        pins=pins or LayoutPins(),
    )


def best_of(rounds: int, call: Callable[[], object]) -> tuple[float, float]:
    """(shortest wall time, shortest processor time of all threads) of some rounds [s]; the second is what a machine
    with other work to do leaves alone."""
    walls, busy = [], []
    for _ in range(rounds):
        start, began = time.perf_counter(), time.process_time()
        call()
        walls.append(time.perf_counter() - start)
        busy.append(time.process_time() - began)
    return min(walls), min(busy)


def search_once(case: int) -> None:
    """Search one case in this process; prints its figures as JSON."""
    job = job_of(*CASES[case])
    found = plan(job)
    seconds, busy_s = best_of(3, lambda: plan(job))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    print(json.dumps([found.considered, found.feasible, seconds, busy_s, peak_bytes]))


def main() -> None:
    """Price single layouts, then search every case, then the peers that are installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", type=int, metavar="CASE", help="profile the search of one case")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case is not None:
        search_once(asked.case)
        return
    if asked.profile is not None:
        profile = cProfile.Profile()
        profile.runcall(plan, job_of(*CASES[asked.profile]))
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    print("one layout, all parts, Job to Estimate")
    for case, pins in ONE_LAYOUT:
        job = job_of(*CASES[case], pins=pins)
        estimate_job(job)
        wall_s, busy_s = best_of(200, lambda job=job: estimate_job(job))  # type: ignore[misc]
        print(f"  {CASES[case][0]:40s} {wall_s * 1e3:8.2f} ms, {busy_s * 1e3:.2f} ms of processor time")
    _searches()
    print("\n".join(peer_lines()))


def _searches() -> None:
    times = f"{'seconds':>9s} {'layouts/s':>12s} {'CPU s':>9s} {'per CPU s':>12s}"
    print(f"{'search':42s} {'considered':>12s} {'feasible':>10s} {times} {'peak MiB':>9s}")
    for index, case in enumerate(CASES):
        command = [sys.executable, "-m", "benchmarks.search", "--case", str(index)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        considered, feasible, seconds, busy_s, peak_bytes = json.loads(done.stdout)
        name = f"{case[0]} on {case[2] * default_cluster(case[1], 1).world_size:,} {case[1]}"
        wall, busy = f"{seconds:9.2f} {considered / seconds:12,.0f}", f"{busy_s:9.2f} {considered / busy_s:12,.0f}"
        print(f"{name:42s} {considered:12,} {feasible:10,} {wall} {busy} {peak_bytes / MIB:9.0f}")


if __name__ == "__main__":
    main()
