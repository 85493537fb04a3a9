"""Bytes of model states: weights, gradients and optimizer states, and what ZeRO shards of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpdpdash.cost.arrays import Flag
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.elementwise import choose
from tpdpdash.training import LOW_PRECISIONS, Training

if TYPE_CHECKING:
    from tpdpdash.units import Numeric

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
MOMENTS = {"adamw": 2.0, "adam8bit": 2.0, "lion": 1.0, "muon": 1.0, "sgd": 0.0}
"""State values of each parameter; sgd has one more where the framework gives it momentum."""
MUON_ADAM_MOMENTS = 1.0
"""Muon is for matrices inside the layers: embedding and head use Adam, one more value (Jordan 2024,
https://kellerjordan.github.io/posts/muon). The same of norms is left out."""
NVFP4_BYTES = 0.5 + 1 / 16
"""An element in 4 bits, with an 8-bit scale for 16 of them: Transformer Engine constants.py, NVFP4_BLOCK_SCALING_SIZE;
its NVFP4Tensor packs two elements in a byte, by columns for the weight gradient too."""
ADAM8BIT_BLOCK = 256
"""8-bit moments have one fp32 scale per block of 256: bitsandbytes, arXiv:2110.02861."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes that each parameter holds in each kind of state, before sharding."""

    weights: float
    """The weights that compute reads, or the fp32 weights of frameworks that cast."""
    gradients: float
    """Gradients that stay allocated through a step."""
    optimizer: float
    """fp32 masters where the weights are 16-bit, and the moments."""

    gathered_weights: float
    """The whole copy in the compute precision that stays beside sharded weights under ZeRO 2; 0 where ZeRO 2 shards no
    weights."""
    end_optimizer: float
    """What embedding and head have besides: Muon's Adam."""

    @property
    def total(self) -> float:
        """Bytes per parameter."""
        return self.weights + self.gradients + self.optimizer


def compute_bytes(training: Training) -> float:
    """Bytes of an activation or a gathered weight: 2, or 4 in fp32. fp8 GEMMs keep 16-bit tensors beside their
    casts."""
    return 4.0 if training.precision == "fp32" else 2.0


def gemm_input_bytes(training: Training, habits: FrameworkHabits) -> float:
    """Bytes of a GEMM's input as it is kept for its weight gradient: cast once where GEMMs run in 8 bits or fewer
    (Transformer Engine saves the quantised tensor); torchao saves the input and casts it again in backward."""
    if training.precision not in LOW_PRECISIONS or not habits.keeps_cast_inputs:
        return compute_bytes(training)
    return NVFP4_BYTES if training.precision == "nvfp4" else 1.0


def state_bytes(training: Training, habits: FrameworkHabits) -> StateBytes:
    """Bytes per parameter of each state.

    Megatron: 16-bit weights 2 + fp32 main gradients 4 + fp32 master 4 + two fp32 moments 8 = 18; with 16-bit gradients
    16, the convention of ZeRO (arXiv:1910.02054 §3.1). fp32: 4 + 4 + 8. FSDP holds fp32 weights: 4 + 4 + 8. torch's
    optimizers hold moments and gradients in the weights' precision: with 16-bit moments such a framework holds 16-bit
    weights and no master, 2 + 2 + 4; Megatron's precision-aware optimizer keeps the master, 2 + 4 + 4 + 4. A framework
    that keeps 16-bit gradients beside fp32 ones adds 2 (Megatron-DeepSpeed, bf16).
    """
    own_master = habits.holds_fp32_weights
    fp32_weights = training.precision == "fp32" or (own_master and training.optimizer_states == "fp32")
    gradients = 4.0 if fp32_weights else 2.0 if own_master else DTYPE_BYTES[training.gradient_dtype]
    if habits.keeps_16bit_gradients and not fp32_weights and training.gradient_dtype == "fp32":
        gradients += 2.0
    moment = DTYPE_BYTES[training.optimizer_states]
    if training.optimizer == "adam8bit":
        moment = 1.0 + 4.0 / ADAM8BIT_BLOCK
    moments = MOMENTS[training.optimizer] + (training.optimizer == "sgd" and habits.sgd_momentum)
    return StateBytes(
        weights=4.0 if fp32_weights else 2.0,
        gradients=gradients,
        optimizer=(0.0 if fp32_weights or own_master else 4.0) + moments * moment,
        gathered_weights=compute_bytes(training) if habits.zero2_shards_weights else 0.0,
        end_optimizer=MUON_ADAM_MOMENTS * moment if training.optimizer == "muon" else 0.0,
    )


def sharded(bytes_per_parameter: float, parameters: Numeric, is_sharded: Flag, shard_size: Numeric) -> Numeric:
    """Bytes of one state on one rank: whole, or 1 / shard_size of it.

    ZeRO, arXiv:1910.02054 figure 1: optimizer states are sharded from stage 1, gradients from 2, weights from 3.
    """
    return parameters * (bytes_per_parameter / choose(is_sharded, shard_size, 1.0))
