"""The deep profile of one step in a rank that runs: hears of the request, begins, ends, never breaks the script.

The heartbeat's thread looks for the request, so a step costs one question of an attribute. Standard library only:
torch's part is imported when a profile is wanted, in a process that has torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tpdpdash.telemetry.record import PROFILE_REQUEST
from tpdpdash.telemetry.regions import State

if TYPE_CHECKING:
    from tpdpdash.telemetry.profile_request import ProfileRequest

BEGUN, DONE, FAILED = "profiling", "profiled", "profile_failed"
PROFILE_EVENTS = (BEGUN, DONE, FAILED)
"""Names of the events: each has the step that is profiled."""


class StepProfile(Protocol):
    """A profile that has begun (profile_torch)."""

    def note(self) -> None:
        """Another phase begins."""

    def write(self, run_dir: Path, rank: int, step: int) -> Mapping[str, object]:
        """End it and write its file; what the event is to say of it."""
        ...

    def drop(self) -> None:
        """End it without a file."""


class Teller(Protocol):
    """Writes an event."""

    def __call__(self, name: str, step: int, said: Mapping[str, object]) -> None: ...


class Profiling:
    """One rank's deep profiles, one after the other."""

    __slots__ = ("_folder", "_heard_ns", "_rank", "_said_before", "_state", "_step", "_tell", "open", "wanted")

    def __init__(self, folder: Path | None, rank: int, state: State, tell: Teller) -> None:
        self._folder, self._rank, self._state, self._tell = folder, rank, state, tell
        self._heard_ns = 0
        self._step = 0
        self._said_before = ""
        self.wanted: ProfileRequest | None = None
        """What is asked of this rank and not begun."""
        self.open: StepProfile | None = None
        """The profile of the step that runs."""

    def look(self) -> None:
        """Whether there is a new request. Called by the heartbeat's thread."""
        if self._folder is None:
            return
        try:
            changed_ns = os.stat(f"{self._folder}/{PROFILE_REQUEST}").st_mtime_ns  # noqa: PTH116 once a second, for ever
            if changed_ns == self._heard_ns:
                return
            self._heard_ns = changed_ns
            from tpdpdash.telemetry.profile_request import read_request  # and dataclasses: not for a script's start

            request = read_request(self._folder)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as wrong:
            self._tell("probe_failed", self._state.step or 0, {"error": repr(wrong)[:1000]})
            return
        if request is not None:
            self.wanted = request if self._rank in request.ranks else None

    def begin(self, step: int) -> None:
        """A step is about to begin and a profile is wanted: of this step, or of a later one."""
        wanted = self.wanted
        if wanted is None or step < wanted.step:
            return
        self.wanted, self._step = None, step
        self._say(BEGUN)
        self._tell(BEGUN, step, {})
        try:
            if "torch" not in sys.modules:
                raise RuntimeError("this script has not imported torch, whose profiler it is")
            self.open = importlib.import_module("tpdpdash.telemetry.profile_torch").begin(self._state)
        except Exception as wrong:  # noqa: BLE001 whatever is wrong with the profiler is not the script's fault
            self._fail(wrong)

    def end(self, *, is_whole: bool) -> None:
        """The step is over; `is_whole`: without an exception."""
        profile, self.open = self.open, None
        if profile is None or self._folder is None:
            return
        try:
            if not is_whole:
                profile.drop()
                raise RuntimeError("the step did not come to its end")
            said = profile.write(self._folder, self._rank, self._step)
        except Exception as wrong:  # noqa: BLE001 a full disk, a profiler that fails: the script goes on
            self._fail(wrong)
            return
        self._tell(DONE, self._step, said)
        self._unsay()

    def _fail(self, wrong: Exception) -> None:
        self._tell(FAILED, self._step, {"error": repr(wrong)[:1000]})
        self._unsay()

    def _say(self, name: str) -> None:
        """What the heartbeat says between steps: a file of a long step takes seconds to write."""
        self._said_before, self._state.last_event = self._state.last_event, name

    def _unsay(self) -> None:
        if self._state.last_event == BEGUN:
            self._state.last_event = self._said_before
