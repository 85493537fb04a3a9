"""Runs that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_runs import LiveRun
from slurm_cluster import SlurmCluster, slurm_cluster

from tpdpdash.run.stop import stop_run


@pytest.fixture
def start(runs_root: Path) -> Iterator[Callable[..., LiveRun]]:
    """Start real runs; those that still live are stopped at the end."""
    started: list[LiveRun] = []

    def begin(*arguments: str, root: Path = runs_root, **options: object) -> LiveRun:
        run = LiveRun(root, *arguments, **options)  # type: ignore[arg-type]
        started.append(run)
        return run

    yield begin
    for run in started:
        stop_run(run.folder, by="test")


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def slurm(_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """A real Slurm of two nodes, which every command of this test talks to."""
    monkeypatch.setenv("SLURM_CONF", str(_cluster.config))
    return _cluster
