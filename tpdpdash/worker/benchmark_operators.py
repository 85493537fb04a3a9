"""Seconds of single operators on one rank: products, attention, the built-in layer, the optimizer's update, copies."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from tpdpdash.model.spec import ModelSpec
from tpdpdash.telemetry.measurements import Measurement
from tpdpdash.telemetry.probe import Probe
from tpdpdash.worker.build import DTYPES
from tpdpdash.worker.collectives import TensorGroup
from tpdpdash.worker.transformer import Layer, rope_table
from tpdpdash.worker.update import Update
from tpdpdash.worker.weights import layer_weights, meta_parameters, subset


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is measured on one kind of device."""

    gemm: tuple[tuple[int, int, int], ...]
    """Rows, inner, outer."""
    attention: tuple[tuple[int, int, int], ...]
    """Tokens, heads, width of a head."""
    layer: tuple[tuple[int, int, int, int], ...]
    """Hidden size, FFN size, heads, tokens."""
    update: tuple[int, ...]
    """Parameters."""
    copy: tuple[int, ...]
    """Bytes."""
    block_s: float
    """Calls are repeated until they take so long, then timed together."""
    repeats: int
    """Blocks, of which one counts."""


CPU_SIZES = Sizes(
    gemm=(
        *((64, 64, 64), (128, 64, 64), (128, 64, 256), (64, 128, 256), (128, 256, 256), (688, 128, 256)),
        *((256, 128, 688), (128, 256, 1024), (256, 256, 688), (256, 512, 512), (256, 1376, 512), (512, 1024, 1024)),
    ),
    attention=((128, 4, 16), (128, 4, 32), (128, 4, 64), (256, 8, 64), (512, 4, 64)),
    layer=(
        *((32, 128, 2, 64), (64, 256, 4, 128), (128, 512, 4, 128)),
        *((256, 688, 4, 128), (256, 688, 4, 256), (512, 1376, 8, 256)),
    ),
    update=(1_000_000, 4_000_000, 16_000_000),
    copy=(),
    block_s=0.003,
    repeats=40,
)  # fmt: skip
GPU_SIZES = Sizes(
    gemm=(
        *((512, 4096, 4096), (2048, 512, 4096), (2048, 1024, 1024), (2048, 4096, 4096), (4096, 4096, 11008)),
        *((4096, 128, 4096), (8192, 8192, 8192)),
    ),
    attention=((2048, 16, 128), (4096, 32, 128), (8192, 32, 128), (4096, 32, 64)),
    layer=(),
    update=(),
    copy=(1 << 26, 1 << 28, 1 << 30),
    block_s=0.05,
    repeats=5,
)
TINY_SIZES = Sizes(
    gemm=((32, 32, 32), (64, 32, 64), (64, 64, 64)),
    attention=((32, 2, 16),),
    layer=((16, 32, 2, 16), (32, 64, 2, 32)),
    update=(10_000,),
    copy=(),
    block_s=0.001,
    repeats=2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """Times an operator on one device."""

    device: torch.device
    """Where it runs."""
    block_s: float
    """As in Sizes."""
    repeats: int
    """As in Sizes."""

    def _block(self, call: Callable[[], object], times: int) -> tuple[float, float]:
        """(seconds by the clock, seconds of this thread's CPU time) of `times` calls."""
        clock, cpu = time.perf_counter(), time.thread_time()
        for _ in range(times):
            call()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - clock, time.thread_time() - cpu

    def __call__(self, call: Callable[[], object]) -> tuple[float, float]:
        """(seconds of one call, clock time per CPU time): of the middle block; on a CPU in CPU time, which
        others' load leaves alone but for the caches, of which blocks shorter than a time slice tell least."""
        self._block(call, 1)
        first, _ = self._block(call, 1)
        times = max(1, min(100_000, int(self.block_s / max(first, 1e-7))))
        blocks = [self._block(call, times) for _ in range(self.repeats)]
        if self.device.type == "cuda":
            return statistics.median(clock for clock, _ in blocks) / times, 1.0
        clock, cpu = (sum(each) for each in zip(*blocks, strict=True))
        middle = statistics.median(cpu for _, cpu in blocks)
        return middle / times, max(1.0, clock / max(cpu, 1e-9))


class Taker:
    """Times operators and keeps what they took."""

    def __init__(self, timer: Timer, busy: int) -> None:
        self._timer, self._busy = timer, busy
        self.taken: list[Measurement] = []

    def __call__(self, what: str, of: tuple[int, ...], call: Callable[[], object], precision: str = "fp32") -> None:
        """One operator of one size."""
        seconds, stretch = self._timer(call)
        self.taken.append(
            Measurement(what=what, sizes=of, busy=self._busy, seconds=seconds, stretch=stretch, precision=precision)
        )


def measure_operators(device: torch.device, busy: int, *, tiny: bool) -> list[Measurement]:
    """On this rank, while `busy` ranks do the same."""
    sizes = TINY_SIZES if tiny else CPU_SIZES if device.type == "cpu" else GPU_SIZES
    take = Taker(Timer(device=device, block_s=sizes.block_s, repeats=sizes.repeats), busy)
    for shape in sizes.gemm:
        _product(shape, "fp32", device, take)
    # In 16 bits a CPU's products are measured at one size: how far they are from fp32's peak.
    for shape in sizes.gemm if device.type == "cuda" else sizes.gemm[-1:]:
        _product(shape, "bf16", device, take)
    for shape in sizes.attention:
        _attention(shape, device, take)
    for layer in sizes.layer:
        _layer(layer, device, take)
    for number in sizes.update:
        _update(number, device, take)
    for number in sizes.copy:
        _copy(number, device, take)
    if device.type == "cuda":
        take.taken.append(Measurement(what="launch", sizes=(), busy=busy, seconds=_launch_s(device)))
    return take.taken


def _product(shape: tuple[int, int, int], precision: str, device: torch.device, take: Taker) -> None:
    rows, inner, outer = shape
    left, right = (torch.randn(n, inner, device=device, dtype=DTYPES[precision]) for n in (rows, outer))
    take("gemm", shape, lambda: F.linear(left, right), precision)


def _update(number: int, device: torch.device, take: Taker) -> None:
    update = Update(torch.randn(number, device=device), kind="adamw", state_dtype=torch.float32)
    gradient = torch.randn(number, device=device)
    take("update", (number,), lambda: update(gradient))


def _copy(number: int, device: torch.device, take: Taker) -> None:
    source = torch.zeros(number, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    take("copy", (number,), lambda: target.copy_(source))


def _attention(shape: tuple[int, int, int], device: torch.device, take: Taker) -> None:
    tokens, heads, width = shape
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    precision = "fp32" if device.type == "cpu" else "bf16"
    q, k, v = (torch.randn(1, heads, tokens, width, device=device, dtype=dtype, requires_grad=True) for _ in range(3))

    def forward() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    take("attention_forward", shape, forward, precision)
    out = forward()
    gradient = torch.randn_like(out)
    take(
        "attention_backward",
        shape,
        lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True),
        precision,
    )


def layer_of(
    shape: tuple[int, int, int, int], device: torch.device
) -> tuple[Layer, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """A layer of the built-in model of some hidden size, FFN size and heads on one rank, hidden states of some tokens
    for it, and its rotary table."""
    hidden, inner, heads, tokens = shape
    model = ModelSpec(
        name="measured", num_layers=1, hidden_size=hidden, num_attention_heads=heads, num_kv_heads=heads,
        head_dim=hidden // heads, ffn_hidden_size=inner, vocab_size=2,
    )  # fmt: skip
    alone = TensorGroup(group=None, rank=0, size=1, sequence_parallel=False, probe=Probe(None, rank=0, world_size=1))
    parameters = {
        name: torch.nn.Parameter(torch.randn(each.shape, device=device) * 0.02)
        for name, each in meta_parameters(layer_weights(model, 0, 1, False), 1).items()
    }
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    layer = Layer(model, subset(parameters, "model.layers.0"), alone, "flash")
    states = torch.randn(tokens, 1, hidden, device=device, requires_grad=True)
    return layer, states, rope_table(tokens, model.head_dim, device)


def _layer(shape: tuple[int, int, int, int], device: torch.device, take: Taker) -> None:
    """Forward, then forward and backward, of one layer of the built-in model; the difference is its backward."""
    layer, states, rope = layer_of(shape, device)
    gradient = torch.randn_like(states)
    take("layer_forward", shape, lambda: layer(states, rope))
    take("layer_both", shape, lambda: layer(states, rope).backward(gradient))


def _launch_s(device: torch.device, launches: int = 2000) -> float:
    """Host seconds of launching one small kernel, without waiting for it."""
    small = torch.zeros(8, device=device)
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(launches):
        small.add_(1.0)
    spent = time.perf_counter() - start
    torch.cuda.synchronize(device)
    return spent / launches
