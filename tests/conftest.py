"""Shared by every test: no test touches the user's own runs, state or settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples each time: what fails in CI fails here too. `--hypothesis-profile=default` draws others. A machine
# that is busy is no fault.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture
def runs_root(tmp_path: Path) -> Path:
    """The runs root of this test (what $TPDPDASH_RUNS points to); not created yet."""
    return tmp_path / "runs"


@pytest.fixture(autouse=True)
def _own_directories(tmp_path: Path, runs_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, state and config directories of this test only."""
    monkeypatch.setenv("TPDPDASH_RUNS", str(runs_root))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
