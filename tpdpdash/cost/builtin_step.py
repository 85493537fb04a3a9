"""What a step of the built-in worker keeps, and what is alive besides at the moments when most is.

Every figure is bytes on one rank of each stage (n, stages); moments are told against what is kept when forward passes
end: what is added, less what backward has freed by then. The largest decides.
"""

from __future__ import annotations

import numpy as np

from tpdpdash.cost.activations import FULL, SELECTIVE
from tpdpdash.cost.arrays import Floats, column, of_rows
from tpdpdash.cost.builtin_fsdp import FullySharded, is_sharded
from tpdpdash.cost.builtin_layer import FP32, BuiltinLayer, builtin_layer
from tpdpdash.cost.stage_activations import (
    block_size,
    in_flight,
    kept_by_layers,
    recomputed_layers,
    tokens_per_microbatch,
)
from tpdpdash.cost.stages import StageKinds
from tpdpdash.cost.states import compute_bytes
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

INT64, BOOL = 8.0, 1.0
"""Bytes of a token and of a flag."""
LOOKED_UP = INT64 + BOOL
"""Kept per token by look-up and loss of a split vocabulary: the local index, and whether the token is here."""


class BuiltinStep:
    """One step of n layouts. Left out: figures of a few bytes a token, and temporaries inside a layer's norms."""

    def __init__(
        self, model: ModelSpec, training: Training, columns: LayoutColumns, kinds: StageKinds, *, is_cpu: bool
    ) -> None:
        self._model, self._training, self._columns, self._kinds = model, training, columns, kinds
        self._layer: BuiltinLayer = builtin_layer(model, training, columns, is_cpu=is_cpu)
        self._element = compute_bytes(training)
        self._tokens = column(tokens_per_microbatch(training, columns))
        self._microbatches = column(columns.num_microbatches(training.global_batch_size))
        self._chunks = column(columns.num_model_chunks)
        self._in_flight = in_flight(training, columns, kinds)
        split = np.where(columns.sequence_parallel, columns.tp, 1.0)
        self._whole = self._element * model.hidden_size * self._tokens
        """One activation of the whole sequence."""
        self._residual = self._whole / column(split)
        """One activation between the parallel regions, and between stages."""
        rows = model.vocab_size / columns.tp
        self._logits = kinds.is_last * column(rows) * self._tokens
        """Logits of one microbatch [elements]."""
        self.table = column(self._element * rows * model.hidden_size)
        """Weights of the embedding, or of the head."""
        self._is_grouped = is_sharded(columns)
        """FSDP: a group's weight gradients stay until all of them are reduced."""
        self._waiting = np.where(self._is_grouped | model.tied_embeddings, self.table, 0.0)
        """The head's weight gradient, which waits for the embedding's: of a tied table, or in FSDP's group of both."""
        self._own = self._kept_of_one()

    def kept(self) -> Floats:
        """Activations kept through the microbatches in flight."""
        return self._own * self._in_flight

    def logits(self) -> Floats:
        """Logits, and their softmax in fp32."""
        return (self._element + FP32) * self._logits * self._in_flight

    def lasting(self) -> Floats:
        """Tables of the rotary embedding; on the ends inputs and targets of the replica's step; and where a stage has a
        neighbour, one tensor for each microbatch to receive into (torch.distributed.pipelining)."""
        model, training, columns, kinds = self._model, self._training, self._columns, self._kinds
        rope = self._chunks * 2 * FP32 * training.seq_len * model.head_dim
        sequences = column(training.global_batch_size / columns.dp)
        batch = np.maximum(kinds.is_first, kinds.is_last) * 2 * INT64 * training.seq_len * sequences
        neighbours = 2 * self._chunks - kinds.is_first - kinds.is_last
        return np.asarray(rope + batch + neighbours * self._microbatches * self._residual)

    def plain(self) -> Floats:
        """The fullest moment of all but the optimizer's step, where weights are whole."""
        ends = [self.loss(), self.head_backward(), self.norm_backward(), self.embedding_backward()]
        return np.asarray(np.maximum.reduce([*ends, self.layer_backward()]))

    def grouped(self, groups: FullySharded) -> Floats:
        """The same under FSDP: before, in and after the backward of the last layer and of the one before it, and at the
        end of the backward pass. The shards' gradients, counted elsewhere, come with the first microbatch's
        backward."""
        shards = np.where(self._microbatches > 1, 0.0, FP32 * groups.shards)
        freed = self._tokens * column(of_rows(self._layer.kept.of(self._columns.recompute), self._columns.tp))
        before = np.maximum.reduce([self.loss(), self.head_backward(), self.norm_backward()])
        forward = 3 * groups.layer - freed - self._tokens * self._head() - self.logits()
        inside = self.layer_backward() + 2 * groups.layer
        ended = self._waiting - self._tokens * self._head() - FP32 * self._logits + groups.layer_gradients - freed
        last = np.maximum(inside, ended + groups.layer + groups.layer_message)
        come = np.where(self._microbatches > 1, 0.0, groups.layer_shard)
        earlier = np.maximum(inside, ended + 2 * groups.layer) - freed + groups.layer_message + come
        in_layers = np.maximum(last, np.where(self._kinds.layers > 1, earlier, last))
        in_ends = groups.ends_reduced - self._own - FP32 * self._logits
        whole = groups.while_kept - shards
        return np.asarray(np.maximum(whole + np.maximum.reduce([before, forward, in_layers]), in_ends))

    def loss(self) -> Floats:
        """The loss of the last microbatch: 16-bit logits are copied to fp32 before their maximum is subtracted."""
        copied = FP32 if self._element < FP32 else 0.0
        return copied * self._logits + self._sent()

    def head_backward(self) -> Floats:
        """The logits' gradient has taken the place of the softmax; the head's weight gradient and its input's."""
        gradient = (self._element - FP32) * self._logits
        return self._kinds.is_last * (self.table + self._whole) + gradient + self._sent()

    def norm_backward(self) -> Floats:
        """The final norm's, which is many operators on a CPU."""
        kept = self._tokens * column(self._layer.norm_backward)
        return self._kinds.is_last * (kept + self._waiting) - FP32 * self._logits + self._sent()

    def layer_backward(self) -> Floats:
        """The last layer that keeps everything, or the last that is computed again; the head is done, its logits still
        there."""
        layer, columns = self._layer, self._columns
        down = self._tokens * column(layer.down_gradients) + column(layer.down_weight_gradient)
        staying = np.where(self._is_grouped, column(layer.down_weight_gradient), 0.0)
        mlp = np.maximum(down, self._tokens * column(layer.gate_gradients) + staying)
        attention = self._tokens * column(layer.score_gradients)
        plain = self._kinds.layers - recomputed_layers(columns, self._kinds.layers)
        every = self._tokens * column(layer.everything)
        is_full = column(columns.recompute == FULL)
        again = np.where(is_full, block_size(columns) * every - self._tokens * column(layer.owned_input), 0.0)
        kept = np.where(is_full & (plain == 0), again, 0.0) + np.maximum(mlp, self._scores_again() + attention)
        dropped = np.where(is_full, again - plain * every + np.maximum(mlp, attention), 0.0)
        head_done = self._kinds.is_last * (self._residual - self._tokens * self._head() + self._waiting)
        return np.asarray(np.maximum(kept, dropped) + head_done - FP32 * self._logits + self._sent())

    def embedding_backward(self) -> Floats:
        """All that the oldest microbatch kept is gone; the table's gradient, and its output's."""
        freed = self._own + FP32 * self._logits
        added = self.table + self._waiting + 2 * self._whole - freed
        return np.asarray(np.where(self._kinds.is_first > 0, added, 0.0))

    def _scores_again(self) -> Floats:
        """What selective recompute computes again of one layer."""
        layer, is_selective = self._layer, self._columns.recompute == SELECTIVE
        again = np.where(is_selective, layer.everything - layer.selective, 0.0)
        return np.asarray(self._tokens * column(again))

    def _sent(self) -> Floats:
        """The input's gradient of the last backward pass, which is let go when the next one's is sent."""
        runs_on = (self._in_flight < self._microbatches) & (column(self._columns.pp) > 1)
        return np.where(runs_on, (1 - self._kinds.is_first) * self._residual, 0.0)

    def _head(self) -> Floats:
        """Kept by the final norm and the head, per token (n, 1)."""
        return column(self._layer.norm) + self._element * self._model.hidden_size

    def _kept_of_one(self) -> Floats:
        """Kept of one microbatch: layers, ends, and a stage's output where the next one has it too; its input is in the
        receive buffers."""
        layer, columns, kinds = self._layer, self._columns, self._kinds
        layers = self._tokens * kept_by_layers(layer.kept, columns, kinds.layers, kinds.layers)
        looked_up = np.where(column(columns.tp) > 1, LOOKED_UP, 0.0)
        ends = kinds.is_first * looked_up + kinds.is_last * (self._head() + LOOKED_UP)
        is_full = column(columns.recompute == FULL)
        received = np.where(is_full, self._residual, self._tokens * column(layer.owned_input))
        boundaries = (1 - kinds.is_last) * self._residual - (1 - kinds.is_first) * received
        return np.where(kinds.exists, layers + self._tokens * ends + boundaries, 0.0)
