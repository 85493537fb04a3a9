"""Bytes of activations kept for backward, per token of one layer on one rank.

What autograd saves in a fused implementation (Korthikanti 2022, arXiv:2205.05198 §4; Megatron-Core): the inputs of
norms and of GEMMs, queries, keys, values and their product, the activation function's input, masks where dropout > 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpdpdash.cluster.spec import DeviceSpec
from tpdpdash.cost.adapters import QKV, UP, gathered_inputs, needs_input
from tpdpdash.cost.arrays import Code, Flag
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.operators import NOT_DETERMINISTIC
from tpdpdash.cost.parameters import kv_heads_per_rank, sequence_split
from tpdpdash.cost.states import compute_bytes, gemm_input_bytes
from tpdpdash.elementwise import choose, larger, smaller
from tpdpdash.layout.layout import RECOMPUTES
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import RECOMPUTE_MODULES, Training

if TYPE_CHECKING:
    from tpdpdash.units import Numeric

MASK_BYTES = 1.0
"""A dropout mask, per element."""
LSE_BYTES = 4.0
"""fp32 log-sum-exp that flash attention keeps per token and head."""
ROUTER_BYTES = 8.0
"""fp32 logits and probabilities of the router, per token and expert."""
FLASH_ARCHITECTURES = ("ampere", "ada")
"""Where Transformer Engine prefers the library flash-attn to cuDNN's attention (its get_attention_backend)."""
SELECTIVE, FULL = RECOMPUTES.index("selective"), RECOMPUTES.index("full")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBytes:
    """Bytes kept per token of one layer [bytes per token on this rank], by form of recompute."""

    everything: Numeric
    """No recompute."""
    selective: Numeric
    """Selective recompute, as the framework means it."""
    full: Numeric
    """Only the layer's input."""
    gradients: Numeric
    """Gradients of the inner tensors of its larger block, which backward holds at once."""

    def of(self, recompute: Code) -> Numeric:
        """Bytes under each row's recompute code (index in RECOMPUTES)."""
        partly = choose(recompute == SELECTIVE, self.selective, self.everything)
        return choose(recompute == FULL, self.full, partly)


def residual_bytes(model: ModelSpec, training: Training, habits: FrameworkHabits, split: Numeric) -> Numeric:
    """Inputs and outputs of norms, and masks of the two residual dropouts, per token.

    10 h of Korthikanti's equation 2 (two norm inputs 4 h, inputs of QKV and fc1 4 h, masks 2 h); `split` divides it:
    tp under sequence parallelism (equation 4), else 1. Some frameworks keep the inputs of QKV and fc1 whole.
    """
    h, norms = model.hidden_size, model.norms_per_layer
    masks = 2 * MASK_BYTES * h if training.dropout > 0 else 0.0
    outputs = gemm_input_bytes(training, habits) * norm_outputs(model, training)
    return (h * compute_bytes(training) * norms + masks) / split + h * outputs / _input_split(habits, split)


def _input_split(habits: FrameworkHabits, split: Numeric) -> Numeric:
    """Ranks over which a column-parallel product's kept input is divided."""
    return split if habits.gathers_again else 1.0


def norm_outputs(model: ModelSpec, training: Training) -> int:
    """Outputs of norms that are kept, as inputs of products: of QKV and of fc1, or one of both where a layer has a
    single norm. None is kept for products that are frozen and have no adapter."""
    return min(model.norms_per_layer, int(needs_input(training, *QKV)) + int(needs_input(training, *UP)))


def attention_bytes(
    model: ModelSpec, training: Training, habits: FrameworkHabits, tp: Numeric, sequence: Numeric = 1.0
) -> Numeric:
    """Queries, keys, values and attention's output, per token: 8 h / t of equation 2; grouped heads keep fewer. The
    output is kept once more where the projection casts it and does not save it as it is.

    MLA keeps its compressed vectors before and after their norms, whole on every rank or of its own share of the
    sequence, and expanded q, k, v, o. Some frameworks hold queries, keys and values once more, before the rotary
    embedding. sequence: ranks over which sequence parallelism divides tokens.
    """
    a, dq, dv = model.num_attention_heads, model.query_head_dim, model.value_head_dim
    kv = kv_heads_per_rank(model, tp)
    split = a * (dq + dv) / tp + kv * (dq + dv)
    if model.qk_norm != "none":
        split = split + (a / tp + kv) * dq
    if habits.copies_qkv:
        split = split + (a / tp + kv) * dq + kv * dv
    whole: Numeric = 0.0
    if model.is_mla:
        own = sequence if habits.compresses_shards else 1.0
        whole = 2 * (model.q_lora_rank + model.kv_lora_rank) / own + model.qk_rope_head_dim
    element, cast = compute_bytes(training), gemm_input_bytes(training, habits)
    is_cast = cast < element and not saves_attention_output(training, habits)
    copy = cast * a * dv / tp if is_cast and needs_input(training, "output") else 0.0
    return element * (split + whole) + copy


