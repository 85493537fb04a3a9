"""Seconds of messages between ranks as the worker sends them: collectives by size and group, and sends to a neighbour.

Each comes after a layer's forward pass, which fills the caches, and from which ranks arrive at different moments. A
message takes what it adds to the computation's own time: transfer, waiting for the others, gloo's work on the cores
that compute. On two idle cores about half of all messages find each of the ten threads that they wake at once, and
the others, for which a thread waits for the time slice of one that computes, take several times as long. A step has
hundreds of messages: their mean counts, over a few in a row, and of those means the middle one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from tpdpdash.telemetry.measurements import Measurement
from tpdpdash.telemetry.probe import Probe
from tpdpdash.worker.benchmark_operators import layer_of
from tpdpdash.worker.collectives import TensorGroup

SIZES = (4 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 16 << 20)
"""Bytes of the whole tensor on a CPU."""
GPU_SIZES = (64 << 10, 1 << 20, 16 << 20, 256 << 20)
TINY_SIZES = (4 << 10, 32 << 10)
ROUNDS, LEAST_ROUNDS, ROUNDS_BYTES = 30, 6, 16 << 20
"""How often each kind and size takes its turn: seldom where messages are large."""
IN_A_ROW = 6
"""Messages of a turn."""
LAYER = (128, 344, 2, 128)
"""Hidden size, FFN size, heads and tokens of the layer before each message: a millisecond on a core."""

Message = Callable[[], object]


def measure_messages(device: torch.device, *, tiny: bool) -> list[Measurement]:
    """Over every group of the first 2, 4, … and all ranks. All ranks call it together."""
    world_size, rank = dist.get_world_size(), dist.get_rank()
    sizes = TINY_SIZES if tiny else SIZES if device.type == "cpu" else GPU_SIZES
    taken = []
    group_sizes = {2**k for k in range(1, world_size.bit_length()) if 2**k <= world_size} | {world_size}
    for group_size in sorted(group_sizes - {1}):
        group = dist.new_group(list(range(group_size)))
        if rank < group_size:
            tp = TensorGroup(
                group=group,
                rank=rank,
                size=group_size,
                sequence_parallel=True,
                probe=Probe(None, rank=rank, world_size=world_size),
            )
            calls = {(what, size): call for size in sizes for what, call in _messages(size, tp, device).items()}
            taken += [
                Measurement(what=what, sizes=(size,), busy=group_size, seconds=seconds)
                for (what, size), seconds in _in_turn(calls, tp, device, rounds=2 if tiny else ROUNDS).items()
            ]
        dist.barrier()
    return taken


def _messages(size: int, tp: TensorGroup, device: torch.device) -> dict[str, Message]:
    """Each kind of message of a tensor of `size` bytes."""
    whole = torch.zeros(size // 4 // tp.size * tp.size, device=device)
    part = torch.zeros(whole.numel() // tp.size, device=device)

    def send() -> None:
        if tp.rank == 0:
            dist.send(whole, 1, group=tp.group)
            dist.recv(part[:1], 1, group=tp.group)  # the answer ends the time: a send is done before it has arrived
        elif tp.rank == 1:
            dist.recv(whole, 0, group=tp.group)
            dist.send(part[:1], 0, group=tp.group)

    return {
        "all_reduce": lambda: tp.all_reduce(whole),
        "all_gather": lambda: tp.all_gather(part),
        "reduce_scatter": lambda: tp.reduce_scatter(whole),
        "send": send,
    }


def _in_turn(
    calls: dict[tuple[str, int], Message], tp: TensorGroup, device: torch.device, rounds: int
) -> dict[tuple[str, int], float]:
    """Seconds of each message: the middle one of the means of its turns."""
    layer, states, rope = layer_of(LAYER, device)

    def computation() -> None:
        with torch.no_grad():
            layer(states, rope)

    added: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
    for call in calls.values():
        call()
    for turn in range(rounds):
        for (what, size), call in calls.items():
            if turn < max(LEAST_ROUNDS, ROUNDS_BYTES // size):
                dist.barrier(group=tp.group)
                added[what, size].append(statistics.fmean(_added_s(call, computation, device) for _ in range(IN_A_ROW)))
    return {key: statistics.median(each) for key, each in added.items()}


def _added_s(call: Message, computation: Callable[[], None], device: torch.device) -> float:
    """What a message adds to a computation: seconds of both by the clock, less the computation's own: CPU time on a
    CPU, as in every estimate."""
    start, clock = time.perf_counter(), time.thread_time if device.type == "cpu" else time.perf_counter
    own_start = clock()
    computation()
    _wait_for(device)
    own = clock() - own_start
    call()
    _wait_for(device)
    return time.perf_counter() - start - own


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
