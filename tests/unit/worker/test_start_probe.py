"""A rank's probe starts before its device is known, and touches no device until then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from rank_records import records

from tpdpdash.worker.start_probe import EarlyTorchProbe, start_probe

WHO: dict[str, Any] = {"rank": 0, "world_size": 2, "coords": {"tp": 0}}


class FakeEvent:
    """Counts how many were made; a stream that is always done."""

    made = 0

    def __init__(self) -> None:
        FakeEvent.made += 1

    def record(self) -> None:
        """Nothing to mark."""

    def query(self) -> bool:
        """Always reached."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end_event: object) -> float:
        """A millisecond between any two."""
        return 1.0 if end_event is not self else 0.0


def test_no_event_is_made_before_the_device_is_chosen(tmp_path: Path) -> None:
    FakeEvent.made = 0
    probe = EarlyTorchProbe(tmp_path, make_event=FakeEvent, device="cuda:1", backend="nccl", **WHO)
    probe.event("importing")
    assert FakeEvent.made == 0
    probe.device_ready()
    assert FakeEvent.made > 0
    with probe.step(1), probe.phase("forward"):
        assert probe.phase("forward") is not None
    probe.close()
    first, second = records(tmp_path, "hello")
    assert first["region_cost_s"] is None
    assert second["region_cost_s"] > 0


def test_a_cpu_rank_knows_its_cost_at_once(tmp_path: Path) -> None:
    probe = start_probe(tmp_path, is_cpu=True, local_rank=0, **WHO)
    probe.close()
    (hello,) = records(tmp_path, "hello")
    assert (hello["device"], hello["backend"]) == ("cpu", "gloo")
    assert hello["region_cost_s"] > 0


def test_starting_the_probe_does_not_import_torch() -> None:
    code = "import sys, tpdpdash.worker.__main__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
