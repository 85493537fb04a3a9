"""Speed of the planner on this machine: `python -m benchmarks.search [--profile]`. Prints a table; asserts nothing."""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable

from tpdpdash.cluster.catalogue import default_cluster
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.job import Job
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.model.presets import preset
from tpdpdash.search.plan import plan
from tpdpdash.training import Training

CASES = (
    ("llama-3-8b", "H100-SXM5-80GB", 1, 8192, 64),
    ("gpt3-175b", "A100-SXM4-80GB", 128, 2048, 1536),
    ("mixtral-8x7b", "H100-SXM5-80GB", 8, 4096, 512),
    ("deepseek-v3", "H100-SXM5-80GB", 2048, 4096, 15360),
    ("llama-3.1-405b", "H100-SXM5-80GB", 12500, 8192, 10000),
)


def job_of(model: str, device: str, nodes: int, seq_len: int, batch: int, pins: LayoutPins | None = None) -> Job:
    """A job of presets."""
    return Job(
        name=model,
        model=preset(model),
        cluster=default_cluster(device, nodes),
        training=Training(seq_len=seq_len, global_batch_size=batch),
        pins=pins or LayoutPins(),
    )


def best_of(rounds: int, call: Callable[[], object]) -> float:
    """Shortest wall time of some rounds [s]."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Search every case, then price one layout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="profile the GPT-3 search")
    if parser.parse_args().profile:
        profile = cProfile.Profile()
        profile.runcall(plan, job_of(*CASES[1]))
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    print(f"{'search':44s} {'considered':>12s} {'feasible':>10s} {'seconds':>9s} {'layouts/s':>12s}")
    for case in CASES:
        job = job_of(*case)
        found = plan(job)
        seconds = best_of(3, lambda job=job: plan(job))  # type: ignore[misc]
        name = f"{case[0]} on {job.cluster.world_size:,} {case[1]}"
        print(
            f"{name:44s} {found.considered:12,} {found.feasible:10,} {seconds:9.2f} {found.considered / seconds:12,.0f}"
        )
    one = job_of(*CASES[1], pins=LayoutPins(tp=8, pp=8, recompute="full"))
    print(f"one layout, all parts: {best_of(20, lambda: estimate_job(one)) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
