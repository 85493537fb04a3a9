"""Python runs this at the start of every process whose PYTHONPATH names this folder. Standard library only.

In a rank of a run it waits for torch to be imported and then tells of step times; elsewhere, and without torch, it does
nothing. A sitecustomize of the person's own is run as if this one were not here.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

STARTED_VARIABLE = "TPDPDASH_PROBE_PID"
"""Set where a probe was started: the rank's children leave the telling to it."""
_HERE = os.path.dirname(__file__)  # noqa: PTH120 pathlib's import is what costs at a start


class TorchFinder:
    """Finds torch as if it were not there, and starts the probe once torch stands."""

    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called for every import until torch's; None: the others shall find it."""
        if name != "torch":
            return None
        sys.meta_path.remove(TorchFinder)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _start_after(spec.loader)
        return spec


def _start_after(loader: object) -> None:
    plain = loader.exec_module  # type: ignore[attr-defined]

    def exec_module(module: ModuleType) -> None:
        plain(module)
        _start()

    loader.exec_module = exec_module  # type: ignore[attr-defined]


def _start() -> None:
    """Start the probe; where that fails, say so in the rank's file. The script goes on in any case."""
    os.environ[STARTED_VARIABLE] = str(os.getpid())
    try:
        importlib.import_module("tpdpdash.telemetry.steps_torch").watch_unasked()
    except Exception as wrong:  # noqa: BLE001 whatever is wrong with the probe is not the script's fault
        _tell(wrong)


def _tell(wrong: Exception) -> None:
    """The event probe_failed, by hand: the package itself may be what cannot be imported here."""
    rank = int(os.environ["RANK"])
    event = {
        "v": 1,
        "kind": "event",
        "rank": rank,
        "t": time.time(),
        "name": "probe_failed",
        "error": repr(wrong)[:1000],
    }
    file = Path(os.environ["TPDPDASH_RUN_DIR"], "telemetry", f"rank-{rank:05d}.jsonl")
    try:
        with file.open("a") as telemetry:
            telemetry.write(json.dumps(event) + "\n")
    except OSError:
        print(f"tpdpdash: no step times: {wrong!r}", file=sys.stderr)


def _run_persons_own() -> None:
    """Python looks for one sitecustomize: the one behind this folder is the person's."""
    others = [entry for entry in sys.path if entry and not _is_here(entry)]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _is_here(entry: str) -> bool:
    return os.path.realpath(entry) == os.path.realpath(_HERE)


_variables = os.environ
if "TPDPDASH_RUN_DIR" in _variables and _variables.get("RANK", "").isdigit() and STARTED_VARIABLE not in _variables:
    sys.meta_path.insert(0, TorchFinder)
_run_persons_own()