def saves_attention_output(training: Training, habits: FrameworkHabits) -> bool:
    """Whether the projection behind attention keeps its 16-bit input, which attention keeps anyway, and casts it again
    in backward: set_save_original_input of linear_proj in Megatron-Core's attention.py and multi_latent_attention.py,
    under every recipe but delayed scaling."""
    return habits.uses_transformer_engine and not (training.precision == "fp8" and training.fp8_recipe == "delayed")


def output_copies(
    device: DeviceSpec, training: Training, habits: FrameworkHabits, micro_batch_size: Numeric
) -> Numeric:
    """Further copies of attention's output, 0 or 1: flash-attn keeps it by sequences, the projection by positions, so
    Transformer Engine turns it round; with one sequence in a microbatch both are the same bytes.

    It runs flash-attn on Ampere and Ada, and on Blackwell in deterministic mode. Source: Transformer Engine,
    dot_product_attention/backends.py, FlashAttention; Megatron-LM's golden runs differ by this tensor between devices.
    """
    avoids_cudnn = training.deterministic and device.architecture == NOT_DETERMINISTIC
    runs_library = device.architecture in FLASH_ARCHITECTURES or avoids_cudnn
    if not (habits.uses_transformer_engine and training.attention == "flash" and runs_library):
        return 0.0
    return choose(micro_batch_size > 1, 1.0, 0.0)


def score_bytes(model: ModelSpec, training: Training, tp: Numeric) -> Numeric:
    """What core attention keeps besides, per token: 5 a s / t bytes of equation 2 (softmax 2, mask 1, dropout 2); with
    flash attention only the log-sum-exp."""
    heads = model.num_attention_heads / tp
    if training.attention == "flash":
        return LSE_BYTES * heads
    element = compute_bytes(training)
    kept = 2 * element + MASK_BYTES if training.dropout > 0 else element
    return kept * heads * training.seq_len


def mlp_bytes(
    model: ModelSpec, training: Training, habits: FrameworkHabits, ffn_hidden_size: int, split: Numeric
) -> Numeric:
    """Input and output of the activation function, per token: 16 h / t of equation 2 with f = 4 h; gated MLPs keep both
    inputs of the gate, in 8 bits where asked. Without fused operators the activated gate is kept too."""
    is_fused = training.compiled and habits.fuses_gate
    tensors = (2 if model.gated_mlp else 1) + (1 if model.gated_mlp and not is_fused else 0)
    element = 1.0 if training.fp8_activation_inputs else compute_bytes(training)
    return (element * tensors + activated_bytes(training, habits)) * ffn_hidden_size / split


def activated_bytes(training: Training, habits: FrameworkHabits) -> float:
    """What an MLP's second product keeps of each element that it reads."""
    return gemm_input_bytes(training, habits) if needs_input(training, "down") else 0.0


def expert_bytes(
    model: ModelSpec, training: Training, habits: FrameworkHabits, *, tp: Numeric, etp: Numeric
) -> Numeric:
    """MLP part of a mixture-of-experts layer, per token: router, shared experts, and for each of the top-k copies of a
    token its permuted input and the expert's inner tensors. A rank's experts see tokens · top-k · etp / tp copies, f /
    etp wide. What is activated is kept before the router's weight multiplies it too, unless one operator does both: a
    gated activation's (weighted_bias_swiglu in Megatron-Core). Left out: imbalance between experts, padding of their
    batches."""
    k, h = model.num_experts_per_token, model.hidden_size
    copies = k * etp / tp
    inner = mlp_bytes(model, training, habits, model.moe_ffn_hidden_size, etp)
    if not model.gated_mlp:
        inner = inner + compute_bytes(training) * model.moe_ffn_hidden_size / etp
    shared = mlp_bytes(model, training, habits, model.shared_expert_ffn_hidden_size, tp)
    permuted = gemm_input_bytes(training, habits) * h if needs_input(training, *UP) else 0.0
    return copies * (permuted + inner) + shared + ROUTER_BYTES * model.num_experts


