"""What the first and the last stage do besides their layers: embedding, head and loss, and the messages around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.cost.arrays import Flag, Floats
from tpdpdash.cost.case import Case
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.layer_messages import states_messages_s
from tpdpdash.cost.operators import DeviceRates, LinearSeconds, device_rates, gemm_s, traffic_s
from tpdpdash.model.spec import ModelSpec

if TYPE_CHECKING:
    from tpdpdash.units import Numeric

UNALIGNED_VOCAB = 1.5
"""Slow-down of the logits' GEMMs where the vocabulary is no multiple of 8: 1.4-1.9 on A100 (vTrain's rows)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSeconds:
    """What the first and the last stage compute besides, for one microbatch [s]."""

    embedding_forward_s: Numeric
    """Look-up."""
    embedding_backward_s: Numeric
    """Scattered addition into the table's gradient."""
    head_forward_s: Numeric
    """Final norm, logits, loss."""
    head_backward_s: Numeric
    """Their gradients."""


def ends_s(
    model: ModelSpec,
    habits: FrameworkHabits,
    rates: DeviceRates,
    *,
    tokens: Numeric,
    tp: Numeric,
    vocab_rows: Numeric,
    sequence_parallel: Flag,
) -> EndSeconds:
    """Embedding and head. vocab_rows: padded rows of the table on one rank; rates: 16-bit ones also when training in
    fp8.

    The loss moves habits.logit_traffic_bytes a logit, a third of it in backward.
    """
    e, h = rates.element_bytes, model.hidden_size
    split = np.where(sequence_parallel, tp, 1.0)
    look_up = tokens * h * e / split
    head = _head_linear(tokens, h, vocab_rows, rates)
    loss = habits.logit_traffic_bytes * tokens * vocab_rows
    return EndSeconds(
        embedding_forward_s=traffic_s(2 * look_up, rates),
        embedding_backward_s=0.0 * tokens
        if rates.is_frozen
        else traffic_s((1 + 2 * rates.gradient_bytes / e) * tokens * h * e, rates),
        head_forward_s=head.forward_s + traffic_s(2 * loss / 3 + 2 * look_up, rates),
        head_backward_s=head.backward_s + traffic_s(loss / 3 + 3 * look_up, rates),
    )


def _head_linear(tokens: Numeric, hidden_size: int, vocab_rows: Numeric, rates: DeviceRates) -> LinearSeconds:
    """The head's three products; rows that are no multiple of 8 miss the tensor cores' fast layout."""
    factor = np.where(vocab_rows % 8 == 0, 1.0, UNALIGNED_VOCAB)
    gradient = gemm_s(hidden_size, tokens, vocab_rows, rates)
    accumulate = traffic_s(2 * rates.gradient_bytes * hidden_size * vocab_rows, rates)
    return LinearSeconds(
        forward_s=factor * gemm_s(tokens, hidden_size, vocab_rows, rates),
        input_gradient_s=factor * gemm_s(tokens, vocab_rows, hidden_size, rates),
        weight_gradient_s=0.0 * tokens if rates.is_frozen else np.maximum(factor * gradient, accumulate),
    )


def case_ends_s(case: Case) -> EndSeconds:
    """Embedding and head of one microbatch (n,). Both run in 16 bits when the layers run in fp8 or fp4."""
    training = case.training
    plain = training if training.precision in ("fp32", "fp16") else replace(training, precision="bf16")
    return ends_s(
        case.model,
        case.habits,
        device_rates(case.cluster.device, plain, case.habits.gemm_frac),
        tokens=case.tokens,
        tp=case.columns.tp,
        vocab_rows=case.vocab_rows,
        sequence_parallel=case.columns.sequence_parallel,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EndMessages:
    """TP messages of the first and the last stage besides their layers', one microbatch [s], each (n,)."""

    embedding_forward_s: Floats
    """The embedding's sum over the vocabulary's shards."""
    embedding_backward_s: Floats
    """Its gradient gathered, under sequence parallelism."""
    head_forward_s: Floats
    """The head's input gathered, under sequence parallelism."""
    head_backward_s: Floats
    """The gradient of the head's input summed; under sequence parallelism its input gathered again besides."""


def end_messages(case: Case) -> EndMessages:
    """TP messages around the vocabulary-parallel embedding and head: s·b·h elements each."""
    gather, scatter, whole = states_messages_s(case)
    split = case.columns.sequence_parallel
    return EndMessages(
        embedding_forward_s=np.where(split, scatter, whole),
        embedding_backward_s=np.where(split, gather, 0.0),
        head_forward_s=np.where(split, gather, 0.0),
        head_backward_s=np.where(split, scatter + gather, whole),
    )
