"""The sitecustomize of scripts that say nothing: it starts the probe with torch, and is not noticed otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tpdpdash
from tpdpdash.telemetry import unasked

UNASKED = str(Path(unasked.__file__).parent)
PACKAGE = str(Path(tpdpdash.__file__).parents[1])


def python(
    code: str, *folders: Path | str, run: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, as a rank of a run where one is given."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TPDPDASH")}
    environment |= {"PYTHONPATH": ":".join([UNASKED, PACKAGE, *map(str, folders)]), **variables}
    if run is not None:
        environment |= {"TPDPDASH_RUN_DIR": str(run), "RANK": "0"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder."""
    (tmp_path / "run" / "telemetry").mkdir(parents=True)
    return tmp_path / "run"


def telemetry(run_dir: Path) -> list[dict[str, object]]:
    return [json.loads(line) for file in (run_dir / "telemetry").iterdir() for line in file.read_text().splitlines()]


def fake_torch(folder: Path) -> Path:
    """A torch that is nothing like torch."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("answer = 42\n")
    return folder


def test_without_torch_nothing_is_imported_and_nothing_is_told(run_dir: Path) -> None:
    code = "import sys, json; print([name for name in sys.modules if name.startswith('tpdpdash')])"
    ended = python(code, run=run_dir)
    assert (ended.stdout.strip(), ended.stderr) == ("[]", "")
    assert telemetry(run_dir) == []


def test_a_sitecustomize_of_the_persons_own_runs_as_ever(tmp_path: Path, run_dir: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.own = __file__\n")
    code = "import sitecustomize; print(own, sitecustomize.__file__)"
    ended = python(code, tmp_path, run=run_dir)
    assert ended.stdout.split() == [str(tmp_path / "sitecustomize.py")] * 2


def test_a_probe_that_cannot_start_says_so_and_the_script_goes_on(tmp_path: Path, run_dir: Path) -> None:
    ended = python("import torch; print(torch.answer)", fake_torch(tmp_path / "fake"), run=run_dir)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "42", "")
    (event,) = telemetry(run_dir)
    assert (event["kind"], event["name"], event["rank"]) == ("event", "probe_failed", 0)
    assert "torch" in str(event["error"])


def test_outside_a_run_and_in_a_ranks_children_torch_is_imported_as_ever(tmp_path: Path, run_dir: Path) -> None:
    fake = fake_torch(tmp_path / "fake")
    code = "import sys, torch; print(torch.answer, any('TorchFinder' in str(finder) for finder in sys.meta_path))"
    assert python(code, fake).stdout.strip() == "42 False"
    assert python(code, fake, run=run_dir, TPDPDASH_PROBE_PID="1").stdout.strip() == "42 False"
    assert telemetry(run_dir) == []


def test_a_torch_that_is_not_there_raises_as_ever(run_dir: Path) -> None:
    code = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; import torch"
    ended = python(code, run=run_dir)
    assert ended.stderr.strip().endswith("ModuleNotFoundError: No module named 'torch'")
