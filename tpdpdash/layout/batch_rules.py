"""Rules about the batch, the sequence and what is recomputed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.faults import range_values
from tpdpdash.layout.layout import RECOMPUTES
from tpdpdash.layout.rule import Explained, Facts, Rule, all_rows, flags
from tpdpdash.layout.world import nearest_of
from tpdpdash.units import divisors, nearest_multiples

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from tpdpdash.layout.columns import LayoutColumns
    from tpdpdash.layout.layout import Layout

    Flags = NDArray[np.bool_]

MAX_SEQ_LEN = 2**24
"""Sixteen million tokens: past any published training sequence."""
MAX_GLOBAL_BATCH_SIZE = 10_000_000
"""Sequences in a step: past any published batch."""


def _seq_range(facts: Facts, c: LayoutColumns) -> Flags:
    return all_rows(c, not 1 <= facts.training.seq_len <= MAX_SEQ_LEN)


def _batch_range(facts: Facts, c: LayoutColumns) -> Flags:
    return all_rows(c, not 1 <= facts.training.global_batch_size <= MAX_GLOBAL_BATCH_SIZE)


def _in_range(value: int, high: int) -> Explained:
    return Explained(value=value, values=range_values(value, 1, high))


def _position_table(facts: Facts, c: LayoutColumns) -> Flags:
    rows = facts.model.position_embedding_size
    return all_rows(c, 0 < rows < facts.training.seq_len)


def _explain_position_table(facts: Facts, _layout: Layout) -> Explained:
    rows = facts.model.position_embedding_size
    return Explained(value=facts.training.seq_len, values={"rows": rows, "nearest": rows})


def sequence_multiple(cp: ArrayLike, tp: ArrayLike, sequence_parallel: ArrayLike) -> NDArray[np.float64]:
    """What the sequence must be a multiple of, for one layout or many rows: 2·cp for the balanced halves of context
    parallelism, tp where sequence parallelism splits it, both together cp·lcm(2, tp). Source: NeMo-RL PR 3563;
    torchtitan PR 1312."""
    parts = np.asarray(cp, np.float64)
    split = np.where(sequence_parallel, np.asarray(tp, np.float64), 1.0)
    even = split * (1 + split % 2)  # lcm(2, split)
    return np.where(parts > 1, parts * even, split)


def _sequence(facts: Facts, c: LayoutColumns) -> Flags:
    return flags(facts.training.seq_len % sequence_multiple(c.cp, c.tp, c.sequence_parallel) != 0)


def _explain_sequence(facts: Facts, layout: Layout) -> Explained:
    step = int(sequence_multiple(layout.cp, layout.tp, layout.sequence_parallel))
    value = facts.training.seq_len
    values = {"multiple": step, "cp": layout.cp, "tp": layout.tp, "nearest": nearest_multiples(value, step)}
    return Explained(value=value, values=values)


def _batch(facts: Facts, c: LayoutColumns) -> Flags:
    return flags(facts.training.global_batch_size % (c.micro_batch_size * c.dp) != 0)


def _explain_batch(facts: Facts, layout: Layout) -> Explained:
    batch = facts.training.global_batch_size
    step = layout.micro_batch_size * layout.dp
    replicas = divisors(batch // layout.micro_batch_size) if batch % layout.micro_batch_size == 0 else []
    values = {
        "micro_batch_size": layout.micro_batch_size,
        "dp": layout.dp,
        "multiple": step,
        "nearest": nearest_multiples(batch, step),
        "nearest_dp": nearest_of(replicas, layout.dp),
    }
    return Explained(value=batch, values=values)


def _recompute_range(_facts: Facts, c: LayoutColumns) -> Flags:
    given = np.where(np.isnan(c.recompute_num_layers), 1.0, c.recompute_num_layers)
    return flags((given < 1) | (given > np.maximum(c.largest_stage, 1)))


def _explain_recompute_range(_facts: Facts, layout: Layout) -> Explained:
    return _in_range(layout.recompute_num_layers or 0, max(layout.layers_per_stage, default=1))


def _recompute_unused(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(~np.isnan(c.recompute_num_layers) & (c.recompute != RECOMPUTES.index("full")))


def _explain_recompute_unused(_facts: Facts, layout: Layout) -> Explained:
    return Explained(value=layout.recompute_num_layers, values={"recompute": layout.recompute, "nearest": "full"})


BATCH_RULES: tuple[Rule, ...] = (
    Rule(
        code="out_of_range",
        field="training.seq_len",
        violated=_seq_range,
        explain=lambda facts, _layout: _in_range(facts.training.seq_len, MAX_SEQ_LEN),
    ),
    Rule(
        code="out_of_range",
        field="training.global_batch_size",
        violated=_batch_range,
        explain=lambda facts, _layout: _in_range(facts.training.global_batch_size, MAX_GLOBAL_BATCH_SIZE),
    ),
    Rule(
        code="sequence_beyond_positions",
        field="training.seq_len",
        violated=_position_table,
        explain=_explain_position_table,
        source="Megatron-LM arguments.py: max_position_embeddings >= seq_length",
    ),
    Rule(code="batch_not_divisible", field="training.global_batch_size", violated=_batch, explain=_explain_batch),
    Rule(code="sequence_not_divisible", field="training.seq_len", violated=_sequence, explain=_explain_sequence),
    Rule(
        code="out_of_range",
        field="layout.recompute_num_layers",
        violated=_recompute_range,
        explain=_explain_recompute_range,
        source="Megatron-LM transformer_config.py: between 1 and the layers of a pipeline rank",
    ),
    Rule(
        code="recompute_layers_unused",
        field="layout.recompute_num_layers",
        violated=_recompute_unused,
        explain=_explain_recompute_unused,
        source="Megatron-LM transformer_config.py: recompute_num_layers goes with full recomputation only",
    ),
)
