"""The built-in worker with something wrong: what a rank of the verdict tests runs. The product knows nothing of it.

injected_worker.py KIND:RANKS:FIRST:LAST:AMOUNT ...

backward, data: seconds more once a step; link: seconds more in each gather and reduce-scatter; memory: bytes kept a
step; hang: in the backward of that step, for ever. RANKS is 1 or 0,1; FIRST and LAST are steps.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from tpdpdash.telemetry.record import RUN_DIR_VARIABLE
from tpdpdash.worker import train
from tpdpdash.worker.__main__ import main

RANK = int(os.environ["RANK"])


class Injection:
    """One thing that goes wrong on this rank."""

    def __init__(self, text: str) -> None:
        kind, ranks, first, last, amount = text.split(":")
        self.kind, self.amount = kind, float(amount)
        self.is_mine = RANK in map(int, ranks.split(","))
        self.first, self.last = int(first), int(last)
        self.done_in = 0

    def is_due(self, *kinds: str) -> bool:
        return self.kind in kinds and self.is_mine and self.first <= STEP.number <= self.last

    def is_due_once(self, *kinds: str) -> bool:
        """Once a step."""
        due = self.is_due(*kinds) and self.done_in != STEP.number
        self.done_in = STEP.number if due else self.done_in
        return due


class Step:
    number = 0


STEP = Step()
INJECTIONS = [Injection(text) for text in sys.argv[1:]]
KEPT: list[bytes] = []


def compute(seconds: float) -> None:
    """Keep this rank busy."""
    value, end = torch.ones(64, 64), time.perf_counter() + seconds
    while time.perf_counter() < end:
        value = (value @ value).clamp_(max=1.0)


def wrap(owner: Any, name: str, before: Callable[[], None]) -> None:
    """Do something before each call."""
    function = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before()
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)


def in_backward() -> None:
    for each in INJECTIONS:
        if each.is_due_once("backward"):
            compute(each.amount)
        if each.is_due("hang"):
            time.sleep(10_000)


def in_data() -> None:
    for each in INJECTIONS:
        if each.is_due("data"):
            time.sleep(each.amount)


def in_link() -> None:
    for each in INJECTIONS:
        if each.is_due("link"):
            time.sleep(each.amount)


def before_step(function: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    def step(self: Any, number: int) -> Any:
        STEP.number = number
        for each in INJECTIONS:
            if each.is_due("memory"):
                KEPT.append(os.urandom(int(each.amount)))
        return function(self, number)

    return step


def come_first() -> None:
    """Before whatever else this machine computes, where that is allowed: then 200 ms more are no noise."""
    with suppress(OSError):  # not allowed, or a kernel that groups no sessions (sched(7), the autogroup feature)
        os.setpriority(os.PRIO_PROCESS, 0, -15)
        Path("/proc/self/autogroup").write_text("-15")


if __name__ == "__main__":
    come_first()
    wrap(torch.Tensor, "backward", in_backward)
    wrap(PipelineStage, "backward_one_chunk", in_backward)
    wrap(train, "replica_batch", in_data)
    for name in ("all_gather_single", "reduce_scatter_single"):
        wrap(dist, name, in_link)
    train.Trainer.step = before_step(train.Trainer.step)
    sys.exit(main(["--run-dir", os.environ[RUN_DIR_VARIABLE]]))
