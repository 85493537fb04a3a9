"""`tpdpdash run -- SCRIPT`: any script under the same supervisor, from the command line to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tpdpdash.run.folder import RunFolder
from tpdpdash.run.history import read_state

PLAIN_SCRIPT = """
import os, sys
print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.getcwd(), *sys.argv[1:])
if "fail" in sys.argv:
    raise ValueError("boom")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that knows nothing of tpdpdash, in a folder of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(PLAIN_SCRIPT)
    return folder / "train.py"


def run_script(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command as a person types it, in the script's folder."""
    command = [sys.executable, "-m", "tpdpdash", "run", "--nproc", "2", "--", *words]
    return subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=120, check=False)


def test_a_script_runs_where_the_caller_stands_and_its_options_stay_its_own(script: Path, runs_root: Path) -> None:
    words = ("--nproc", "5", "--json", "--", "--help")  # each means something to torchrun or to tpdpdash
    ended = run_script(script, "train.py", *words)
    folder = RunFolder(runs_root / ended.stdout.strip())
    view = read_state(folder)
    assert (ended.returncode, view.state, view.status.name, view.status.world_size) == (0, "finished", "train", 2)
    said = [path.read_text().split() for rank in (0, 1) for path in [folder.rank_outputs(rank)["stdout.log"]]]
    assert said == [[str(rank), "2", str(script.parent), *words] for rank in (0, 1)]
    assert list(folder.devices.iterdir()), "device samples come without any probe"


def test_a_script_that_raises_fails_with_its_traceback_and_exit_status_1(script: Path, runs_root: Path) -> None:
    ended = run_script(script, "train.py", "fail")
    failure = read_state(RunFolder(runs_root / ended.stdout.strip())).status.first_failure
    assert ended.returncode == 1
    assert failure.error == "ValueError: boom"
    assert 'raise ValueError("boom")' in ended.stderr


def test_wrong_words_are_one_line_and_start_nothing(script: Path, runs_root: Path) -> None:
    ended = run_script(script, "nothing.py")
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)
    assert not runs_root.exists()
