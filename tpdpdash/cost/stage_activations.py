"""Activations and logits that each pipeline stage holds: what its layers keep, over the microbatches in flight."""

from __future__ import annotations

import numpy as np

from tpdpdash.cluster.spec import DeviceSpec
from tpdpdash.cost.activations import FULL, KeptBytes, kept_bytes, output_copies
from tpdpdash.cost.arrays import Floats, column, floats, of_rows
from tpdpdash.cost.frameworks import FrameworkHabits
from tpdpdash.cost.parameters import sequence_split, vocab_rows
from tpdpdash.cost.stages import StageKinds
from tpdpdash.cost.states import compute_bytes
from tpdpdash.elementwise import choose, larger, smaller, somewhere
from tpdpdash.layout.columns import RECOMPUTE_METHODS, LayoutColumns
from tpdpdash.layout.schedules import SPLIT_BACKWARD, is_among
from tpdpdash.model.spec import ModelSpec
from tpdpdash.schedule.closed_form import microbatches_in_flight, waiting_weight_gradients
from tpdpdash.training import Training

BLOCK = RECOMPUTE_METHODS.index("block")
OFFLOAD_LAYERS = 2.0
"""Layers whose activations are on the device where activations live in host memory: the one that is computed and the
one that is moved (Transformer Engine cpu_offload.py: one group computes while its neighbour is copied)."""


def tokens_per_microbatch(training: Training, columns: LayoutColumns) -> Floats:
    """Tokens of one microbatch on one rank: b · s / cp (n,)."""
    return columns.micro_batch_size * training.seq_len / columns.cp


def stage_activations(
    model: ModelSpec,
    device: DeviceSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
    logits_bytes: Floats,
) -> Floats:
    """Kept activations over the microbatches in flight, and what backward of one layer holds besides (its recomputed
    activations and its gradients) as far as it exceeds a microbatch's logits, which are gone by then, (n, stages)."""
    tokens = column(tokens_per_microbatch(training, columns))
    kept, working, gradients = kept_activations(model, device, training, habits, columns, kinds)
    held = in_flight(training, columns, kinds)
    held = held + _beyond_mean(columns, kinds, held) / larger(kinds.layers, 1.0)
    if somewhere(columns.offload_activations):
        on_device = smaller(held, OFFLOAD_LAYERS / larger(kinds.layers, OFFLOAD_LAYERS))
        held = choose(column(columns.offload_activations), on_device, held)
    inside = larger(tokens * (working + gradients) - logits_bytes / column(_logits_held(training, columns)), 0.0)
    waiting = _waiting(training, columns, kinds)
    inputs = _recomputed_inputs(model, device, training, habits, columns, kinds)
    return floats(tokens * (kept * held + inputs * waiting) + inside)


def _beyond_mean(columns: LayoutColumns, kinds: StageKinds, held: Floats) -> Floats:
    """Layers times microbatches that an interleaved stage holds beyond the mean over its chunks, (n, stages).

    Where Megatron counts embedding or loss as a layer, the first stage's first chunk or the last stage's last one is a
    layer short. Of the forwards in flight each chunk but the last ran a group; of the rest the last chunk ran a group
    at most, 1 on the last stage, and the first chunk what is over.
    """
    uneven = columns.is_schedule("interleaved") & (columns.account_for_embedding | columns.account_for_loss)
    if not somewhere(uneven):
        return np.zeros_like(kinds.count)
    chunks, group = column(columns.num_model_chunks), column(columns.microbatch_group_size_per_vp_stage)
    rest = held * chunks - (chunks - 1) * group
    first, last = group + larger(rest - group, 0.0), smaller(rest, group)
    short_first = kinds.is_first * column(columns.account_for_embedding) * (held - first)
    short_last = kinds.is_last * column(columns.account_for_loss) * (held - last)
    return choose(column(uneven), short_first + short_last, 0.0)


def _waiting(training: Training, columns: LayoutColumns, kinds: StageKinds) -> Floats:
    """Microbatches that wait for their weight gradient alone, (n, stages)."""
    if not somewhere(is_among(columns.schedule, SPLIT_BACKWARD)):
        return np.zeros_like(kinds.count)
    return waiting_weight_gradients(
        column(columns.schedule),
        column(columns.pp),
        column(columns.num_microbatches(training.global_batch_size)),
        kinds.index,
        kinds.latest,
    )


def _recomputed_inputs(
    model: ModelSpec,
    device: DeviceSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
) -> Floats:
    """What fully recomputed layers hold while only their weight gradients wait, beyond what they keep: all but the
    scores, bytes per token (n, stages). 0 where backward is whole: it frees layer after layer."""
    more = np.zeros_like(kinds.count)
    if not somewhere(is_among(columns.schedule, SPLIT_BACKWARD) & (columns.recompute == FULL)):
        return more
    share = recomputed_layers(columns, kinds.layers) / larger(kinds.layers, 1.0)
    for moe, layers in ((False, kinds.dense_layers), (True, kinds.moe_layers)):
        if layers.any():
            each = _kept(model, device, training, habits, columns, moe)
            extra = choose(columns.recompute == FULL, each.selective - each.full, 0.0)
            more = more + layers * share * column(of_rows(extra, columns.tp))
    return more


