"""Why layouts were refused, in a few words each, with what would be legal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from tpdpdash.cost.result import OUT_OF_MEMORY
from tpdpdash.faults import Fault
from tpdpdash.text import t
from tpdpdash.ui.key_words import key_word
from tpdpdash.units import format_memory

if TYPE_CHECKING:
    from tpdpdash.search.refusals import Refusal

TITLES: Mapping[str, str] = {
    OUT_OF_MEMORY: "Out of memory",
    "heads_not_divisible": "TP does not divide the attention heads",
    "kv_heads_not_divisible": "TP does not divide the key/value heads",
    "context_heads_not_divisible": "TP × CP does not divide the attention heads",
    "packed_longer_than_sequence": "Packed sequences are longer than the sequence",
    "kv_heads_not_replicable": "TP does not fit the key/value heads",
    "ffn_not_divisible": "TP does not divide the MLP's width",
    "shared_ffn_not_divisible": "TP does not divide the shared experts' width",
    "expert_ffn_not_divisible": "TP does not divide the experts' width",
    "experts_not_divisible": "EP does not divide the experts",
    "expert_grid_not_divisible": "The expert grid does not divide the world",
    "more_stages_than_layers": "More stages than layers",
    "chunks_not_divisible": "Layers do not split over PP × chunks",
    "stage_without_layers": "A stage without layers",
    "batch_not_divisible": "Global batch not divisible by micro-batch × DP",
    "sequence_not_divisible": "Sequence not divisible by TP and CP",
    "fewer_microbatches_than_stages": "Fewer microbatches than stages",
    "group_size_out_of_range": "Microbatch group smaller than PP or larger than the step",
    "group_remainder": "Microbatches leave a last group smaller than PP",
    "zero_with_pipeline": "ZeRO 2 and 3 do not run with a pipeline",
    "zero_not_in_framework": "The framework has ZeRO 0 and 1 only",
    "degree_not_in_framework": "The framework has no such parallelism",
    "interleaved_without_pipeline": "Interleaving needs a pipeline",
    "precision_not_on_device": "The device does not support the precision",
    "dp_not_world": "The degrees do not make up the world",
    "shard_size_not_divisor": "The shard size does not divide DP",
    "out_of_range": "A value is out of range",
    "no_experts": "The model has no experts",
    "rank_order_pp_not_last": "The rank order needs PP last",
    "rank_order_splits_pipelines": "The rank order splits pipelines",
    "experts_need_sequence_parallel": "Experts need sequence parallelism",
    "schedule_not_in_framework": "The framework has no such schedule",
    "split_without_pipeline": "Zero-bubble schedules need a pipeline",
    "v_needs_two_chunks": "A V needs two chunks",
    "paired_few_microbatches": "Too few microbatches for pairs of passes",
    "mirror_not_even": "DualPipe needs even PP and microbatches",
    "rounds_not_even": "Microbatches do not divide over torch's rounds",
    "pipeline_without_schedule": "The schedule does not go with PP",
    "chunks_without_interleaving": "Several chunks need an interleaved schedule",
    "interleaved_needs_chunks": "Interleaving needs at least two chunks",
    "stage_entries_not_pp": "The stage split does not have PP entries",
    "stage_layers_do_not_sum": "The stage split does not have all layers",
    "interleaved_few_microbatches": "Too few microbatches to interleave",
    "sequence_beyond_positions": "The sequence is longer than the position table",
    "recompute_layers_unused": "Recomputed layers without full recomputation",
}
BUILTIN = "The built-in worker cannot run it"


def title(code: str) -> str:
    """A refusal in a few words. The sentence of the fault says it in full."""
    return t(BUILTIN) if code.startswith("builtin_") else t(TITLES[code])


def note(refusal: Refusal) -> str:
    """One example with the nearest legal values: "PP 64, nearest 32"."""
    fault = refusal.fault
    if refusal.reason == OUT_OF_MEMORY:
        short = float(str(fault.values["peak_bytes"])) - float(str(fault.values["capacity_bytes"]))
        return t("closest is {short} short", short=format_memory(short))
    nearest = fault.values.get("nearest")
    if nearest is None or nearest == ():
        return ""
    shown = ", ".join(map(str, nearest)) if isinstance(nearest, tuple | list) else str(nearest)
    return t("{name} {value}, nearest {nearest}", name=key_word(fault.field), value=fault.value, nearest=shown)


def table(refusals: Mapping[str, Refusal]) -> pd.DataFrame:
    """Columns label, count, note, is_limit: memory first, then the most frequent reasons."""
    order = sorted(refusals.values(), key=lambda refusal: (refusal.reason != OUT_OF_MEMORY, -refusal.count))
    rows = [(title(r.reason), r.count, note(r), r.reason == OUT_OF_MEMORY) for r in order]
    return pd.DataFrame(rows, columns=["label", "count", "note", "is_limit"])


def examples(refusals: Mapping[str, Refusal]) -> list[Fault]:
    """The faults of the examples, without memory, which the table says in full."""
    return [refusal.fault for reason, refusal in refusals.items() if reason != OUT_OF_MEMORY]
