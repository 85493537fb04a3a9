"""Device samples beside the ranks' timings: one line a sample in devices/node-000.jsonl."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import psutil

from tpdpdash.run.folder import RunFolder
from tpdpdash.telemetry.record import VERSION

MIN_INTERVAL_S, MAX_INTERVAL_S = 1.0, 30.0
_SAMPLES_PER_RUN_TIME = 300
_GPU_FIELDS = (
    "index",
    "cuda_index",
    "uuid",
    "used_bytes",
    "total_bytes",
    "utilisation_frac",
    "power_w",
    "power_limit_w",
    "temperature_c",
    "lost",
)


class DeviceSampler:
    """Writes samples of this node; a sample that cannot be taken or written is counted, never raised."""

    def __init__(self, folder: RunFolder, *, node: int, uses_gpus: bool) -> None:
        self.lost_samples = 0
        self._path = folder.devices / f"node-{node:03d}.jsonl"
        self._node = node
        self._uses_gpus = uses_gpus
        self._began = time.monotonic()
        self._due = self._began
        self._ranks: dict[int, psutil.Process] = {}
        psutil.cpu_percent()  # the first call only starts the measurement

    def sample_if_due(self, pids: Mapping[int, int]) -> None:
        """Write one sample when its time has come; `pids` by rank. Samples thin out as the run grows old."""
        now = time.monotonic()
        if now < self._due:
            return
        interval = min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, (now - self._began) / _SAMPLES_PER_RUN_TIME))
        self._due = now + interval
        try:
            self._append([self._cpu(pids), *([self._gpus()] if self._uses_gpus else [])])
        except OSError:
            self.lost_samples += 1

    def _append(self, records: Sequence[Mapping[str, Any]]) -> None:
        lines = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records).encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.write(descriptor, lines) < len(lines):  # a full disk takes what fits, and says nothing
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(descriptor)

    def _cpu(self, pids: Mapping[int, int]) -> dict[str, Any]:
        memory = psutil.virtual_memory()
        return {
            "v": VERSION,
            "kind": "cpu",
            "node": self._node,
            "t": time.time(),
            "cpu_frac": psutil.cpu_percent() / 100,
            "load": os.getloadavg()[0],
            "used_bytes": memory.total - memory.available,
            "total_bytes": memory.total,
            "ranks": [found for rank, pid in sorted(pids.items()) if (found := self._rank(rank, pid)) is not None],
        }

    def _rank(self, rank: int, pid: int) -> list[float] | None:
        """[rank, share of one core, resident bytes]; None for a process that has ended."""
        try:
            process = self._ranks.get(rank)
            if process is None or process.pid != pid:
                process = self._ranks[rank] = psutil.Process(pid)
            return [rank, round(process.cpu_percent() / 100, 3), process.memory_info().rss]
        except psutil.Error:
            return None

    def _gpus(self) -> dict[str, Any]:
        from tpdpdash.cluster.nvml import detect_devices

        found = detect_devices(os.environ)
        devices = [{name: asdict(device).get(name) for name in _GPU_FIELDS} for device in found.devices]
        about = {"v": VERSION, "kind": "gpu", "node": self._node, "t": time.time()}
        return {**about, "devices": devices, "problem": found.problem.code if found.problem is not None else None}
