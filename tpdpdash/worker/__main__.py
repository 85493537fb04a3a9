"""The entry that torchrun starts on each rank: `python -m tpdpdash.worker --run-dir DIR [--text FILE]`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tpdpdash.faults import InvalidInputError
from tpdpdash.job import Job, as_builtin, read_job
from tpdpdash.layout.groups import coordinates
from tpdpdash.layout.layout import Layout
from tpdpdash.text import fault_lines
from tpdpdash.worker.start_probe import start_probe

BAD_INPUT = 2
"""Exit status, as the command line's: one line a fault on stderr."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run this rank to the end of the job."""
    parser = argparse.ArgumentParser(prog="tpdpdash.worker", description="One rank of the built-in trainer.")
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the run; holds job.toml")
    parser.add_argument("--text", type=Path, default=None, help="train on this file, one token a byte")
    options = parser.parse_args(arguments)
    try:
        job = as_builtin(read_job(options.run_dir / "job.toml"))
        run(job, job.layout(), options.run_dir, options.text)
    except InvalidInputError as refused:
        print(*fault_lines(refused.faults), sep="\n", file=sys.stderr)
        return BAD_INPUT
    return 0


def run(job: Job, layout: Layout, run_dir: Path, text: Path | None) -> None:
    """Start the probe, then import torch (the first thing it tells), then train. `record` writes error.json."""
    rank = int(os.environ.get("RANK", "0"))
    probe = start_probe(
        run_dir,
        is_cpu=job.cluster.device.is_cpu,
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        rank=rank,
        world_size=layout.world_size,
        coords=coordinates(layout, rank).as_dict(),
    )
    probe.event("importing")
    from torch.distributed.elastic.multiprocessing.errors import record

    from tpdpdash.worker.session import run_rank

    try:
        record(run_rank)(job, layout, text, probe)
    except InvalidInputError as refused:
        probe.error(refused)  # an exception that nobody catches is told by itself
        raise


if __name__ == "__main__":
    sys.exit(main())
