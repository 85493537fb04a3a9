"""What a rank wrote, as a test looks at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tpdpdash.telemetry.probe import Probe
from tpdpdash.telemetry.record import rank_file


def records(run: Path, kind: str, rank: int = 0) -> list[dict[str, Any]]:
    """One rank's records of a kind, in order."""
    lines = map(json.loads, rank_file(run, rank).read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def hear(probe: Probe) -> None:
    """The rank hears of what is asked of it now, and of nothing more by itself: of two that look at the same time, one
    may have seen the request and not yet said so."""
    if probe._heartbeat is not None:
        probe._stopped.set()
        probe._heartbeat.join()
    probe._profiling.look()
