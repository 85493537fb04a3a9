"""What a rank of the any-script tests runs: a torch script of one kind of parallelism, first unwatched, then watched.

parallel_script.py KIND OUTPUT_DIR: prints nothing; writes each rank's losses of both rounds, to the last bit.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from tpdpdash.telemetry.watch_torch import watch

WIDTH, LAYERS, STEPS = 384, 6, 6
Step = Callable[[], float | None]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(LAYERS)]
    )


def batches(seed: int) -> torch.utils.data.DataLoader:
    made = torch.Generator().manual_seed(seed)
    inputs, targets = (torch.randn(32 * STEPS, WIDTH, generator=made) for _ in range(2))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=32)


def train(trained: nn.Module, seed: int) -> list[float]:
    """The loop of a thousand scripts."""
    optimizer = torch.optim.AdamW(trained.parameters(), 1e-3)
    losses = []
    for inputs, targets in batches(seed):
        loss = nn.functional.mse_loss(trained(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp(look: Callable[..., None]) -> list[float]:
    trained = nn.parallel.DistributedDataParallel(model())
    look(trained)
    return train(trained, seed=dist.get_rank())


def fsdp(look: Callable[..., None]) -> list[float]:
    from torch.distributed.fsdp import fully_shard

    trained = model()
    for part in trained:
        fully_shard(part)
    fully_shard(trained)
    look(trained)
    return train(trained, seed=dist.get_rank())


def tp(look: Callable[..., None]) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    trained = model()
    for part in trained:
        parallelize_module(part, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    look(trained)
    return train(trained, seed=0)


def pp(look: Callable[..., None]) -> list[float]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    whole = model()
    part = nn.Sequential(*list(whole)[rank * LAYERS // 2 : (rank + 1) * LAYERS // 2])
    look(part)
    schedule = Schedule1F1B(
        PipelineStage(part, rank, 2, torch.device("cpu")), n_microbatches=4, loss_fn=nn.functional.mse_loss
    )
    optimizer = torch.optim.AdamW(part.parameters(), 1e-3)
    told = []
    for inputs, targets in batches(0):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        schedule.step(*([inputs] if rank == 0 else []), target=targets, losses=losses, return_outputs=False)
        optimizer.step()
        told.append(float(torch.stack(losses).detach().mean()) if losses else 0.0)
    return told


class Summed(torch.autograd.Function):
    """Sums over a group in forward."""

    @staticmethod
    def forward(_: object, given: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        given = given.clone()
        dist.all_reduce(given, group=group)
        return given

    @staticmethod
    def backward(_: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class HalfLinear(nn.Module):
    """A row-parallel layer as Megatron writes it: this rank's half of the inputs."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.linear = nn.Linear(WIDTH // 2, WIDTH)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        half = given.chunk(2, dim=1)[self.group.rank()]
        return Summed.apply(self.linear(half), self.group)


def megatron(look: Callable[..., None]) -> list[float]:
    """Four ranks: a tensor group by Megatron's name, and a data group by no name, reduced by hand."""
    rank = dist.get_rank()
    named = {"group_desc": "TENSOR_MODEL_PARALLEL_GROUP"}
    tensor = [dist.new_group(ranks, **named) for ranks in ([0, 1], [2, 3])][rank // 2]
    data = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][rank % 2]
    torch.manual_seed(rank % 2)
    trained = nn.Sequential(*[HalfLinear(tensor) for _ in range(LAYERS)])
    look(trained)
    optimizer = torch.optim.SGD(trained.parameters(), 1e-2)
    losses = []
    for inputs, targets in batches(seed=rank // 2):
        loss = nn.functional.mse_loss(trained(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        for parameter in trained.parameters():
            dist.all_reduce(parameter.grad, group=data)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Both rounds, from the same start."""
    kind, output = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train_once = {"ddp": ddp, "fsdp": fsdp, "tp": tp, "pp": pp, "megatron": megatron}[kind]
    plain = train_once(lambda *_: None)
    watched = train_once(watch)
    losses = {"plain": [loss.hex() for loss in plain], "watched": [loss.hex() for loss in watched], "told": watched}
    Path(output, f"losses-{dist.get_rank()}.json").write_text(json.dumps(losses))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
