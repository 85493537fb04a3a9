"""Start the run that measures this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tpdpdash.cluster.detection import Detection
from tpdpdash.cluster.local import read_local
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.request import RunRequest, start_request
from tpdpdash.telemetry.measurements import num_steps

NAME = "calibrate"
MAX_CPU_RANKS = 8
"""CPU ranks that measure: each is a process that imports torch."""
LEAST_CPU_RANKS = 2
"""Messages need two."""


def num_ranks(detection: Detection) -> int:
    """A rank for each GPU, or for each core."""
    if detection.num_visible:
        return read_local(detection).cluster.devices_per_node
    return min(max(detection.host.cores, LEAST_CPU_RANKS), MAX_CPU_RANKS)


def start_calibration(
    detection: Detection, *, tiny: bool = False, request_id: str | None = None, root: Path | None = None
) -> RunFolder:
    """Start the worker's microbenchmarks on this machine, `tiny` for a test of the way. Raises InvalidInputError:
    nothing is left behind then."""
    plain = replace(detection, measured=None, measured_faults=())
    uses_gpus = not read_local(plain).cluster.device.is_cpu
    options = (*(("--gpu",) if uses_gpus else ()), *(("--tiny",) if tiny else ()))
    ranks = num_ranks(plain)
    request = RunRequest(
        name=NAME,
        world_size=ranks,
        steps=num_steps(ranks, is_cpu=not uses_gpus),
        uses_gpus=uses_gpus,
        rank_argv=(sys.executable, "-u", "-m", "tpdpdash.worker.benchmarks", *options),
    )
    return start_request(request, request_id=request_id, root=root)
