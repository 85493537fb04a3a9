"""Training: what one step consists of, and what keeps it in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Precision = Literal["bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"]
LOW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")
"""Precisions whose GEMMs read 8 bits or fewer."""
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
ContextMessages = Literal["p2p", "all_gather", "a2a"]
Dispatcher = Literal["alltoall", "flex"]
CudaGraphs = Literal["none", "modules", "step"]
EXPERT_LOAD_CV = 0.1
"""Spread of tokens over experts that a trained router leaves: auxiliary losses and biases keep the busiest of 64
experts within 4 to 70 % of the mean (arXiv:2408.15664), 2.9 standard deviations away."""
# fmt: off
LORA_TARGETS = (
    "q_proj", "wq", "k_proj", "wk", "v_proj", "wv", "linear_qkv", "qkv_proj", "c_attn", "query_key_value", "o_proj",
    "wo", "out_proj", "linear_proj", "gate_proj", "w1", "up_proj", "w3", "c_fc", "fc1", "linear_fc1", "gate_up_proj",
    "down_proj", "w2", "fc2", "linear_fc2", "q_a_proj", "q_b_proj", "linear_q_proj", "kv_a_proj_with_mqa", "kv_b_proj",
    "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj",
)
# fmt: on
"""Linear layers that may have an adapter, by the names of Hugging Face, Megatron and torchtitan."""

RECOMPUTE_MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
"""What selective recompute may recompute, by Megatron-Core's names (--recompute-modules)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How the model is trained. The defaults are docs/reference.md's first values."""

    seq_len: int
    """Tokens in one sequence (s)."""
    packed_seq_len: int | None = None
    """Tokens of the sequences that are packed into one of seq_len, weighed by their tokens: sum of squares over sum of
    lengths. Attention stays inside them. None = nothing is packed."""
    global_batch_size: int
    """Sequences in one optimizer step, over all replicas."""
    steps: int | None = None
    """Optimizer steps of a run."""
    tokens: float | None = None
    """Tokens to train on, for a plan's days, energy and cost."""
    checkpoint_s: float = 0.0
    """Seconds for which each checkpoint stops training, for a plan's days."""
    checkpoint_interval_steps: int | None = None
    """Steps between two checkpoints; None = what loses least where devices fail, else none are written."""
    precision: Precision = "bf16"
    """Precision of the GEMMs; weights are held in 16 bit for the fp8 kinds."""
    optimizer: Optimizer = "adamw"
    """Decides how many state values each parameter has."""
    optimizer_states: StateDtype = "fp32"
    """Precision of the optimizer's moments."""
    optimizer_offload_fraction: float = 1.0
    """Share of the optimizer's states in host memory where layout.offload_optimizer puts them there: Megatron's
    --optimizer-offload-fraction, DeepSpeed's ratio."""
    gradient_dtype: GradientDtype = "fp32"
    """Precision in which gradients are accumulated and reduced."""
    fp8_recipe: Fp8Recipe = "tensorwise"
    """Scaling of fp8 GEMMs; used with precision fp8 only."""
    framework: str = "megatron-core"
    """Conventions and overlap; one of FRAMEWORKS, an unknown one is treated as the nearest."""
    tf32: bool | None = None
    """Products of fp32 training run in TF32; None = as the framework has it. Used with precision fp32 only."""
    attention: Attention = "flash"
    """Fused attention, or scores written to memory."""
    fp8_attention: bool = False
    """Fused attention's products run in 8 bits; used with precision fp8, mxfp8 and nvfp4 only."""
    compiled: bool = True
    """Element-wise operators fused by a compiler or by hand."""
    cuda_graphs: CudaGraphs = "none"
    """What is captured and launched at once: nothing, attention and router of each layer, or the whole step."""
    deterministic: bool = False
    """Only algorithms whose results repeat bit for bit: PyTorch's and Transformer Engine's deterministic modes."""
    launch_blocking: bool = False
    """CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel that it launches, so nothing runs beside another."""
    fused_accumulation: bool = True
    """Weight gradients are added up by the GEMMs that compute them, in frameworks that can."""
    cp_comm_type: ContextMessages | None = None
    """How context parallel ranks meet each other's keys, by Megatron's names: round a ring beside attention (p2p), all
    before attention (all_gather), or by dividing heads instead of tokens for attention (a2a, DeepSpeed-Ulysses); None =
    as the framework has it."""
    expert_dispatcher: Dispatcher | None = None
    """How tokens reach their experts, by Megatron's names: every copy by itself (alltoall), or once to each domain and
    handed on inside (flex: DeepEP, HybridEP); None = as the framework has it."""
    fp8_dispatch: bool = False
    """Tokens, and in backward their gradients, go to their experts in 8 bits; what comes back stays in 16."""
    expert_load_cv: float = EXPERT_LOAD_CV
    """Spread of the tokens over a layer's experts: standard deviation over mean; 0 = forced to be even."""
    mtp_num_layers: int | None = None
    """Multi-token prediction modules that are trained; None = those of the model where the framework's recipes train
    them (megatron-core), else none."""
    dropout: float = 0.0
    """Dropout probability; above 0 masks are kept for backward."""
    recompute_modules: tuple[str, ...] = ()
    """What selective recompute recomputes, of RECOMPUTE_MODULES; empty = what the framework does by habit."""
    fp8_activation_inputs: bool = False
    """What an activation function reads is kept for backward in 8 bits: activation_func_fp8_input_store in
    Megatron-Core, DeepSeek-V3's report (arXiv:2412.19437 §3.3.3)."""
    trainable: Trainable = "all"
    """All weights, or low-rank adapters on frozen weights."""
    lora_rank: int = 16
    """Rank of the adapters; used with trainable = lora only."""
    lora_targets: tuple[str, ...] = ()
    """Linear layers with an adapter, of LORA_TARGETS; empty = all of them."""

    @property
    def attended_len(self) -> int:
        """Keys that the last token of a sequence meets: causal attention of each token meets half of them."""
        return self.seq_len if self.packed_seq_len is None else self.packed_seq_len

    @property
    def tokens_per_step(self) -> float:
        """Tokens that one optimizer step consumes, over all replicas."""
        return float(self.seq_len) * self.global_batch_size
