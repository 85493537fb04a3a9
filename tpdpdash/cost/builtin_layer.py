"""What autograd keeps of one layer of the built-in worker, operator by operator, and what its backward holds besides.

The worker's layer (worker.transformer) is eager torch: nothing is fused beyond torch's own kernels. tests/differential
counts the same storages while the worker runs. All figures are bytes per token on one rank unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tpdpdash.cost.activations import LSE_BYTES, KeptBytes
from tpdpdash.cost.arrays import Floats
from tpdpdash.cost.states import DTYPE_BYTES, compute_bytes
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

FP32 = DTYPE_BYTES["fp32"]
NORM_GRADIENTS = 4
"""fp32 tensors of a norm's size by which its backward on the CPU holds more than its forward kept: five gradients, the
normalised input is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinLayer:
    """One layer, each figure (n,)."""

    everything: Floats
    """Kept for backward without recompute, the layer's input included."""
    selective: Floats
    """Kept where core attention is computed again."""
    full: Floats
    """The layer's input, all that is kept where the layer is computed again."""
    norm: Floats
    """What one norm of the residual keeps, its output not included."""
    norm_backward: Floats
    """The most that a norm's backward holds at once, beyond what it and its output kept."""
    owned_input: Floats
    """Part of `kept.everything` that is the layer's input itself; 0 where a norm keeps an fp32 copy instead."""
    score_gradients: Floats
    """Gradients of naive attention's scores, beyond what backward has freed by then; 0 or less: never the most."""
    down_gradients: Floats
    """In the backward of the MLP's last product: its input's gradient, and its output's where it is gathered."""
    down_weight_gradient: Floats
    """The weight gradient of the same before it is added up [bytes]."""
    gate_gradients: Floats
    """Gradients of gate and up, beyond what backward has freed by then."""

    @property
    def kept(self) -> KeptBytes:
        """What is kept by form of recompute."""
        return KeptBytes(
            everything=self.everything, selective=self.selective, full=self.full, gradients=self.gate_gradients
        )


def norm_bytes(width: float, vectors: float, training: Training, *, is_cpu: bool) -> float:
    """Kept by RMSNorm of `vectors` vectors with `width` numbers in all. The fused kernel of GPUs keeps its input and a
    factor a vector; on the CPU torch composes it in fp32: the input (of 16 bits: a copy), the normalised input, the
    factor."""
    kept = 2 * FP32 if is_cpu else compute_bytes(training)
    return kept * width + FP32 * vectors


def builtin_layer(model: ModelSpec, training: Training, columns: LayoutColumns, *, is_cpu: bool) -> BuiltinLayer:
    """Per layer: two norms and their outputs (with sequence parallelism gathered: whole), attention, and of the MLP
    gate, its SiLU, up and their product."""
    e, tp, h, f = compute_bytes(training), columns.tp, model.hidden_size, model.ffn_hidden_size
    split = np.where(columns.sequence_parallel, tp, 1.0)
    norm = norm_bytes(h, 1, training, is_cpu=is_cpu) / split
    core_inputs, inside, output = _attention(model, training, columns)
    qk_norms = np.zeros_like(tp)
    if model.qk_norm != "none":
        heads = model.num_attention_heads + model.num_kv_heads
        qk_norms = norm_bytes(heads * model.head_dim, heads, training, is_cpu=is_cpu) / tp
    outside = 2 * (norm + e * h) + qk_norms + core_inputs + output
    mlp = 4 * e * f / tp
    gathered = np.where(columns.sequence_parallel & (tp > 1), e * h, 0.0)
    is_copied = is_cpu and e < FP32
    return BuiltinLayer(
        everything=outside + inside + mlp,
        selective=outside + mlp + _saved_by_selective(model, training, columns),
        full=e * h / split,
        norm=norm,
        norm_backward=(NORM_GRADIENTS * FP32 if is_cpu else e) * h / split - e * h,
        owned_input=np.zeros_like(tp) if is_copied else e * h / split,
        score_gradients=_score_gradients(model, training, columns) - mlp - norm - e * h,
        down_gradients=gathered + e * f / tp,
        down_weight_gradient=e * h * f / tp,
        gate_gradients=2 * e * f / tp,
    )


def _attention(model: ModelSpec, training: Training, columns: LayoutColumns) -> tuple[Floats, Floats, Floats]:
    """(inputs that core attention keeps, what it keeps inside, its output).

    Flash: q, k, v; a log-sum-exp a head; the output. Naive: q, and keys and values repeated for every head; softmax in
    fp32, for the second product also in the compute precision; the mask, one s × s a microbatch; the output, copied
    into the projection's order.
    """
    e, tp, s = compute_bytes(training), columns.tp, training.seq_len
    heads = model.num_attention_heads / tp
    q, kv = heads * model.head_dim, model.num_kv_heads * model.head_dim / tp
    if training.attention == "flash":
        return e * (q + 2 * kv), LSE_BYTES * heads, e * q
    scores = (FP32 + (e if e < FP32 else 0.0)) * heads * s
    return e * q, 2 * e * q + scores + s / columns.micro_batch_size, e * q


def _saved_by_selective(model: ModelSpec, training: Training, columns: LayoutColumns) -> Floats:
    """Kept instead of what is inside core attention: the keys and values that naive attention repeats."""
    if training.attention == "flash":
        return np.zeros_like(columns.tp)
    return 2 * compute_bytes(training) * model.num_kv_heads * model.head_dim / columns.tp


def _score_gradients(model: ModelSpec, training: Training, columns: LayoutColumns) -> Floats:
    """Backward of naive attention's softmax: the gradient of its output and of its input in fp32, while the 16-bit copy
    of the output is gone."""
    if training.attention == "flash":
        return np.zeros_like(columns.tp)
    e = compute_bytes(training)
    return (2 * FP32 - (e if e < FP32 else 0.0)) * model.num_attention_heads / columns.tp * training.seq_len
