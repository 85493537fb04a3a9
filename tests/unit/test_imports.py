"""What an import brings along and what it costs, each in a fresh interpreter."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "streamlit", "pandas", "altair", "pydantic", "typer", "psutil")


def modules_after(statement: str) -> set[str]:
    """Top-level modules that are loaded after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def import_seconds(statement: str, rounds: int = 5) -> float:
    """Processor seconds of a fresh interpreter running a statement; the best of some rounds."""
    code = f"import time\nstart = time.process_time()\n{statement}\nprint(time.process_time() - start)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(rounds)
    ]
    return min(float(run.stdout) for run in runs)


def test_the_package_itself_loads_nothing():
    assert not modules_after("import tpdpdash") & {*HEAVY, "numpy"}


@pytest.mark.parametrize("room", ["tpdpdash.search.plan", "tpdpdash.cost.estimate", "tpdpdash.job"])
def test_planning_rooms_bring_in_nothing_heavy(room):
    assert not modules_after(f"import {room}") & set(HEAVY)


def test_the_command_line_brings_in_numpy_only_with_a_command_that_computes():
    assert not modules_after("import tpdpdash.cli") & (set(HEAVY) - {"typer"} | {"numpy"})


def test_what_numpy_loads_at_first_use_is_loaded_before_two_threads_need_it():
    code = "import sys, tpdpdash.search.plan; assert 'numpy.ma' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_look_at_a_run_brings_in_no_search_before_a_layout_is_proposed():
    loaded = modules_after("import tpdpdash.compare.account, tpdpdash.compare.run_trace")
    assert not [name for name in loaded if name.startswith("tpdpdash.search")]


def test_search_costs_at_most_three_times_what_numpy_does_besides():
    """Numpy takes a tenth of a second on an idle machine, and as many times longer as all else on a busy one."""
    numpy = import_seconds("import numpy")
    assert import_seconds("import tpdpdash.search, tpdpdash.search.plan") - numpy < 3 * numpy


@pytest.mark.parametrize("room", ["tpdpdash.telemetry.record", "tpdpdash.telemetry.probe"])
def test_a_training_script_imports_the_probe_with_the_standard_library_alone(room):
    loaded = modules_after(f"import {room}")
    third_party = {name for name in loaded if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert third_party <= {"tpdpdash", "sitecustomize", "usercustomize"}
    assert "dataclasses" not in loaded - modules_after(""), "they took as long as half of all the rest"
    assert import_seconds(f"import {room}") < 0.1 * 3


def test_the_dashboard_and_the_command_line_do_not_load_torch():
    assert "torch" not in modules_after(
        "import tpdpdash.cli, tpdpdash.ui.run_services, tpdpdash.ui.services, tpdpdash.ui.shell"
    )
