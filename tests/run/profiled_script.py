"""What the profile tests run: a small model under DDP, with two lines of the probe or none, for ever or to its end."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(is_watched: bool, steps: int) -> None:
    """Train on noise."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)))
    optimizer = torch.optim.AdamW(model.parameters())
    if is_watched:
        from tpdpdash.telemetry.watch_torch import watch

        watch(model)
    for _ in range(steps):
        model(torch.ones(32, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1] == "watched", int(sys.argv[2]))
