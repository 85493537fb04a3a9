"""What the probe costs a step of the built-in worker: `python -m benchmarks.probe [--rounds N]`. Asserts nothing.

Three trainers of the same model in one process take turns, step by step: without a probe, with one, and with a second
one. Each round makes a pair on / off and, as the control, a pair on / on: what that one is away from 1, this machine
cannot tell. Processor time of all threads, the heartbeat's too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from tpdpdash.checked_runs import CheckedRun
from tpdpdash.telemetry.probe import Probe
from tpdpdash.worker.benchmark_steps import trainer_of
from tpdpdash.worker.groups import GroupCache
from tpdpdash.worker.session import told_step
from tpdpdash.worker.train import Trainer

CPU = torch.device("cpu")
RUN = CheckedRun(
    hidden_size=128, ffn_hidden_size=344, num_layers=4, vocab_size=1024, seq_len=128, global_batch_size=8
)  # fmt: skip
"""A step of a tenth of a second on a core: short, so that what the probe adds is much of it."""
WARM_UP = 3
"""Rounds that are not counted."""


def begun(folder: Path | None, cache: GroupCache) -> tuple[Trainer, Probe]:
    """One rank with all of the model, and its probe; no folder: one that writes nothing."""
    job, probe = RUN.job(cores=1), Probe(folder, rank=0, world_size=1)
    return trainer_of(job, job.layout(), CPU, probe, cache), probe


def step_cpu_s(trainer: Trainer, probe: Probe, number: int) -> float:
    """Processor seconds of one step, as a run takes and tells it."""
    start = time.process_time()
    told_step(trainer, probe, number, CPU)
    return time.process_time() - start


def rounds_of(pairs: Sequence[tuple[Trainer, Probe]], rounds: int) -> list[list[float]]:
    """Processor seconds of each trainer's step in each round; who begins changes from round to round."""
    found = []
    for number in range(1, WARM_UP + rounds + 1):
        spent = [0.0] * len(pairs)
        for turn in range(len(pairs)):
            at = (turn + number) % len(pairs)
            spent[at] = step_cpu_s(*pairs[at], number)
        found.append(spent)
    return found[WARM_UP:]


def told(name: str, ratios: Sequence[float]) -> str:
    """Median and quartiles of what the first of each pair takes more."""
    low, middle, high = (100 * (each - 1) for each in statistics.quantiles(ratios, n=4))
    return f"{name:<26}{middle:+6.2f} %   quartiles {low:+.2f} to {high:+.2f} %"


def main() -> None:
    """Take turns, and print both pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        cache: GroupCache = {}
        first, second = Path(folder, "first"), Path(folder, "second")
        pairs = [begun(None, cache), begun(first, cache), begun(second, cache)]
        found = rounds_of(pairs, rounds)
        for _, probe in pairs:
            probe.close()
    dist.destroy_process_group()
    print(f"{rounds} rounds, a step without a probe: {1e3 * statistics.median(off for off, _, _ in found):.1f} ms")
    print(told("probe on against off", [on / off for off, on, _ in found]))
    print(told("control: on against on", [other / on for _, on, other in found]))


if __name__ == "__main__":
    main()
