"""What the first and the last stage do besides their layers: embedding, head and loss, and the messages around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpdpdash.cost.arrays import Flag
from tpdpdash.cost.case import Case
from tpdpdash.cost.collectives import all_reduce_s
from tpdpdash.cost.layer_messages import states_messages_s
from tpdpdash.cost.operators import (
    ALIGNMENT_BYTES,
    DeviceRates,
    LinearSeconds,
    device_rates,
    gemm_s,
    linear_s,
    traffic_s,
)
from tpdpdash.cost.parameters import sequence_split
from tpdpdash.elementwise import choose, larger
from tpdpdash.model.spec import ModelSpec

if TYPE_CHECKING:
    from tpdpdash.units import Numeric

LOSS_MESSAGE_BYTES = (4.0, 8.0)
"""All-reduced per token by a vocabulary-parallel cross entropy, in fp32: the maximum; the sum of exponentials with the
target's logit (worker.collectives)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSeconds:
    """What the first and the last stage compute besides, for one microbatch [s]."""

    embedding_forward_s: Numeric
    """Look-up."""
    embedding_backward_s: Numeric
    """Scattered addition into the table's gradient."""
    head_forward_s: Numeric
    """Final norm, logits, loss; around the layers of prediction modules the same and what they add."""
    head_backward_s: Numeric
    """Their gradients."""
    head_weight_gradient_s: Numeric
    """The head's own gradient, part of its backward."""


def ends_s(
    model: ModelSpec,
    logit_bytes: float,
    rates: DeviceRates,
    *,
    tokens: Numeric,
    tp: Numeric,
    vocab_rows: Numeric,
    sequence_parallel: Flag,
) -> EndSeconds:
    """Embedding and head. vocab_rows: padded rows of the table on one rank; rates: 16-bit ones also when training in
    fp8.

    The loss moves logit_bytes a logit, a third of it in backward. A prediction module runs the head and
    the loss once more, and before its layer looks up the next tokens, norms both states and projects them to one.
    """
    e, h = rates.element_bytes, model.hidden_size
    split = sequence_split(sequence_parallel, tp)
    look_up = tokens * h * e / split
    head = _head_linear(tokens, h, vocab_rows, rates)
    loss = logit_bytes * tokens * vocab_rows
    scattered = 0.0 if rates.is_frozen else traffic_s((1 + 2 * rates.gradient_bytes / e) * tokens * h * e, rates)
    looked_up, modules = traffic_s(2 * look_up, rates), model.mtp_num_layers
    forward = head.forward_s + traffic_s(2 * loss / 3 + 2 * look_up, rates)
    backward = head.backward_s + traffic_s(loss / 3 + 3 * look_up, rates)
    weight_gradient = head.weight_gradient_s
    if modules:
        project = linear_s(tokens, 2 * h, h / tp, rates)
        forward += modules * (forward + looked_up + traffic_s(4 * look_up, rates) + project.forward_s)
        backward += modules * (backward + scattered + traffic_s(6 * look_up, rates) + project.backward_s)
        weight_gradient += modules * (weight_gradient + scattered + project.weight_gradient_s)
    return EndSeconds(
        embedding_forward_s=looked_up,
        embedding_backward_s=0.0 * tokens + scattered,
        head_forward_s=forward,
        head_backward_s=backward,
        head_weight_gradient_s=weight_gradient,
    )


def _head_linear(tokens: Numeric, hidden_size: int, vocab_rows: Numeric, rates: DeviceRates) -> LinearSeconds:
    """The head's three products; a row of logits that is no multiple of 16 bytes makes all of them slow."""
    factor = choose(vocab_rows * rates.element_bytes % ALIGNMENT_BYTES == 0, 1.0, rates.unaligned_slowdown)
    gradient = gemm_s(hidden_size, tokens, vocab_rows, rates)
    accumulate = traffic_s(2 * rates.gradient_bytes * hidden_size * vocab_rows, rates)
    return LinearSeconds(
        forward_s=factor * gemm_s(tokens, hidden_size, vocab_rows, rates),
        input_gradient_s=factor * gemm_s(tokens, vocab_rows, hidden_size, rates),
        weight_gradient_s=0.0 * tokens if rates.is_frozen else larger(factor * gradient, accumulate),
    )


def case_ends_s(case: Case) -> EndSeconds:
    """Embedding and head of one microbatch (n,). Both run in 16 bits when the layers run in fp8 or fp4."""
    training, habits = case.training, case.habits
    plain = training if training.precision in ("fp32", "fp16") else replace(training, precision="bf16")
    rates = device_rates(case.cluster.device, plain, habits.gemm_frac, tf32=habits.runs_tf32(training))
    if habits.pads_compiled_products and training.compiled:
        rates = replace(rates, unaligned_slowdown=1.0)
    return ends_s(
        case.model,
        habits.loss_traffic_bytes(training.compiled),
        rates,
        tokens=case.tokens,
        tp=case.columns.tp,
        vocab_rows=case.vocab_rows,
        sequence_parallel=case.columns.sequence_parallel,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EndMessages:
    """TP messages of the first and the last stage besides their layers', one microbatch [s], each (n,)."""

    embedding_forward_s: Numeric
    """The embedding's sum over the vocabulary's shards."""
    embedding_backward_s: Numeric
    """Its gradient gathered, under sequence parallelism."""
    head_forward_s: Numeric
    """The head's input gathered, under sequence parallelism."""
    head_backward_s: Numeric
    """The gradient of the head's input summed; under sequence parallelism its input gathered again besides, where it
    was not kept."""


def end_messages(case: Case) -> EndMessages:
    """TP messages around the vocabulary-parallel embedding and head: s·b·h elements each; where operators are counted
    those of the loss besides."""
    loss: Numeric = 0.0
    if case.habits.counts_operators:
        loss = sum(all_reduce_s(sent * case.tokens, case.links.tp) for sent in LOSS_MESSAGE_BYTES)
    return EndMessages(**_around_ends(case, *states_messages_s(case), loss))


def end_message_counts(case: Case) -> dict[str, Numeric]:
    """How many messages of s·b·h elements each of `end_messages` is, by its field; those of a loss are one."""
    return _around_ends(case, 1.0, 1.0, 1.0, float(case.habits.counts_operators))


def _around_ends(case: Case, gather: Numeric, scatter: Numeric, whole: Numeric, loss: Numeric) -> dict[str, Numeric]:
    """`end_messages` of messages that take so long each.

    A prediction module sends both ends' once more. Its projection (2h to h, column-parallel) reads two gathered states,
    whose gradients are summed; what it gives is gathered whole, and under sequence parallelism scattered again, which
    is a gather in backward. Source: Megatron-Core multi_token_prediction.py, _concat_embeddings.
    """
    split, modules = case.columns.sequence_parallel, case.model.mtp_num_layers
    again = gather if case.habits.gathers_again else 0.0
    embedded, returned = choose(split, scatter, whole), choose(split, gather, 0.0)
    forward, backward = choose(split, gather, 0.0) + loss, choose(split, scatter + again, whole)
    projected, unprojected = choose(split, 3 * gather, gather), 2 * backward + choose(split, gather, 0.0)
    return {
        "embedding_forward_s": embedded,
        "embedding_backward_s": returned,
        "head_forward_s": forward + modules * (forward + embedded + projected),
        "head_backward_s": backward + modules * (backward + returned + unprojected),
    }
