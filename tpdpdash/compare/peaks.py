"""Predicted memory as it was read: what a counter counts (scope), on which rank (view)."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from tpdpdash.compare.case import PeakScope, RankView
from tpdpdash.cost.memory import StageMemory
from tpdpdash.units import GIB, MIB

Floats = NDArray[np.float64]
CONTEXT_BYTES = 0.5 * GIB
"""CUDA context and library code, which nvidia-smi counts and torch does not: catalogue.toml, 0.3-0.8 GiB by device."""
WORKSPACE_BYTES = 80 * MIB
"""Workspaces of cuBLAS and Transformer Engine, which torch counts as allocated: 68 MiB on A100 and 96 MiB on H100 and
GB200 above weights, gradients and optimizer states in Megatron-LM's golden runs."""
STATE_PARTS = {
    "weights": ("weights_bytes",),
    "grads": ("gradients_bytes",),
    "optimizer": ("optimizer_bytes",),
    "weights_optimizer": ("weights_bytes", "gradients_bytes", "optimizer_bytes"),
}
"""Parts of a stage's memory that a printed figure holds. weights_optimizer_gib is what stays allocated between two
steps: weights, gradient buffers and optimizer states."""
PART_NAMES = tuple(field.name for field in fields(StageMemory))


def viewed_stage(total: Floats, view: RankView) -> int:
    """The stage whose memory was read: of one row's stages (S,) the fullest, the first, the fullest middle one, or the
    last."""
    last = len(total) - 1
    if view == "first":
        return 0
    if view == "last":
        return last
    if view == "middle" and last > 1:
        return 1 + int(np.argmax(total[1:last]))
    return int(np.argmax(total))


def stage_parts(memory: StageMemory, row: int, stages: int, view: RankView) -> dict[str, float]:
    """Bytes of each part on the stage that was read."""
    stage = viewed_stage(memory.total_bytes[row, :stages], view)
    return {name: float(getattr(memory, name)[row, stage]) for name in PART_NAMES}


def peak_as_read(parts: dict[str, float], scope: PeakScope) -> float:
    """Peak [bytes] as a counter shows it.

    device (nvidia-smi): everything. reserved (torch): all but the context. allocated (torch): what tensors hold,
    without the device's overhead of context and allocator slack. model (a paper's formula): states and activations.
    """
    everything = sum(parts.values())
    if scope == "device":
        return everything
    allocated = everything - parts["overhead_bytes"] + min(WORKSPACE_BYTES, parts["overhead_bytes"])
    if scope == "reserved":
        return max(allocated, everything - CONTEXT_BYTES)
    if scope == "model":
        return state_as_read(parts, "weights_optimizer") + parts["activations_bytes"]
    return allocated


def state_as_read(parts: dict[str, float], name: str) -> float:
    """Bytes of one kind of state, or of all."""
    return sum(parts[part] for part in STATE_PARTS[name])


def steady_as_read(parts: dict[str, float], name: str, scope: PeakScope) -> float:
    """A printed state figure [bytes]: what torch holds between two steps includes the workspaces."""
    between_steps = name == "weights_optimizer" and scope != "model"
    return state_as_read(parts, name) + (WORKSPACE_BYTES if between_steps else 0.0)
