"""One step with a pipeline: this rank's stage under torch.distributed.pipelining's GPipe or 1F1B.

Imported only where pp > 1: it costs as much as torch itself. DDP is not used: with pipelining it fails or is silently
wrong; gradients are reduced after the step (worker.optimizer).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, schedules

from tpdpdash.layout.layout import Schedule
from tpdpdash.telemetry.probe import Probe
from tpdpdash.worker.accumulate import Batch, LossFunction
from tpdpdash.worker.transformer import Stage

SCHEDULE_CLASSES: dict[Schedule, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
POINT_TO_POINT = ("_batch_p2p", "_wait_batch_p2p")
"""Private functions of torch 2.13's schedules, through which every send, receive and wait of GPipe and 1F1B goes."""


class MeasuredStage(PipelineStage):
    """A pipeline stage that tells the probe about each forward and backward."""

    def __init__(self, *args: Any, probe: Probe, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._probe = probe

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Forward of one microbatch; its tensor-parallel collectives count as tp."""
        with self._probe.action("F", self.stage_index, fwd_chunk_id), self._probe.phase("forward"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Backward of one microbatch."""
        with self._probe.action("B", self.stage_index, bwd_chunk_id), self._probe.phase("backward"):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)


class Pipeline:
    """pp > 1."""

    def __init__(
        self,
        stage: Stage,
        *,
        schedule: Schedule,
        stage_index: int,
        num_stages: int,
        num_microbatches: int,
        example_input: torch.Tensor,
        example_output: torch.Tensor,
        device: torch.device,
        group: dist.ProcessGroup | None,
        loss_function: LossFunction,
        probe: Probe,
    ) -> None:
        """The examples are meta tensors of one microbatch: given beforehand, so that nothing is run to find out."""
        measure_point_to_point(probe)
        self._probe = probe
        self._stage = MeasuredStage(
            stage,
            stage_index,
            num_stages,
            device,
            input_args=example_input,
            output_args=example_output,
            group=group,
            probe=probe,
        )
        self._schedule = SCHEDULE_CLASSES[schedule](
            self._stage, num_microbatches, loss_fn=loss_function, scale_grads=False
        )

    def __call__(self, batch: Batch | None) -> list[torch.Tensor]:
        """The loss share of each microbatch on the last stage, else none."""
        losses: list[torch.Tensor] = []
        with self._probe.phase("pp", "schedule"):  # stages and losses inside count as their own; what is left is pp's
            if self._stage.is_first and batch is not None:
                self._schedule.step(batch[0], return_outputs=False)
            elif self._stage.is_last and batch is not None:
                self._schedule.step(target=batch[1], losses=losses, return_outputs=False)
            else:
                self._schedule.step(return_outputs=False)
            return [loss.detach() for loss in losses]


def measure_point_to_point(probe: Probe) -> None:
    """Tell the probe of each send, receive and wait of the schedules: after a hang its heartbeat names the last one.

    Not part of torch's interface: where a function is gone, its time still counts as the schedule's, and a warning
    says so.
    """
    for name in POINT_TO_POINT:
        function = getattr(schedules, name, None)
        if function is None:
            warnings.warn(
                f"torch {torch.__version__} has no {name}: a hang in a pipeline is not told in detail", stacklevel=2
            )
            continue
        setattr(schedules, name, _measured(getattr(function, "__wrapped__", function), probe))


def _measured(function: Callable[..., Any], probe: Probe) -> Callable[..., Any]:
    region = probe.phase("pp", function.__name__.strip("_"))

    @wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        with region:
            return function(*args, **kwargs)

    return measured
