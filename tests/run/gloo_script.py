"""What a rank of the gloo test runs: all-reduces without end, so that peers lose their connection when one dies."""

import torch
import torch.distributed as dist

from tpdpdash.telemetry.probe import Probe


def main() -> None:
    """All-reduce for ever."""
    probe = Probe.from_env(backend="gloo", device="cpu")
    dist.init_process_group("gloo")
    value, number = torch.ones(8), 0
    while True:
        number += 1
        with probe.step(number), probe.phase("dp", "all_reduce"):
            dist.all_reduce(value)


if __name__ == "__main__":
    main()
