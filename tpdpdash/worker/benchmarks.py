"""Microbenchmarks of this machine, the entry that torchrun starts on each rank: `python -m tpdpdash.worker.benchmarks
[--run-dir DIR] [--gpu] [--tiny]`.

Computation is measured with one rank busy and with more of them at once; messages by kind, size and group, after a
little computation each, so that ranks arrive as unevenly as they do in training. On CPU ranks whole steps of short runs
end it, against which the figures are checked. Rank 0 writes measurements.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tpdpdash.telemetry.measurements import Measurement, Measurements, busy_counts, write_measurements
from tpdpdash.telemetry.probe import Probe
from tpdpdash.telemetry.record import RUN_DIR_VARIABLE
from tpdpdash.worker.start_probe import EarlyTorchProbe, start_probe


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure on this rank."""
    parser = argparse.ArgumentParser(prog="tpdpdash.worker.benchmarks", description="One rank of a calibration.")
    parser.add_argument("--run-dir", type=Path, default=os.environ.get(RUN_DIR_VARIABLE), help="folder of the run")
    parser.add_argument("--gpu", action="store_true", help="measure this rank's GPU instead of the CPU")
    parser.add_argument("--tiny", action="store_true", help="few small sizes: a test of the way, not of the machine")
    options = parser.parse_args(arguments)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    probe = start_probe(
        options.run_dir,
        is_cpu=not options.gpu,
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        rank=rank,
        world_size=world_size,
        coords={},
    )
    probe.event("importing")
    from torch.distributed.elastic.multiprocessing.errors import record

    taken = record(measure)(probe, rank, world_size, is_cpu=not options.gpu, tiny=options.tiny)
    if rank == 0:
        write_measurements(
            options.run_dir, Measurements(is_cpu=not options.gpu, world_size=world_size, taken=tuple(taken))
        )
    probe.close()
    return 0


def measure(probe: Probe, rank: int, world_size: int, *, is_cpu: bool, tiny: bool) -> list[Measurement]:
    """All measurements, as rank 0 tells them; other ranks take part."""
    import torch.distributed as dist

    from tpdpdash.worker.benchmark_messages import measure_messages
    from tpdpdash.worker.benchmark_operators import measure_operators
    from tpdpdash.worker.benchmark_steps import measure_steps
    from tpdpdash.worker.session import connect, open_device

    device = open_device(is_cpu)
    if isinstance(probe, EarlyTorchProbe):
        probe.device_ready()
    probe.event("connecting")
    connect(device, world_size)
    taken: list[Measurement] = []
    counts = busy_counts(world_size, is_cpu=is_cpu)
    for number, busy in enumerate(counts, start=1):
        with probe.step(number):
            dist.barrier()
            if rank < busy:
                taken += measure_operators(device, busy, tiny=tiny)
            dist.barrier()
    with probe.step(len(counts) + 1):
        taken += measure_messages(device, tiny=tiny)
        dist.barrier()
    if is_cpu:
        with probe.step(len(counts) + 2):
            taken += measure_steps(device, tiny=tiny)
    dist.destroy_process_group()
    return taken


if __name__ == "__main__":
    sys.exit(main())