def in_flight(training: Training, columns: LayoutColumns, kinds: StageKinds) -> Floats:
    """Most microbatches whose activations each stage holds at once, (n, stages)."""
    return microbatches_in_flight(
        column(columns.schedule),
        column(columns.pp),
        column(columns.num_microbatches(training.global_batch_size)),
        column(columns.num_model_chunks),
        kinds.index,
        column(columns.microbatch_group_size_per_vp_stage),
    )


def _kept(
    model: ModelSpec, device: DeviceSpec, training: Training, habits: FrameworkHabits, columns: LayoutColumns, moe: bool
) -> KeptBytes:
    """What a layer of one type keeps in each row's layout, per token."""
    return kept_bytes(
        model,
        training,
        habits,
        moe,
        tp=columns.tp,
        etp=columns.etp,
        sequence_parallel=columns.sequence_parallel,
        copies=output_copies(device, training, habits, columns.micro_batch_size),
    )


def kept_activations(
    model: ModelSpec,
    device: DeviceSpec,
    training: Training,
    habits: FrameworkHabits,
    columns: LayoutColumns,
    kinds: StageKinds,
) -> tuple[Floats, Floats, Floats]:
    """(kept through one microbatch, working set of one recompute, gradients inside one layer), bytes per token, each
    (n, stages)."""
    split = floats(sequence_split(columns.sequence_parallel, columns.tp))
    kept, working, gradients = (np.zeros_like(kinds.count) for _ in range(3))
    for moe, layers in ((False, kinds.dense_layers), (True, kinds.moe_layers)):
        if not layers.any():
            continue
        each = _kept(model, device, training, habits, columns, moe)
        kept = kept + kept_by_layers(each, columns, layers, kinds.layers)
        working = larger(working, choose(layers > 0, _working_set(each, columns), 0.0))
        inner = column(of_rows(each.gradients, columns.tp))
        gradients = larger(gradients, choose(layers > 0, inner, 0.0))
    residual = compute_bytes(training) * model.hidden_size / split
    # A prediction module keeps what its norms read, and both side by side; its head's norm as the model's.
    kept = kept + kinds.is_last * column((2 + 6 * model.mtp_num_layers) * residual)
    if training.dropout > 0:
        kept = kept + kinds.is_first * column(model.hidden_size / split)
    return kept, working, gradients


def recomputed_layers(columns: LayoutColumns, layers: Floats) -> Floats:
    """Layers of each stage that recompute, (n, stages): all, or with method block the first recompute_num_layers."""
    asked = column(choose(np.isnan(columns.recompute_num_layers), np.inf, columns.recompute_num_layers))
    blocked = choose(column(columns.recompute_method == BLOCK), smaller(layers, asked), layers)
    recomputed: Floats = choose(column(columns.recompute > 0), blocked, 0.0)
    return recomputed


def block_size(columns: LayoutColumns) -> Floats:
    """Layers between two kept inputs under full uniform recompute, (n, 1)."""
    uniform = (columns.recompute == FULL) & (columns.recompute_method != BLOCK)
    asked = choose(np.isnan(columns.recompute_num_layers), 1.0, columns.recompute_num_layers)
    return column(choose(uniform, asked, 1.0))


def kept_by_layers(each: KeptBytes, columns: LayoutColumns, layers: Floats, all_layers: Floats) -> Floats:
    """Bytes per token that layers of one type keep on each stage, (n, stages)."""
    share = recomputed_layers(columns, all_layers) / larger(all_layers, 1.0)
    recomputed = layers * share
    inputs = np.ceil(recomputed / block_size(columns))
    units: Floats = choose(column(columns.recompute == FULL), inputs, recomputed)
    kept = units * column(of_rows(each.of(columns.recompute), columns.tp))
    return kept + (layers - recomputed) * column(of_rows(each.everything, columns.tp))


def _working_set(each: KeptBytes, columns: LayoutColumns) -> Floats:
    """Activations of the layers that are being recomputed, beyond what they keep, per token (n, 1)."""
    more = larger(each.everything - each.of(columns.recompute), 0.0)
    return choose(column(columns.recompute > 0), column(of_rows(more, columns.tp)) * block_size(columns), 0.0)


def stage_logits(
    model: ModelSpec, training: Training, habits: FrameworkHabits, columns: LayoutColumns, kinds: StageKinds
) -> Floats:
    """Logits of the last stage: tokens · padded V / tp elements, once more for each prediction module; GPipe holds
    every microbatch's until its backward, a split backward the gradient of those whose weight gradient waits."""
    rows = vocab_rows(model, columns.tp, habits.name)
    logits = (1 + model.mtp_num_layers) * tokens_per_microbatch(training, columns) * rows
    whole = habits.logit_kept_bytes
    each = choose(columns.tp > 1, habits.split_logit_kept_bytes or whole, whole)
    held = column(each * logits * _logits_held(training, columns))
    gradients = larger(_waiting(training, columns, kinds) - 1.0, 0.0) * column(compute_bytes(training) * logits)
    return kinds.is_last * (held + gradients)


def _logits_held(training: Training, columns: LayoutColumns) -> Floats:
    """Microbatches whose logits are held at once (n,): one, or all under GPipe."""
    return choose(columns.is_schedule("gpipe"), columns.num_microbatches(training.global_batch_size), 1.0)
