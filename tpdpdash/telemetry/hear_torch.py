"""How the probe hears the collectives of any torch script: each counts as the phase of its process group.

Heard: whatever Python sends through a ProcessGroup (torch.distributed's functions, FSDP2, pipelining, Megatron's
layers), the wait for it, and the functional collectives of DTensor. Not heard: what C++ sends by itself (DDP's reducer,
but for hear_parallel's hook; compiled graphs): that counts as the phase around it.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tpdpdash.telemetry.membership import Group, axes_by_use, axes_named, phase_of
from tpdpdash.telemetry.probe import Probe
from tpdpdash.telemetry.record import COLLECTIVE_PHASES, PHASES
from tpdpdash.telemetry.regions import NO_ACTION, OUTSIDE, Timed

GROUP_METHODS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
}
"""Methods of torch's ProcessGroup that communicate, and what they are called in telemetry. torch 2.13 has all of them;
one that another release lacks is not called there either."""
FUNCTIONAL = {
    "broadcast": "broadcast",
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
"""Functions of torch.distributed._functional_collectives, private; their deprecated names call these."""
_POINT_TO_POINT = ("send", "recv")
_MAX_REMEMBERED = 1024
_COLLECTIVE = frozenset(PHASES.index(phase) for phase in COLLECTIVE_PHASES)


class Channel:
    """One process group as the probe knows it."""

    __slots__ = ("_phase", "_probe", "_regions", "axes", "ranks", "uses")

    def __init__(self, probe: Probe, ranks: tuple[int, ...], axes: frozenset[str]) -> None:
        self._probe, self.ranks, self.axes = probe, ranks, axes
        self.uses: set[str] = set()
        self._regions: dict[tuple[str, str], Timed] = {}
        self._phase = phase_of(axes)

    def settle(self, axes: frozenset[str]) -> None:
        """From now on the axes are these."""
        self.axes, self._phase = axes, phase_of(axes)

    def also(self, axis: str) -> None:
        """It is known to run along this axis, whatever its name."""
        if axis not in self.axes:
            self.settle(frozenset({axis}))

    def region(self, operation: str, current: int) -> Timed:
        """The region of a collective that is called in phase `current`."""
        phase = self._phase
        if phase is None:
            phase = self._phase_by_use(operation, current)
        region = self._regions.get((phase, operation))
        if region is None:
            region = self._regions[phase, operation] = self._probe.phase(phase, operation)
        return region

    def _phase_by_use(self, operation: str, current: int) -> str:
        """Inside a collective phase: that one (FSDP's own, a pipeline's)."""
        if current in _COLLECTIVE:
            use = PHASES[current]
        elif operation in _POINT_TO_POINT:
            use = "pp"
        else:
            use = "other" if current == OUTSIDE else PHASES[current]
        self.uses.add(use)
        return phase_of(axes_by_use(self.uses)) or "other"


class _SilentGroup:
    """Stands for a group that sends nothing: what is left is the probe."""

    group_name = "tpdpdash"

    def send(self) -> None:
        """Nothing."""


class Ear:
    """Hears collectives and tells the probe. One a process; `attach` puts it into torch, for good."""

    def __init__(self, probe: Probe, begin: Callable[[], None]) -> None:
        """`begin` starts the first step, when work for it is seen."""
        self.probe, self.begin = probe, begin
        self.in_backward = 0
        """How many calls of backward are open: autograd's threads belong to the step meanwhile."""
        self.is_deaf = False
        """Whether something went wrong in the probe itself: it hears no more."""
        self.channels: dict[str, Channel] = {}
        self._state = probe._state
        self.thread = threading.get_ident()
        self._waits: dict[int, Timed] = {}
        self._places: dict[tuple[int, object], tuple[object, Channel]] = {}
        self._last_functional: Timed = probe.phase("other")
        self._is_cuda = probe.device.startswith("cuda")

    def hears(self) -> bool:
        """Whether what is called now belongs to a step: by the training thread or autograd's, and not into a graph."""
        if self.is_deaf or not self._state.in_step or torch.compiler.is_compiling():
            return False
        if not self.in_backward and threading.get_ident() != self.thread:
            return False
        return not (self._is_cuda and torch.cuda.is_current_stream_capturing())

    def channel(self, group: dist.ProcessGroup) -> Channel:
        """What is known of a group."""
        name = group.group_name
        channel = self.channels.get(name)
        if channel is None:
            ranks = tuple(dist.get_process_group_ranks(group))
            channel = self.channels[name] = Channel(self.probe, ranks, axes_named(group.group_desc))
        return channel

    def groups(self) -> list[Group]:
        """What is known of the groups by name and by use."""
        return [
            Group(axes=channel.axes or axes_by_use(channel.uses), ranks=channel.ranks, is_named=bool(channel.axes))
            for channel in self.channels.values()
        ]

    def attach(self) -> None:
        """Listen from now on."""
        for name, operation in GROUP_METHODS.items():
            method = getattr(dist.ProcessGroup, name, None)
            if method is not None:
                setattr(dist.ProcessGroup, name, self._sent(method, operation))
        dist.Work.wait = self._waited(dist.Work.wait)
        for name, operation in FUNCTIONAL.items():
            function = getattr(functional, name, None)
            if function is None:
                warnings.warn(f"torch {torch.__version__} has no functional {name}: it counts as others", stacklevel=2)
                continue
            setattr(functional, name, self._functional(function, operation))
        functional.wait_tensor = self._functional_wait(functional.wait_tensor)

    def price(self) -> None:
        """Measure what hearing one call costs, all told: it stands in the rank's hello."""
        group = _SilentGroup()
        self.channels[group.group_name] = Channel(self.probe, (), frozenset())
        self.thread = threading.get_ident()
        self.probe.price(partial(self._sent(_SilentGroup.send, "send"), group))
        del self.channels[group.group_name]

    def _sent(self, method: Callable[..., Any], operation: str) -> Callable[..., Any]:
        @wraps(method)
        def sent(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            if not self.hears():
                return method(group, *args, **kwargs)
            region = self._region_of(partial(self.channel, group), operation)
            with region:
                work = method(group, *args, **kwargs)
            if work is not None:
                self._remember(id(work), region)
            return work

        return sent

    def _waited(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def wait(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
            region = self._waits.pop(id(work), None)
            if region is None or not self.hears():
                return method(work, *args, **kwargs)
            with region:
                return method(work, *args, **kwargs)

        return wait

    def _functional(self, function: Callable[..., Any], operation: str) -> Callable[..., Any]:
        position = list(inspect.signature(function).parameters).index("group")

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if not self.hears():
                return function(*args, **kwargs)
            place = args[position] if len(args) > position else kwargs["group"]
            region = self._region_of(partial(self._channel_at, place), operation)
            self._last_functional = region
            with region:
                given = function(*args, **kwargs)
            for each in given if isinstance(given, list) else (given,):
                if isinstance(each, functional.AsyncCollectiveTensor):
                    self._remember(id(each.elem), region)
            return given

        return called

    def _functional_wait(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A collective that autograd sent by itself is not known: its wait counts as that of the last one."""

        @wraps(function)
        def wait_tensor(tensor: torch.Tensor) -> Any:
            if not self.hears():
                return function(tensor)
            with self._waits.pop(id(tensor), self._last_functional):
                return function(tensor)

        return wait_tensor

    def _region_of(self, find: Callable[[], Channel], operation: str) -> Timed:
        """The region of a collective. A group that cannot be found ends the listening, never the script."""
        try:
            return find().region(operation, self._state.current)
        except Exception as wrong:  # noqa: BLE001 whatever is wrong with the probe is not the script's fault
            self.give_up(wrong)
            return NO_ACTION

    def give_up(self, wrong: BaseException) -> None:
        """Say what the probe cannot do here, and hear no more: what is in no region by then is unattributed."""
        self.is_deaf = True
        self.probe.trouble(wrong)

    def _channel_at(self, place: Any) -> Channel:
        """A group as functional collectives take it: a ProcessGroup, (mesh, dimension), a mesh, ranks."""
        mesh, dimension = place if isinstance(place, tuple) else (place, None)
        known = self._places.get((id(mesh), dimension))
        if known is not None:
            return known[1]
        found = functional._resolve_group(place)
        group = dist.distributed_c10d._resolve_process_group(found) if isinstance(found, str) else found
        channel = self.channel(group)
        if isinstance(mesh, list):  # a new list each time
            return channel
        if len(self._places) > _MAX_REMEMBERED:
            self._places.clear()
        self._places[id(mesh), dimension] = mesh, channel  # kept, so that its id stays its own
        return channel

    def _remember(self, key: int, region: Timed) -> None:
        if len(self._waits) > _MAX_REMEMBERED:  # many are never waited for
            self._waits.clear()
        self._waits[key] = region