def module_bytes(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    moe: bool,
    *,
    tp: Numeric,
    etp: Numeric,
    split: Numeric,
) -> dict[str, Numeric]:
    """Bytes that a layer no longer keeps where a module is recomputed, per token, by Megatron-Core's module names.

    layernorm: outputs of both norms; mla_up_proj: expanded queries, keys and values; moe_act: the activated inner
    tensor of experts; mlp, moe, shared_experts: all inner tensors of a dense MLP, of a mixture, of shared experts.
    Source: Megatron-Core transformer_config.py, recompute_modules.
    """
    element, gemm, a = compute_bytes(training), gemm_input_bytes(training, habits), model.num_attention_heads
    expanded = element * a * (2 * model.query_head_dim + model.value_head_dim) / tp if model.is_mla else 0.0
    shared = mlp_bytes(model, training, habits, model.shared_expert_ffn_hidden_size, tp)
    copies = model.num_experts_per_token * etp / tp
    return {
        "core_attn": score_bytes(model, training, tp),
        "layernorm": gemm * norm_outputs(model, training) * model.hidden_size / _input_split(habits, split),
        "mla_up_proj": expanded,
        "mlp": 0.0 if moe else mlp_bytes(model, training, habits, model.ffn_hidden_size, tp),
        "moe": expert_bytes(model, training, habits, tp=tp, etp=etp) if moe else 0.0,
        "moe_act": copies * activated_bytes(training, habits) * model.moe_ffn_hidden_size / etp if moe else 0.0,
        "shared_experts": shared if moe else 0.0,
    }


def covered(modules: tuple[str, ...]) -> tuple[str, ...]:
    """The modules whose tensors count, in a fixed order, which decides a sum's last bit: those inside of one that is
    recomputed whole count with it."""
    inside = ("moe_act", "shared_experts") if "moe" in modules else ()
    return tuple(name for name in RECOMPUTE_MODULES if name in modules and name not in inside)


def kept_bytes(
    model: ModelSpec,
    training: Training,
    habits: FrameworkHabits,
    moe: bool,
    *,
    tp: Numeric,
    etp: Numeric,
    sequence_parallel: Flag,
    copies: Numeric = 0.0,
) -> KeptBytes:
    """Activation bytes per token of one layer under each form of recompute. copies: of attention's output.

    Korthikanti 2022: none = equations 2 and 4; selective without the scores = equation 6; full = 2 h. Frameworks that
    select operators (torchtitan) keep the layer's input, every second matmul (q, v, up, down) and attention's output;
    others (fsdp1) recompute every second layer whole.
    """
    split = sequence_split(sequence_parallel, tp)
    residual = residual_bytes(model, training, habits, split)
    scores = score_bytes(model, training, tp)
    attention = attention_bytes(model, training, habits, tp, split)
    if moe:
        inner = expert_bytes(model, training, habits, tp=tp, etp=etp)
    else:
        inner = mlp_bytes(model, training, habits, model.ffn_hidden_size, tp)
    gathered = 0.0 if not habits.uses_transformer_engine else gathered_inputs(model, training, moe)
    whole = compute_bytes(training) * model.hidden_size * gathered * (1 - 1 / split)
    turned = compute_bytes(training) * model.num_attention_heads * model.value_head_dim / tp * copies
    everything = residual + attention + turned + scores + inner + whole
    layer_input = compute_bytes(training) * model.hidden_size / split
    selective: Numeric = residual + attention + turned + inner + whole
    if training.recompute_modules:
        saved = module_bytes(model, training, habits, moe, tp=tp, etp=etp, split=split)
        selective = everything - sum(saved[name] for name in covered(training.recompute_modules))
    elif habits.selective_kind == "operators":
        tensors = 3 if model.gated_mlp else 2
        selective = 2 * layer_input + 0.75 * attention + scores + inner / tensors
    elif habits.selective_kind == "alternate_layers":
        selective = (everything + layer_input) / 2
    return KeptBytes(
        everything=everything,
        selective=smaller(selective, everything),
        full=layer_input,
        gradients=larger(inner, attention + scores),
    )
