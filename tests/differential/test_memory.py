"""What is estimated for the built-in worker is what it holds: the oracle counts the storages of the worker itself.

The device is a CPU (its norms keep more than a GPU's fused ones). Weights, gradients and optimizer states are equal to
the byte. Left out of the rest are scalars and a few bytes a token.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from memory_cases import LLAMA, RANDOM, SMALL, Case
from strategies import cluster_of, device

from tpdpdash.cost.estimate import estimate_layout
from tpdpdash.cost.result import StageEstimate
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.rules import check_layout

ORACLE = Path(__file__).with_name("storage_oracle.py")
KEPT_TOLERANCE, PEAK_TOLERANCE, LATE_TOLERANCE = 0.001, 0.01, 0.03
"""Late: where gradients come while activations go."""
CPU = cluster_of(device=device(is_cpu=True, overhead_bytes=0.0))
Bytes = Mapping[str, int]


def counted(cases: Mapping[str, Case], timeout_s: float) -> dict[str, Bytes]:
    """The oracle's answers, from one process of their own: it joins a fake process group."""
    done = subprocess.run(
        [sys.executable, str(ORACLE)],
        input=json.dumps({name: each.to_json() for name, each in cases.items()}),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def estimated(case: Case) -> StageEstimate:
    """The estimate of the rank's stage."""
    columns = LayoutColumns.from_layouts([case.layout])
    return estimate_layout(case.model, CPU, case.training, columns).stages[case.stage]


def differences(case: Case, held: Bytes) -> list[str]:
    """Where estimate and count part, as lines; empty where they agree."""
    stage, found = estimated(case), []
    for part in ("weights", "gradients", "optimizer"):
        if getattr(stage, f"{part}_bytes") != held[part]:
            found.append(f"{part}: {held[part]:,} counted, {getattr(stage, f'{part}_bytes'):,} estimated")
    kept = stage.activations_bytes + stage.logits_bytes
    near = LATE_TOLERANCE if case.gradients_come_late else PEAK_TOLERANCE
    for part, value, tolerance in (("kept", kept, KEPT_TOLERANCE), ("peak", stage.total_bytes, near)):
        if value != pytest.approx(held[part], rel=tolerance):
            found.append(f"{part}: {held[part]:,} counted, {value:,.0f} estimated ({value / held[part] - 1:+.2%})")
    return found


@pytest.fixture(scope="module")
def held() -> dict[str, Bytes]:
    """What the oracle counts of every small case."""
    return counted(SMALL | RANDOM, 240)


@pytest.mark.parametrize("name", SMALL | RANDOM | LLAMA)
def test_the_worker_runs_every_case(name):
    case = (SMALL | RANDOM | LLAMA)[name]
    assert check_layout(case.model, case.training, None, case.layout) == []


@pytest.mark.parametrize("name", SMALL)
def test_what_is_estimated_is_what_the_worker_holds(name, held):
    assert differences(SMALL[name], held[name]) == []


@pytest.mark.parametrize("name", RANDOM)
def test_random_jobs_agree_too(name, held):
    assert differences(RANDOM[name], held[name]) == []


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_llama_3_8b_is_estimated_as_the_worker_holds_it():
    llama = counted(LLAMA, 1200)
    found = {name: differences(case, llama[name]) for name, case in LLAMA.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}
