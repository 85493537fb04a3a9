"""Runs that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_runs import LiveRun

from tpdpdash.run.stop import stop_run


@pytest.fixture
def start(runs_root: Path) -> Iterator[Callable[..., LiveRun]]:
    """Start real runs; those that still live are stopped at the end."""
    started: list[LiveRun] = []

    def begin(*arguments: str, **options: object) -> LiveRun:
        run = LiveRun(runs_root, *arguments, **options)  # type: ignore[arg-type]
        started.append(run)
        return run

    yield begin
    for run in started:
        stop_run(run.folder, by="test")
