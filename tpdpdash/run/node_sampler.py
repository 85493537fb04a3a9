"""Device samples of a node on which no supervisor runs. Started through the shim beside torchrun's agent, it ends
with it.

    python -m tpdpdash.run.node_sampler RUN_FOLDER NODE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tpdpdash.run.devices import MIN_INTERVAL_S, DeviceSampler
from tpdpdash.run.folder import RunFolder, read_json


def main(path: str, node: str) -> None:
    """Sample until it is killed, or nobody could read it any more."""
    folder = RunFolder(Path(path))
    sampler = DeviceSampler(folder, node=int(node), uses_gpus=bool(read_json(folder.command)["uses_gpus"]))
    while folder.path.is_dir():
        sampler.sample_if_due({})
        time.sleep(MIN_INTERVAL_S / 2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
