"""The rank's probe, started before torch is imported and before its device is chosen. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpdpdash.telemetry.probe import Probe
from tpdpdash.telemetry.probe_torch import TorchProbe


class EarlyTorchProbe(TorchProbe):
    """A GPU probe that makes no CUDA event until the rank has its device: an earlier one would open a context on
    another rank's device. What a region costs is unknown until then."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._has_device = False
        super().__init__(folder, **options)

    def device_ready(self) -> None:
        """The device is chosen: measure what a region costs, and say it."""
        self._has_device = True
        self._region_cost_s = self._measure_region_cost_s()
        self.hello()

    def _measure_region_cost_s(self, repeats: int = 20, call: Callable[[], object] | None = None) -> Any:
        return super()._measure_region_cost_s(repeats, call) if self._has_device else None


def start_probe(folder: Path, *, is_cpu: bool, local_rank: int, **who: Any) -> Probe:
    """Say hello, and from now on a heartbeat. `who`: rank, world_size and coords, as Probe takes them."""
    if is_cpu:
        return Probe(folder, local_rank=local_rank, backend="gloo", device="cpu", **who)
    return EarlyTorchProbe(folder, local_rank=local_rank, backend="nccl", device=f"cuda:{local_rank}", **who)
