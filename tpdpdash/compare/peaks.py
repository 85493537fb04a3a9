"""Predicted memory as it was read: what a counter counts (scope), on which rank (view)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from tpdpdash.cluster.spec import DeviceSpec
from tpdpdash.compare.case import Case, PeakScope, RankView
from tpdpdash.cost.buffers import CUBLAS_HANDLES, GROUPED_STREAMS, dummy_gradient_bytes, sequence_bytes, workspace_bytes
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.memory import BetweenSteps, StageMemory, outside_bytes
from tpdpdash.cost.parameters import sequence_split
from tpdpdash.cost.stage_activations import tokens_per_microbatch
from tpdpdash.cost.states import compute_bytes
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.units import MIB

Floats = NDArray[np.float64]
DETERMINISTIC_WORKSPACE_BYTES = 32 * MIB
"""CUBLAS_WORKSPACE_CONFIG=:4096:8, without which torch refuses deterministic algorithms: eight blocks of 4 MiB."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMemory:
    """Predicted memory of the stage that was read."""

    parts: Mapping[str, float]
    """Bytes by part, under StageMemory's names."""
    steady_bytes: float
    """Buffers that are allocated between two steps."""
    outside_bytes: float
    """What torch does not count: CUDA context and communicators, part of `overhead_bytes`."""

    @property
    def total_bytes(self) -> float:
        """Everything."""
        return sum(self.parts.values())

    def state_bytes(self, name: str) -> float:
        """One kind of state, or all of them."""
        return sum(self.parts[part] for part in STATE_PARTS[name])


def read_memory(
    memory: StageMemory, kept: BetweenSteps, row: int, case: Case, device: DeviceSpec, more_bytes: float
) -> ReadMemory:
    """Bytes of each part on the stage that was read. more_bytes: what this run's libraries hold besides."""
    outside = float(outside_bytes(device, LayoutColumns.from_layouts([case.layout]))[0])
    stage = viewed_stage(memory.total_bytes[row, : case.layout.pp], case.rank_view)
    parts = {name: float(getattr(memory, name)[row, stage]) for name in PART_NAMES}
    parts["buffers_bytes"] += more_bytes
    steady = float(kept.buffers_bytes[row, stage]) + more_bytes
    update = float(kept.update_bytes[row, stage]) if case.libraries.is_megatron_lm else 0.0
    return ReadMemory(parts=parts, steady_bytes=steady + update, outside_bytes=outside)


def library_bytes(case: Case, device: DeviceSpec, habits: FrameworkHabits) -> float:
    """What this run's libraries hold beyond, or short of, the workspaces of its framework's usual ones.

    Gradients added by kernels of their own, or an old Transformer Engine: no dummies. Deterministic algorithms: larger
    workspaces of cuBLAS. Megatron's own layers: no workspaces of Transformer Engine, but a buffer of attention scores,
    b · s² · a / t elements, for all layers (its global memory buffer "mpu").
    """
    extra, libraries = 0.0, case.libraries
    if not (case.training.fused_accumulation and libraries.keeps_dummies):
        columns = LayoutColumns.from_layouts([case.layout])
        extra -= float(dummy_gradient_bytes(case.model, case.training, habits, columns)[0])
    if case.training.deterministic:
        extra += CUBLAS_HANDLES * max(DETERMINISTIC_WORKSPACE_BYTES - device.cublas_workspace_bytes, 0.0)
    if libraries.gathers_tokens and case.model.is_moe:
        extra += _gathered_tokens(case)
    if libraries.is_local:
        local = replace(habits, uses_transformer_engine=False)
        extra += workspace_bytes(case.model, device, local) - workspace_bytes(case.model, device, habits)
        tokens = case.layout.micro_batch_size * case.training.seq_len / case.layout.cp
        scores = tokens * case.training.seq_len * case.model.num_attention_heads / case.layout.tp
        return extra + compute_bytes(case.training) * scores
    if case.model.is_moe and habits.uses_transformer_engine and not libraries.groups_experts:
        extra -= GROUPED_STREAMS * device.te_workspace_bytes
    return extra


def _gathered_tokens(case: Case) -> float:
    """What Megatron's buffer "mpu" grows by where the tokens of all ranks that share experts are gathered into it: e h
    tokens · ep · etp, of which sequence parallelism holds a part already (MoEAllGatherTokenDispatcher)."""
    layout, training, columns = case.layout, case.training, LayoutColumns.from_layouts([case.layout])
    tokens = float(tokens_per_microbatch(training, columns)[0] / sequence_split(layout.sequence_parallel, layout.tp))
    ranks = layout.ep * layout.etp
    gathered = compute_bytes(training) * case.model.hidden_size * tokens * ranks if ranks > 1 else 0.0
    return max(gathered - float(sequence_bytes(case.model, training, columns)[0]), 0.0)


def peak_as_read(read: ReadMemory, scope: PeakScope) -> float:
    """Peak [bytes] as a counter shows it.

    device (nvidia-smi): everything. reserved (torch): all but context and communicators. allocated (torch): what
    tensors hold, without the device's overhead. model (a paper's formula): states and activations.
    """
    allocated = read.total_bytes - read.parts["overhead_bytes"]
    if scope == "device":
        return read.total_bytes
    if scope == "reserved":
        return max(allocated, read.total_bytes - read.outside_bytes)
    if scope == "model":
        return read.state_bytes("weights_optimizer") + read.parts["activations_bytes"]
    return allocated


def steady_as_read(read: ReadMemory, name: str, scope: PeakScope) -> float:
    """A printed state figure [bytes]: what torch holds between two steps includes the buffers that stay."""
    between_steps = name == "weights_optimizer" and scope != "model"
    return read.state_bytes(name) + (read.steady_bytes if between_steps else 0.0)
