"""A step's loss without asking for it: the scalar on which backward is called, read once it has long been there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch

from tpdpdash.telemetry.probe_torch import MAX_PENDING_STEPS

_MAX_SCALED = 64


class StepLoss:
    """Sum of the scalars on which backward was called in a step (a script divides each by their number), or their mean
    in a pipeline (whose schedule divides the gradients)."""

    def __init__(self, device: str) -> None:
        self._sum: torch.Tensor | None = None
        self._count, self._is_mean = 0, False
        self._scaled: dict[int, torch.Tensor] = {}
        self._slots: torch.Tensor | None = None
        self._taken = 0
        if device.startswith("cuda"):  # a step's value is read before its slot comes round again
            self._slots = torch.zeros(2 * MAX_PENDING_STEPS, pin_memory=True)

    def note(self, tensors: Any, *, in_pipeline: bool) -> None:
        """Backward is called on these."""
        root = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
        if not isinstance(root, torch.Tensor) or root.numel() != 1 or not root.is_floating_point():
            return
        value = self._scaled.pop(id(root), root).detach()
        if hasattr(value, "to_local"):
            if any(placement.is_partial() for placement in value.placements):
                return
            value = value.to_local()
        value = value.reshape(()).float()
        self._sum = value.clone() if self._sum is None else self._sum + value
        self._count += 1
        self._is_mean = in_pipeline

    def take(self) -> Callable[[], float | None]:
        """The step is over: how its loss is read later. On a GPU it is on its way to the host by then."""
        total, count = self._sum, self._count if self._is_mean else 1
        self._sum, self._count = None, 0
        self._scaled.clear()
        if total is None:
            return _none
        if self._slots is None:
            return partial(_read, total, count)
        slot = self._slots[self._taken % len(self._slots)]
        self._taken += 1
        slot.copy_(total, non_blocking=True)
        return partial(_read, slot, count)

    def unscaled(self, scale: Callable[..., Any]) -> Callable[..., Any]:
        """GradScaler.scale, remembering what the scaled loss was made of."""

        @wraps(scale)
        def remembering(scaler: Any, outputs: Any) -> Any:
            scaled = scale(scaler, outputs)
            if isinstance(outputs, torch.Tensor) and len(self._scaled) < _MAX_SCALED:
                self._scaled[id(scaled)] = outputs.detach()
            return scaled

        return remembering


def _none() -> None:
    return None


def _read(value: torch.Tensor, count: int) -> float:
    return float(value) / count
