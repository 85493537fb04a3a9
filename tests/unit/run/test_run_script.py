"""Any script as a run: what each rank starts, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tpdpdash.faults import InvalidInputError
from tpdpdash.run.script import script_argv, script_name


def test_a_python_file_and_a_module_run_under_this_python_with_their_own_arguments(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    argv = script_argv(["train.py", "--nproc", "5"], cwd=tmp_path)
    assert argv == (sys.executable, "-u", "train.py", "--nproc", "5")
    module = script_argv(["-m", "my.train", "--lr", "1"], cwd=tmp_path)
    assert module == (sys.executable, "-u", "-m", "my.train", "--lr", "1")


def test_a_program_is_found_on_the_path_and_beside_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "train"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    assert script_argv(["./train", "x"], cwd=tmp_path) == (str(program), "x")
    assert Path(script_argv(["sh"], cwd=tmp_path)[0]).name == "sh"


@pytest.mark.parametrize("words", [[], ["-m"], ["nothing.py"], ["no-such-program"], [""]])
def test_what_is_not_there_is_refused_before_anything_starts(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(InvalidInputError) as refused:
        script_argv(words, cwd=tmp_path)
    assert [(fault.code, fault.field) for fault in refused.value.faults] == [("no_script", "SCRIPT")]


@pytest.mark.parametrize(("words", "name"), [(["a/train.py", "x"], "train"), (["-m", "my.train"], "train")])
def test_a_run_is_named_after_its_script(words: list[str], name: str) -> None:
    assert script_name(words) == name
