"""One step with a pipeline: this rank's stages under a schedule of torch.distributed.pipelining.

Imported only where pp > 1: it costs as much as torch itself. DDP is not used: with pipelining it fails or is silently
wrong; gradients are reduced after the step (worker.optimizer).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules

from tpdpdash.layout.layout import Schedule
from tpdpdash.telemetry.parallel_torch import in_region
from tpdpdash.telemetry.probe import Probe
from tpdpdash.worker.accumulate import Batch, LossFunction
from tpdpdash.worker.build import MicrobatchShapes
from tpdpdash.worker.parts import Part
from tpdpdash.worker.transformer import Stage

SCHEDULE_CLASSES: dict[Schedule, Any] = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zb-1p": schedules.ScheduleInterleavedZeroBubble,
    "zb-v": schedules.ScheduleZBVZeroBubble,
    "dualpipe-v": schedules.ScheduleDualPipeV,
}
POINT_TO_POINT = ("_batch_p2p", "_wait_batch_p2p")
"""Private functions of torch 2.13's schedules, through which every send, receive and wait goes."""


class MeasuredStage(PipelineStage):
    """A pipeline stage that tells the probe about each forward and backward."""

    def __init__(self, *args: Any, after_weight_gradients: Callable[[], None], probe: Probe, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._after_weight_gradients, self._probe = after_weight_gradients, probe

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Forward of one microbatch; its tensor-parallel collectives count as tp."""
        with self._probe.action("F", self.stage_index, fwd_chunk_id), self._probe.phase("forward"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> Any:
        """Backward of one microbatch, or its input gradients alone. The first stage has none: torch leaves all of its
        backward to the weight gradients."""
        kind = "B" if full_backward else "I"
        with self._probe.action(kind, self.stage_index, bwd_chunk_id), self._probe.phase("backward"):
            return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Weight gradients alone, which torch computes without autograd's hooks."""
        with self._probe.action("W", self.stage_index, bwd_chunk_id), self._probe.phase("backward"):
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
            self._after_weight_gradients()


class Pipeline:
    """pp > 1."""

    def __init__(
        self,
        stages: Sequence[Stage],
        parts: Sequence[Part],
        *,
        schedule: Schedule,
        num_stages: int,
        num_microbatches: int,
        shapes: MicrobatchShapes,
        device: torch.device,
        group: dist.ProcessGroup | None,
        loss_function: LossFunction,
        after_weight_gradients: Callable[[], None],
        probe: Probe,
    ) -> None:
        """Shapes are given beforehand, so that nothing is run to find out."""
        measure_point_to_point(probe)
        self._probe, self._parts = probe, parts
        measured = [
            MeasuredStage(
                stage,
                part.index,
                num_stages,
                device,
                input_args=shapes.tokens if part.is_first else shapes.activation,
                output_args=shapes.logits if part.is_last else shapes.activation,
                group=group,
                after_weight_gradients=after_weight_gradients,
                probe=probe,
            )
            for stage, part in zip(stages, parts, strict=True)
        ]
        made = SCHEDULE_CLASSES[schedule]
        is_single = issubclass(made, schedules.PipelineScheduleSingle)
        self._schedule = made(
            measured[0] if is_single else measured, num_microbatches, loss_fn=loss_function, scale_grads=False
        )

    def __call__(self, batch: Batch | None) -> list[torch.Tensor]:
        """The loss share of each microbatch on the last stage, else none."""
        inputs: tuple[torch.Tensor, ...] = ()
        target: torch.Tensor | None = None
        losses: list[torch.Tensor] = []
        if batch is not None:
            inputs = (batch[0],) if any(part.is_first for part in self._parts) else ()
            if any(part.is_last for part in self._parts):
                target = batch[1]
        with self._probe.phase("pp", "schedule"):  # stages and losses inside count as their own; what is left is pp's
            self._schedule.step(*inputs, target=target, losses=losses, return_outputs=False)
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
        plain = getattr(function, "__wrapped__", function)
        setattr(schedules, name, in_region(plain, probe.phase("pp", name.strip("_"))))
