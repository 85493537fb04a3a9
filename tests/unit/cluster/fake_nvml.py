"""Builds the fake libnvidia-ml.so.1 of tests/golden/cluster/fake_nvml.c, and looks at it through pynvml's real ctypes.

pynvml keeps the first library that it loads, so every look happens in a child process: `FakeDriver.detect`. A test of a
whole program starts it with `environment(library, scenario)` instead.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tpdpdash.cluster.detection import Detection, HostMemory

SOURCE = Path(__file__).parents[2] / "golden" / "cluster" / "fake_nvml.c"

ERRORS = {
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "DRIVER_NOT_LOADED": 9,
    "FUNCTION_NOT_FOUND": 13,
    "GPU_IS_LOST": 15,
    "LIB_RM_VERSION_MISMATCH": 18,
    "UNKNOWN": 999,
}
GPU_REMOTE, SWITCH_REMOTE = 0, 2

# The catalogue's largest devices fit into a host of this size.
BIG_HOST = HostMemory(total_bytes=2**41, available_bytes=2**40, cores=64)

Gpu = Mapping[str, object]


def build(folder: Path) -> Path:
    """Compile the library into `folder` under the name that pynvml opens."""
    library = folder / "libnvidia-ml.so.1"
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-Wno-format-truncation",
        "-Wl,-soname,libnvidia-ml.so.1",
    ]
    subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True, timeout=120)
    return library


def scenario(gpus: Sequence[Gpu] = (), *, init: str | None = None, driver: str | None = None) -> str:
    """The text of a scenario file: each GPU a table of fake_nvml.c's keys; a list repeats its key; errors by name.

    An empty table is an H100 SXM on NVSwitch.
    """
    lines = [] if init is None else [f"init {ERRORS[init]}"]
    lines += [] if driver is None else [f"driver {driver}"]
    for number, gpu in enumerate(gpus):
        lines.append(f"gpu {number} util 0")
        for key, value in gpu.items():
            for entry in value if isinstance(value, list) else [value]:
                lines.append(f"gpu {number} {key} {ERRORS.get(str(entry), entry)}")
    return "\n".join(lines) + "\n"


def environment(library: Path, scenario_file: Path | None = None) -> dict[str, str]:
    """This process's environment with the fake library in front of any real one."""
    found = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "FAKE_NVML"))}
    found["LD_LIBRARY_PATH"] = str(library.parent)
    if scenario_file is not None:
        found["FAKE_NVML_SCENARIO"] = str(scenario_file)
    return found


class FakeDriver:
    """A child process that detects devices with the fake library; scenarios change between looks."""

    def __init__(self, folder: Path) -> None:
        self.library = build(folder)
        self._scenario = folder / "scenario.txt"
        self._child = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(self.library, self._scenario) | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def detect(self, text: str, environ: Mapping[str, str] | None = None, host: HostMemory = BIG_HOST) -> Detection:
        """What detect_devices finds in a scenario."""
        self._scenario.write_text(text, encoding="ascii")
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        pickle.dump((dict(environ or {}), host), self._child.stdin)
        self._child.stdin.flush()
        answer = pickle.load(self._child.stdout)
        assert isinstance(answer, Detection), answer
        return answer

    def __enter__(self) -> FakeDriver:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(timeout=30)
        self._child.stdout.close()


def _serve() -> None:
    """The child: answer looks until the parent closes the pipe."""
    import traceback

    from tpdpdash.cluster.nvml import detect_devices

    while True:
        try:
            environ, host = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: object = detect_devices(environ, host)
        except Exception:  # noqa: BLE001 - told to the test, which fails with it
            answer = traceback.format_exc()
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
