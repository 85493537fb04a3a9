"""One rank's life: connect, build, train, leave."""

from __future__ import annotations

import importlib
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.job import DEFAULT_STEPS
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.rules import check_layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.telemetry.probe import Probe
from tpdpdash.training import Training
from tpdpdash.worker.build import SEED, Place
from tpdpdash.worker.data import SyntheticTokens, TextTokens, Tokens
from tpdpdash.worker.groups import make_groups
from tpdpdash.worker.start_probe import EarlyTorchProbe
from tpdpdash.worker.train import Trainer

if TYPE_CHECKING:
    from tpdpdash.job import Job

START_TIMEOUT = timedelta(seconds=300)
"""While ranks import and build at their own pace: many ranks on few cores take minutes."""
STEP_TIMEOUT_S = 60.0
"""After the first step: a rank that is silent for so long is gone."""
STEPS_OF_SILENCE = 10
"""Where steps are long, a rank may be silent for as many of them: it waits for a whole step in a pipeline."""


def run_rank(job: Job, layout: Layout, text: Path | None, probe: Probe) -> None:
    """Train the job, whose framework is "builtin", to its end. Raises InvalidInputError with all that cannot run."""
    refuse(job, layout)
    training = job.training
    tokens = open_tokens(job.model, training, text)
    device = open_device(job.cluster.device.is_cpu)
    if isinstance(probe, EarlyTorchProbe):
        probe.device_ready()
    import_parallelism(layout)
    probe.event("connecting")
    connect(device, layout.world_size)
    probe.event("building")
    groups = make_groups(layout, dist.get_rank())
    trainer = Trainer(job.model, training, layout, Place(groups=groups, device=device, probe=probe), tokens)
    began = time.monotonic()
    for number in range(1, (training.steps or DEFAULT_STEPS) + 1):
        told_step(trainer, probe, number, device)
        if number == 1:
            shorten_timeout(groups.all(), time.monotonic() - began)
    dist.barrier()  # a rank that leaves early looks to its peers like one that died
    dist.destroy_process_group()
    probe.close()


def told_step(trainer: Trainer, probe: Probe, number: int, device: torch.device) -> None:
    """One step, and what the probe is told of it."""
    with probe.step(number) as step:
        loss = trainer.step(number)
        step.tokens = trainer.tokens_per_step
        if loss is not None:
            with probe.phase("loss"):
                step.loss = loss.item()  # on a GPU the last stage waits here once a step, after all is queued
        if device.type == "cuda":
            step.memory_bytes = torch.cuda.memory_allocated(device)
            step.peak_memory_bytes = torch.cuda.max_memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)


def import_parallelism(layout: Layout) -> None:
    """Import it while the event is "importing": it takes as long as torch itself, and only some layouts need it."""
    if layout.pp > 1:
        importlib.import_module("tpdpdash.worker.pipeline")
    if layout.zero_stage >= 2 and layout.dp_shard_size > 1:
        importlib.import_module("tpdpdash.worker.fully_sharded")


def refuse(job: Job, layout: Layout) -> None:
    """Raise InvalidInputError when the built-in worker cannot run the job, or torchrun started another world."""
    faults = check_layout(job.model, job.training, job.cluster, layout)
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != layout.world_size:
        values = {"needed": layout.world_size}
        faults.append(Fault(code="builtin_world_size", field="WORLD_SIZE", value=started, values=values))
    if faults:
        raise InvalidInputError(faults)


def open_tokens(model: ModelSpec, training: Training, text: Path | None) -> Tokens:
    """The source of tokens: the text, or synthetic ones."""
    if text is not None:
        return TextTokens(text, vocab_size=model.vocab_size, seq_len=training.seq_len)
    return SyntheticTokens(vocab_size=model.vocab_size, seq_len=training.seq_len, seed=SEED)


def open_device(is_cpu: bool) -> torch.device:
    """This rank's device. Ranks on CPU take one thread each, since they share the cores."""
    if is_cpu:
        torch.set_num_threads(1)
        return torch.device("cpu")
    local_rank, num_devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= num_devices:
        values = {"available": num_devices}
        raise InvalidInputError([Fault(code="builtin_no_device", field="LOCAL_RANK", value=local_rank, values=values)])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def connect(device: torch.device, world_size: int) -> None:
    """Join the default process group: gloo on CPU, NCCL on GPUs."""
    if device.type == "cuda":
        dist.init_process_group("nccl", timeout=START_TIMEOUT, device_id=device)
        # Backward runs in this thread, so that its collectives nest in the region that the probe has open.
        torch.autograd.set_multithreading_enabled(False)
    else:
        dist.init_process_group("gloo", timeout=START_TIMEOUT)
    if dist.get_world_size() != world_size:
        raise RuntimeError(f"world size is {dist.get_world_size()}; the layout needs {world_size}")


def shorten_timeout(groups: list[dist.ProcessGroup | None], first_step_s: float) -> None:
    """From now on a silent peer is an error after a minute, or after ten times the first step where that is longer."""
    timeout = timedelta(seconds=max(STEP_TIMEOUT_S, STEPS_OF_SILENCE * first_step_s))
    for group in (None, *(group for group in groups if group is not None)):
        dist.distributed_c10d._set_pg_timeout(timeout, group)
