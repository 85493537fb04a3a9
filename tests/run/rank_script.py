"""What a rank of the fault tests runs: steps with a probe, no torch. Its behaviour is a list of arguments.

rank_script.py STEPS SECONDS [raise:RANK:STEP] [exit:RANK:STEP:CODE]
"""

import os
import sys
import time

from tpdpdash.telemetry.probe import Probe


def main() -> None:
    """Run the steps; misbehave where told to."""
    num_steps, seconds, *faults = sys.argv[1:]
    rank = int(os.environ["RANK"])
    probe = Probe.from_env(coords={"tp": 0, "pp": 0, "dp": rank}, backend="none", device="cpu")
    for name in ("importing", "connecting", "building"):
        probe.event(name)
    for step in range(1, int(num_steps) + 1):
        with probe.step(step) as told:
            with probe.phase("forward"):
                time.sleep(float(seconds))
            told.tokens, told.loss = 128, 1 / step
        for fault in faults:
            kind, who, when, *rest = fault.split(":")
            if (rank, step) == (int(who), int(when)):
                if kind == "raise":
                    raise ValueError(f"boom on rank {rank}")
                os._exit(int(rest[0]))
    probe.close()


if __name__ == "__main__":
    main()
