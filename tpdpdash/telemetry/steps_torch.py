"""The steps of any torch script, by its optimizer: step times without a line in the script.

A step ends when the optimizer's step does, and the next one begins there. Imports nothing that torch itself does not.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tpdpdash.telemetry.probe import Probe, Step


class Sight(Protocol):
    """What tells of a step's phases (watch_torch)."""

    def look_at(self, models: tuple[torch.nn.Module, ...]) -> None:
        """These are trained."""

    def learn(self) -> None:
        """Look for groups."""

    def optimizer_begins(self) -> None:
        """An optimizer's step begins."""

    def optimizer_ends(self) -> None:
        """It has ended."""

    def fill_in(self, step: Step) -> None:
        """The step is over and not told yet."""

    def step_ended(self) -> None:
        """It was told."""


class Steps:
    """Marks the steps of a script: one a process. Without a sight it tells of step times alone."""

    current: Steps | None = None
    """The one of this process."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.sight: Sight | None = None
        self.tokens: float | None = None
        """Tokens of each step, where the script says so."""
        self._step: Step | None = None
        self._number = 0
        self._thread, self._pid = threading.get_ident(), os.getpid()
        self._clock: weakref.ref[torch.optim.Optimizer] | None = None
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        register_optimizer_step_pre_hook(self._optimizer_begins)
        register_optimizer_step_post_hook(self._optimizer_ends)
        atexit.register(self._leave)
        Steps.current = self

    def asked(self) -> None:
        """The script itself calls for the probe: a step that is open by then is not told."""
        self.probe.is_unasked, self._clock = False, None
        if self._step is not None:
            self._step.drop()
            self._step = None
            self._number -= 1

    def go_on_with(self, probe: Probe) -> None:
        """From now on this one tells."""
        self.probe.retire()
        self.probe = probe

    def begin(self) -> None:
        """A step begins, unless one is open."""
        if self._step is None and threading.get_ident() == self._thread:
            self._number += 1
            self._step = self.probe.step(self._number)
            self._step.tokens = self.tokens
            self._step.__enter__()

    def _optimizer_begins(self, *_: object) -> None:
        if self.sight is not None and threading.get_ident() == self._thread:
            self.begin()
            self.sight.optimizer_begins()

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if threading.get_ident() != self._thread:
            return
        if self.sight is not None:
            self.sight.optimizer_ends()
        if self._ends_step(optimizer):
            self._end()
            self.begin()

    def _ends_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """One optimizer of several beats the time: the first, as long as no other steps twice between its steps."""
        clock = None if self._clock is None else self._clock()
        if clock is None or optimizer in self._stepped:
            self._clock = weakref.ref(optimizer)
        elif optimizer is not clock:
            self._stepped.add(optimizer)
            return False
        self._stepped.clear()
        return True

    def _end(self) -> None:
        step, self._step = self._step, None
        if step is None:  # no line in the script: its first step began before anything was known
            self._number += 1
            return
        if torch.cuda.is_initialized():
            step.memory_bytes, step.peak_memory_bytes = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
            if self.probe.device == "cpu":
                self._notice_device()
        if self.sight is not None:
            self.sight.fill_in(step)
        step.__exit__(None, None, None)
        if self.sight is not None:
            self.sight.step_ended()

    def _notice_device(self) -> None:
        """The script went to a GPU after its probe had started: on its own clock it stays."""
        self.probe.hello(device=f"cuda:{torch.cuda.current_device()}")
        if self.sight is not None:
            self.probe.trouble(RuntimeError("watch(model) came before model.to(device): phases are timed on the host"))

    def _leave(self) -> None:
        """The script has come to its end; what it told of an error stands as the last word."""
        if not self.probe.has_failed and os.getpid() == self._pid:  # a fork of the rank is not the rank
            self.probe.close()


def watch_unasked() -> None:
    """Tell of step times in a script that says nothing itself; it gives way to a probe of the script's own."""
    if Probe.writing is not None:
        return
    probe = Probe.from_env()
    probe.is_unasked = True
    probe.event("building")
    Steps(probe)
