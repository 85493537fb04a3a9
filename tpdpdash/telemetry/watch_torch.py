"""The probe in any torch script, from two lines:

    from tpdpdash.telemetry.watch_torch import watch
    watch(model)                          # once the model stands on its device; before or after DDP, FSDP, a pipeline

A step ends with the optimizer's step. Forward and backward are the model's and autograd's own; what lies between them
is the loss. Collectives count as the phase of their process group (hear_torch), DDP's, FSDP's and a pipeline's waiting
too (parallel_torch). Nothing synchronises, and outside a run nothing is installed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import dataloader

from tpdpdash.telemetry.hear_torch import Ear
from tpdpdash.telemetry.loss_torch import StepLoss
from tpdpdash.telemetry.membership import coords_of
from tpdpdash.telemetry.parallel_torch import ParallelEar, in_region
from tpdpdash.telemetry.probe import Probe, Step
from tpdpdash.telemetry.probe_torch import TorchProbe
from tpdpdash.telemetry.record import RUN_DIR_VARIABLE
from tpdpdash.telemetry.regions import OUTSIDE, Timed
from tpdpdash.telemetry.steps_torch import Steps

_LEARNING_STEPS = 2
"""Groups are learnt before the first step and after these: by then every one has been used."""


def watch(*models: torch.nn.Module, tokens_per_step: float | None = None) -> None:
    """Tell this run where the time of each step goes. `models`: all that this rank trains, as it calls them.

    `tokens_per_step`: what this rank's replica reads in one step, if it is to be shown. Call it again with models
    that are made later. Outside a run it does nothing.
    """
    if not os.environ.get(RUN_DIR_VARIABLE):
        return
    steps = Steps.current or Steps(Probe.from_env())
    steps.tokens = tokens_per_step if tokens_per_step is not None else steps.tokens
    try:
        sight = steps.sight or _open_eyes(steps, models)
        sight.look_at(models)
        sight.learn()
    except Exception as wrong:  # noqa: BLE001 whatever is wrong with the probe is not the script's fault
        steps.probe.trouble(wrong)


def _open_eyes(steps: Steps, models: tuple[torch.nn.Module, ...]) -> Sight:
    """From now on tell of phases too."""
    steps.asked()
    device = _device_of(models)
    if device.startswith("cuda"):
        steps.go_on_with(TorchProbe.from_env(device=device))
    steps.sight = sight = Sight(steps.probe, steps.begin)
    return sight


class Sight:
    """What `watch` puts into torch: regions around forward, backward, data, optimizer and collectives."""

    def __init__(self, probe: Probe, begin: Callable[[], None]) -> None:
        self._probe, self._begin = probe, begin
        self._state = probe._state
        self._ear = Ear(probe, begin)
        self._parallel = ParallelEar(self._ear)
        self._models: list[torch.nn.Module] = []
        self._loss = StepLoss(probe.device)
        self._open_forwards: list[Timed | None] = []
        self._open_optimizer: Timed | None = None
        self._coords: Mapping[str, int] = {}
        self._regions = {name: probe.phase(name) for name in ("data", "forward", "backward", "optimizer", "evaluation")}
        self._learning_steps_left = _LEARNING_STEPS
        self._ear.price()
        probe.hello()
        self._attach()

    def look_at(self, models: tuple[torch.nn.Module, ...]) -> None:
        """These are the models that are trained."""
        for model in models:
            if all(model is not known for known in self._models):
                self._models.append(model)
                model.register_forward_pre_hook(self._forward_begins, prepend=True)
                model.register_forward_hook(self._forward_ends, always_call=True)

    def learn(self) -> None:
        """Which groups there are now, and who this rank is in them."""
        try:
            self._learn()
        except Exception as wrong:  # noqa: BLE001 whatever is wrong with the probe is not the script's fault
            self._learning_steps_left = 0
            self._probe.trouble(wrong)

    def _learn(self) -> None:
        self._parallel.attach()
        if not dist.is_available() or not dist.is_initialized():
            return
        self._parallel.learn_fsdp(self._models)
        self._parallel.learn_meshes()
        coords = coords_of(self._ear.groups(), dist.get_rank(), dist.get_world_size())
        if coords and coords != self._coords:
            self._coords = coords
            self._probe.hello(coords=coords, backend=str(dist.get_backend()))

    def step_ended(self) -> None:
        """The first steps show which groups are used, and for what."""
        if self._learning_steps_left:
            self._learning_steps_left -= 1
            self.learn()

    def fill_in(self, step: Step) -> None:
        """What the step is known by besides its times."""
        step.read_loss = self._loss.take()

    def optimizer_begins(self) -> None:
        """Enter its region."""
        self.optimizer_ends()  # of one that raised
        self._open_optimizer = self._regions["optimizer"]
        self._open_optimizer.__enter__()

    def optimizer_ends(self) -> None:
        """Leave its region."""
        region, self._open_optimizer = self._open_optimizer, None
        if region is not None:
            region.__exit__()
            self._rest(None)

    # ------------------------------------------------------------------------------------ what torch calls

    def _attach(self) -> None:
        self._ear.attach()
        self._parallel.hear_ddp()
        torch.autograd.backward = self._backward(torch.autograd.backward)
        torch.autograd.grad = self._backward(torch.autograd.grad)
        loader = dataloader._BaseDataLoaderIter
        loader.__next__ = self._begins_step(in_region(loader.__next__, self._regions["data"]))
        optimizer, updating = torch.optim.Optimizer, self._regions["optimizer"]
        optimizer.zero_grad = in_region(optimizer.zero_grad, updating)
        clip = torch.nn.utils.clip_grad
        clip.clip_grad_norm_ = in_region(clip.clip_grad_norm_, updating)
        torch.nn.utils.clip_grad_norm_ = clip.clip_grad_norm_
        torch.amp.GradScaler.scale = self._loss.unscaled(torch.amp.GradScaler.scale)

    def _begins_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def beginning(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            return function(*args, **kwargs)

        return beginning

    def _forward_begins(self, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        is_training = torch.is_grad_enabled()
        if is_training:
            self._begin()
        region = self._regions["forward" if is_training else "evaluation"] if self._ear.hears() else None
        self._open_forwards.append(region)
        if region is not None:
            region.__enter__()

    def _forward_ends(self, *_: object) -> None:
        if torch.compiler.is_compiling() or not self._open_forwards:
            return
        region = self._open_forwards.pop()
        if region is not None:
            region.__exit__()
            self._rest("loss" if region is self._regions["forward"] else None)

    def _backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        region = self._regions["backward"]

        @wraps(function)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or threading.get_ident() != self._ear.thread:
                return function(*args, **kwargs)
            self._begin()
            if not self._ear.hears():
                return function(*args, **kwargs)
            if not self._ear.in_backward:
                self._loss.note(args[0] if args else kwargs.get("tensors"), in_pipeline=self._parallel.in_pipeline > 0)
            self._ear.in_backward += 1
            try:
                with region:
                    try:
                        return function(*args, **kwargs)
                    finally:
                        self._parallel.leave_late()
            finally:
                self._ear.in_backward -= 1
                self._rest(None)

        return backward

    def _rest(self, phase: str | None) -> None:
        """What lies between two regions from now on."""
        if phase is not None or self._state.current != OUTSIDE:
            self._probe.between(phase)


def _device_of(models: tuple[torch.nn.Module, ...]) -> str:
    """Where the models are, as telemetry names it."""
    kinds = {parameter.device.type for model in models for parameter in model.parameters()}
    if "cuda" in kinds or (not kinds and torch.cuda.is_initialized()):
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"
