"""Training: what one step consists of, and what keeps it in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Precision = Literal["bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"]
Optimizer = Literal["adamw", "adam8bit", "sgd", "muon", "lion"]
StateDtype = Literal["fp32", "bf16"]
GradientDtype = Literal["fp32", "bf16", "fp16"]
Fp8Recipe = Literal["tensorwise", "rowwise", "delayed", "blockwise"]
Framework = Literal[
    "megatron-core",
    "megatron-2022",
    "megatron-deepspeed",
    "deepspeed",
    "fsdp1",
    "fsdp2",
    "jax",
    "nanotron",
    "internevo",
    "builtin",
]
FRAMEWORKS: tuple[str, ...] = get_args(Framework)
Attention = Literal["flash", "naive"]
Trainable = Literal["all", "lora"]
# fmt: off
LORA_TARGETS = (
    "q_proj", "wq", "k_proj", "wk", "v_proj", "wv", "linear_qkv", "qkv_proj", "c_attn", "query_key_value", "o_proj",
    "wo", "out_proj", "linear_proj", "gate_proj", "w1", "up_proj", "w3", "c_fc", "fc1", "linear_fc1", "gate_up_proj",
    "down_proj", "w2", "fc2", "linear_fc2", "q_a_proj", "q_b_proj", "linear_q_proj", "kv_a_proj_with_mqa", "kv_b_proj",
    "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj",
)
# fmt: on
"""Linear layers that may have an adapter, by the names of Hugging Face, Megatron and torchtitan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How the model is trained. The defaults are docs/reference.md's first values."""

    seq_len: int
    """Tokens in one sequence (s)."""
    global_batch_size: int
    """Sequences in one optimizer step, over all replicas."""
    steps: int | None = None
    """Optimizer steps of a run."""
    tokens: float | None = None
    """Tokens to train on, for a plan's days, energy and cost."""
    precision: Precision = "bf16"
    """Precision of the GEMMs; weights are held in 16 bit for the fp8 kinds."""
    optimizer: Optimizer = "adamw"
    """Decides how many state values each parameter has."""
    optimizer_states: StateDtype = "fp32"
    """Precision of the optimizer's moments."""
    gradient_dtype: GradientDtype = "fp32"
    """Precision in which gradients are accumulated and reduced."""
    fp8_recipe: Fp8Recipe = "tensorwise"
    """Scaling of fp8 GEMMs; used with precision fp8 only."""
    framework: str = "megatron-core"
    """Conventions and overlap; one of FRAMEWORKS, an unknown one is treated as the nearest."""
    attention: Attention = "flash"
    """Fused attention, or scores written to memory."""
    compiled: bool = True
    """Element-wise operators fused by a compiler or by hand."""
    dropout: float = 0.0
    """Dropout probability; above 0 masks are kept for backward."""
    trainable: Trainable = "all"
    """All weights, or low-rank adapters on frozen weights."""
    lora_rank: int = 16
    """Rank of the adapters; used with trainable = lora only."""
    lora_targets: tuple[str, ...] = ()
    """Linear layers with an adapter, of LORA_TARGETS; empty = all of them."""

    @property
    def tokens_per_step(self) -> float:
        """Tokens that one optimizer step consumes, over all replicas."""
        return float(self.seq_len) * self.global_batch_size
