"""How the probe hears DDP, FSDP2, pipelines and meshes, whose waiting is not a call of torch.distributed."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist

from tpdpdash.telemetry.hear_torch import Ear
from tpdpdash.telemetry.membership import axes_named
from tpdpdash.telemetry.regions import Timed

FSDP_METHODS = {
    "unshard": "all_gather",
    "wait_for_unshard": "all_gather",
    "post_backward": "reduce_scatter",
    "finalize_backward": "reduce_scatter",
}
"""Methods of torch 2.13's private FSDPParamGroup in which a rank sends or waits. The streams of a GPU are inside them:
what the probe marks before and after is the stream that computes, so it sees what is not hidden."""
_FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_STAGES = "torch.distributed.pipelining.stage"
_SCHEDULES = "torch.distributed.pipelining.schedules"


def in_region(function: Callable[..., Any], region: Timed) -> Callable[..., Any]:
    """The function, each call of it in a region."""

    @wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        with region:
            return function(*args, **kwargs)

    return measured


def measure_fsdp(where: Any, region_of: Callable[[str], Timed]) -> None:
    """Tell of FSDP's gathers and reductions; `where` is one FSDPParamGroup, or the class for all of them.

    Not part of torch's interface: where a method is gone, its time counts as forward or backward, and a warning says
    so.
    """
    for name, collective in FSDP_METHODS.items():
        method = getattr(where, name, None)
        if method is None:
            warnings.warn(f"torch {torch.__version__} has no {name}: FSDP's messages count as others", stacklevel=2)
            continue
        setattr(where, name, in_region(method, region_of(collective)))


class ParallelEar:
    """Hears what torch's own kinds of parallelism do, as soon as their modules are imported."""

    def __init__(self, ear: Ear) -> None:
        self._ear, self._probe = ear, ear.probe
        self._heard: set[str] = set()
        self._late_region: Timed | None = None
        self.in_pipeline = 0
        """How many steps of a pipeline schedule are open."""

    def attach(self) -> None:
        """Listen to what is imported by now; again with every call, until all is."""
        for module, listen in (
            (_FSDP, self._hear_fsdp),
            (_STAGES, self._hear_stages),
            (_SCHEDULES, self._hear_schedules),
        ):
            if module in sys.modules and module not in self._heard:
                self._heard.add(module)
                listen(sys.modules[module])

    # ------------------------------------------------------------------------------------ DDP

    def hear_ddp(self) -> None:
        """Listen to the DistributedDataParallel models that stand, and to those that are made later."""
        made = torch.nn.parallel.DistributedDataParallel
        for model in _living(made):
            self._hear_reducer(model)
        plain = made.__init__

        @wraps(plain)
        def init(model: Any, *args: Any, **kwargs: Any) -> None:
            plain(model, *args, **kwargs)
            self._hear_reducer(model)

        made.__init__ = init

    def _hear_reducer(self, model: Any) -> None:
        """All-reduce as DDP does by default, to the last bit, and note when its last bucket is ready.

        What is left of backward then is waiting for gradients: exposed dp. A model with a hook of its own keeps it. So
        does one whose gradients are views of the buckets where the size is no power of two: the reducer divides some
        and multiplies others, and a hook cannot tell which.
        """
        self._ear.channel(model.process_group).also("dp")
        size = model.process_group.size()
        is_rounded_alike = size & (size - 1) == 0 or not model.gradient_as_bucket_view
        if model._comm_hooks or model.mixed_precision is not None or not is_rounded_alike:
            return

        def all_reduce(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            gradients = bucket.buffer().mul_(1.0 / size)  # as the reducer does while it copies
            work = dist.all_reduce(gradients, group=group, async_op=True)
            if bucket.is_last():
                self._enter_late()
            return work.get_future().then(lambda done: done.value()[0])

        all_reduce.__annotations__.clear()  # DDP refuses those that are strings
        model.register_comm_hook(model.process_group, all_reduce)

    def _enter_late(self) -> None:
        if self._late_region is None and self._ear.in_backward and self._ear.hears():
            self._late_region = self._probe.phase("dp", "all_reduce")
            self._late_region.__enter__()

    def leave_late(self) -> None:
        """Backward has returned: the gradients are there."""
        region, self._late_region = self._late_region, None
        if region is not None:
            region.__exit__()

    # ------------------------------------------------------------------------------------ FSDP2

    def _hear_fsdp(self, module: Any) -> None:
        measure_fsdp(module.FSDPParamGroup, partial(self._probe.phase, "dp"))

    def learn_fsdp(self, models: Iterable[torch.nn.Module]) -> None:
        """The groups of sharded models are data parallel, whatever their names."""
        for group in (each for model in models for part in model.modules() for each in _param_groups(part)):
            for name in ("shard_process_group", "replicate_process_group"):
                process_group = getattr(group.mesh_info, name, None)
                if process_group is not None:
                    self._ear.channel(process_group).also("dp")

    # ------------------------------------------------------------------------------------ pipelines

    def _hear_stages(self, module: Any) -> None:
        base = module._PipelineStageBase
        ear, probe = self._ear, self._probe

        def measured(method: Callable[..., Any], phase: str, kind_of: Callable[..., str]) -> Callable[..., Any]:
            region = probe.phase(phase)

            @wraps(method)
            def chunk(stage: Any, number: int, *args: Any, **kwargs: Any) -> Any:
                if not ear.hears():
                    return method(stage, number, *args, **kwargs)
                with probe.action(kind_of(*args, **kwargs), stage.stage_index, number), region:
                    return method(stage, number, *args, **kwargs)

            return chunk

        def backward_kind(_loss: Any = None, full_backward: bool = True, *_: Any, **__: Any) -> str:
            return "B" if full_backward else "I"

        base.forward_one_chunk = measured(base.forward_one_chunk, "forward", lambda *_, **__: "F")
        base.backward_one_chunk = measured(base.backward_one_chunk, "backward", backward_kind)
        base.backward_weight_one_chunk = measured(base.backward_weight_one_chunk, "backward", lambda *_, **__: "W")

    def _hear_schedules(self, module: Any) -> None:
        ear, region = self._ear, self._probe.phase("pp", "schedule")
        loss = self._probe.phase("loss")

        def measured(step: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(step)
            def whole(schedule: Any, *args: Any, **kwargs: Any) -> Any:
                self._learn_stages(schedule)
                ear.begin()
                if not ear.hears():
                    return step(schedule, *args, **kwargs)
                self.in_pipeline += 1
                try:
                    with region:
                        return step(schedule, *args, **kwargs)
                finally:
                    self.in_pipeline -= 1

            return whole

        for made in (module.PipelineScheduleSingle, module.PipelineScheduleMulti):
            made.step = measured(made.step)
        module._PipelineSchedule._compute_loss = in_region(module._PipelineSchedule._compute_loss, loss)

    def _learn_stages(self, schedule: Any) -> None:
        stages = getattr(schedule, "_stages", None) or [schedule._stage]
        group = stages[0].group or dist.group.WORLD
        self._ear.channel(group).also("pp")

    # ------------------------------------------------------------------------------------ meshes

    def learn_meshes(self) -> None:
        """The names of mesh dimensions: a dimension as large as the world has the default group, which has no name.

        A mesh knows its names, nothing knows all meshes: those that live are looked for.
        """
        for mesh in _living(dist.device_mesh.DeviceMesh):
            for name in mesh.mesh_dim_names or ():
                axes = axes_named(name)
                if not axes or mesh[name].ndim != 1 or mesh[name].size() < 2 or mesh.get_coordinate() is None:
                    continue
                channel = self._ear.channel(mesh.get_group(name))
                if not channel.axes:
                    channel.settle(axes)


def _living(made: type) -> list[Any]:
    """The objects of a class that exist. Looked for seldom: it walks over everything that Python has."""
    return [each for each in gc.get_objects() if type(each) is made]


def _param_groups(module: torch.nn.Module) -> Iterable[Any]:
    """FSDP2's parameter groups of a module; none where it is not sharded."""
    state = getattr(module, "_get_fsdp_state", None)
    return () if state is None else state()._fsdp_param_groups
