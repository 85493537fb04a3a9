"""Rules about what is divided: heads, MLP and experts over TP and EP, states over DP, ranks over the world."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.faults import range_values
from tpdpdash.layout.frameworks import ALL, MEGATRON, MEGATRON_OF_2022, PIPELINE_WITHOUT_ZERO_2, cp_comm_type
from tpdpdash.layout.rule import Explained, Facts, Rule, all_rows, flags
from tpdpdash.layout.world import nearest_of
from tpdpdash.model.counts import num_moe_layers
from tpdpdash.units import divisors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.layout.columns import LayoutColumns
    from tpdpdash.layout.layout import Layout
    from tpdpdash.model.spec import ModelSpec
    from tpdpdash.units import Numeric

    Flags = NDArray[np.bool_]

REPLICATES_KV = MEGATRON | {"jax"}
"""Frameworks that give each rank a copy of a KV head where tp exceeds the KV heads."""
MOST_LEGAL_SHOWN = 16
ZERO_STAGES = (0, 1, 2, 3)
"""What a ZeRO stage can be."""


# ------------------------------------------------------------------------------------------------ world


def _off_world(facts: Facts, c: LayoutColumns) -> Flags:
    cluster = facts.cluster
    if cluster is None or (cluster.asked_device == "local" and cluster.device.is_cpu):
        return all_rows(c, False)  # on local CPU ranks the world is what the layout multiplies to
    return flags(c.world_size != cluster.world_size)


def _explain_world(facts: Facts, layout: Layout) -> Explained:
    world_size = facts.cluster.world_size if facts.cluster else layout.world_size
    others = layout.tp * layout.cp * layout.pp
    nearest = world_size // others if world_size % others == 0 else 0
    return Explained(value=layout.dp, values={"world_size": world_size, "product": others, "nearest": nearest or ()})


# ------------------------------------------------------------------------------------------------ tensor parallel


def kv_heads_legal(num_kv_heads: int, tp: Numeric, framework: str) -> Flags:
    """Whether tp ranks can share the KV heads: each holds whole heads, or (where the framework copies them) a whole
    number of ranks holds each head. Source: Megatron-LM attention.py; torchtitan parallelize.py."""
    kv = max(num_kv_heads, 1)
    divides = flags(kv % np.asarray(tp) == 0)
    return divides | flags(np.asarray(tp) % kv == 0) if framework in REPLICATES_KV else divides


def has_dense_mlp(model: ModelSpec) -> bool:
    """Whether any layer has a dense MLP."""
    return num_moe_layers(model) < model.num_layers


def legal_tp(facts: Facts) -> list[int]:
    """Tensor parallel degrees that suit heads, KV heads and the MLP together."""
    model = facts.model
    legal = [t for t in divisors(max(model.num_attention_heads, 1)) if _mlp_divides(model, t)]
    return [t for t in legal if model.is_mla or bool(kv_heads_legal(model.num_kv_heads, t, facts.framework))]


def _mlp_divides(model: ModelSpec, tp: int) -> bool:
    dense = not has_dense_mlp(model) or model.ffn_hidden_size % tp == 0
    return dense and model.shared_expert_ffn_hidden_size % tp == 0


def _heads(facts: Facts, c: LayoutColumns) -> Flags:
    return flags(facts.model.num_attention_heads % c.tp != 0)


def _kv_heads(facts: Facts, c: LayoutColumns) -> Flags:
    if facts.model.is_mla:  # the compressed keys and values have no heads to divide
        return all_rows(c, False)
    return ~kv_heads_legal(facts.model.num_kv_heads, c.tp, facts.framework)


def ulysses_legal(facts: Facts, tp: Numeric, cp: Numeric) -> Flags:
    """Whether attention's heads can be divided over cp ranks besides tp: whole query heads for each, and of key/value
    heads whole ones too or copies of one. Source: ms-swift sequence_parallel/ulysses.py; Transformer Engine's a2a."""
    ranks = np.asarray(tp) * np.asarray(cp)
    queries = facts.model.num_attention_heads % ranks == 0
    if facts.model.is_mla:
        return flags(queries)
    kv = max(facts.model.num_kv_heads, 1)
    return flags(queries & ((kv % ranks == 0) | (ranks % kv == 0)))


def _context_heads(facts: Facts, c: LayoutColumns) -> Flags:
    if cp_comm_type(facts.training) != "a2a":
        return all_rows(c, False)
    return flags((c.cp > 1) & ~ulysses_legal(facts, c.tp, c.cp))


def _explain_context_heads(facts: Facts, layout: Layout) -> Explained:
    model = facts.model
    legal = [n for n in divisors(model.num_attention_heads) if ulysses_legal(facts, layout.tp, n)]
    values = {
        "heads": model.num_attention_heads,
        "kv_heads": model.num_kv_heads,
        "tp": layout.tp,
        "legal": tuple(legal[:MOST_LEGAL_SHOWN]),
        "nearest": nearest_of(legal, layout.cp),
    }
    return Explained(value=layout.cp, values=values)


def _dense_ffn(facts: Facts, c: LayoutColumns) -> Flags:
    if not has_dense_mlp(facts.model):
        return all_rows(c, False)
    return flags(facts.model.ffn_hidden_size % c.tp != 0)


def _shared_ffn(facts: Facts, c: LayoutColumns) -> Flags:
    return flags(facts.model.shared_expert_ffn_hidden_size % c.tp != 0)


def _explain_tp(facts: Facts, layout: Layout) -> Explained:
    model, legal = facts.model, legal_tp(facts)
    # As many devices used as pipeline stages instead, where the layers divide: 52 heads on 3 devices, 60 layers.
    instead = (layout.tp,) if layout.pp == 1 and model.num_layers % layout.tp == 0 else ()
    values = {
        "heads": model.num_attention_heads,
        "kv_heads": model.num_kv_heads,
        "ffn_hidden_size": model.ffn_hidden_size,
        "shared_ffn_hidden_size": model.shared_expert_ffn_hidden_size,
        "legal": tuple(legal[:MOST_LEGAL_SHOWN]),
        "nearest": nearest_of(legal, layout.tp),
        "pp_instead": instead,
    }
    return Explained(value=layout.tp, values=values)


# ------------------------------------------------------------------------------------------------ sharding of states


def _shard_size(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.dp % c.dp_shard_size != 0)


def _explain_shard_size(_facts: Facts, layout: Layout) -> Explained:
    values = {"dp": layout.dp, "nearest": nearest_of(divisors(layout.dp), layout.dp_shard_size)}
    return Explained(value=layout.dp_shard_size, values=values)


def _zero_range(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags((c.zero_stage < ZERO_STAGES[0]) | (c.zero_stage > ZERO_STAGES[-1]))


def _zero_with_pipeline(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags((c.zero_stage >= 2) & (c.pp > 1))


def _zero_of_2022(_facts: Facts, c: LayoutColumns) -> Flags:
    return flags(c.zero_stage >= 2)


def _only_one(name: str) -> Rule:
    """Megatron-LM of 2022 had neither context nor expert parallelism."""

    def violated(_facts: Facts, c: LayoutColumns) -> Flags:
        return np.asarray(getattr(c, name) > 1, np.bool_)

    def explain(facts: Facts, layout: Layout) -> Explained:
        return Explained(value=getattr(layout, name), values={"framework": facts.framework, "nearest": 1})

    return Rule(
        code="degree_not_in_framework",
        of_degrees=True,
        field=f"layout.{name}",
        violated=violated,
        explain=explain,
        frameworks=MEGATRON_OF_2022,
        source="Korthikanti 2022, section 3",
    )


# ------------------------------------------------------------------------------------------------ precision

PRECISION_NEEDS = {
    "fp32": ("fp32",),
    "bf16": ("bf16",),
    "fp16": ("fp16",),
    "fp8": ("fp8",),
    # Block-scaled formats came with the fp4 units: a device with fp8 alone (Hopper) cannot run them.
    "mxfp8": ("fp8", "fp4"),
    "nvfp4": ("fp4",),
}


def _precision(facts: Facts, c: LayoutColumns) -> Flags:
    return all_rows(c, facts.cluster is not None and not _supports(facts, facts.training.precision))


def _supports(facts: Facts, precision: str) -> bool:
    peaks = facts.cluster.device.peak_flops_per_s if facts.cluster else {}
    return all(name in peaks for name in PRECISION_NEEDS[precision])


def _explain_precision(facts: Facts, _layout: Layout) -> Explained:
    legal = tuple(name for name in ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32") if _supports(facts, name))
    device = facts.cluster.device.name if facts.cluster else ""
    nearest = "fp8" if "fp8" in legal and facts.training.precision in ("mxfp8", "nvfp4") else legal[:1]
    return Explained(value=facts.training.precision, values={"device": device, "legal": legal, "nearest": nearest})


def _packed(facts: Facts, c: LayoutColumns) -> Flags:
    return all_rows(c, (facts.training.packed_seq_len or 0) > facts.training.seq_len)


def _explain_packed(facts: Facts, _layout: Layout) -> Explained:
    seq_len = facts.training.seq_len
    return Explained(value=facts.training.packed_seq_len, values={"seq_len": seq_len, "nearest": seq_len})


def _explain_zero(facts: Facts, layout: Layout) -> Explained:
    return Explained(value=layout.zero_stage, values={"framework": facts.framework, "pp": layout.pp, "nearest": 1})


def _explain_zero_range(_facts: Facts, layout: Layout) -> Explained:
    return Explained(value=layout.zero_stage, values=range_values(layout.zero_stage, ZERO_STAGES[0], ZERO_STAGES[-1]))


SHARD_RULES: tuple[Rule, ...] = (
    Rule(code="dp_not_world", of_degrees=True, field="layout.dp", violated=_off_world, explain=_explain_world),
    Rule(
        code="precision_not_on_device",
        of_degrees=True,
        field="training.precision",
        violated=_precision,
        explain=_explain_precision,
    ),
    Rule(
        code="packed_longer_than_sequence",
        of_degrees=True,
        field="training.packed_seq_len",
        violated=_packed,
        explain=_explain_packed,
    ),
    Rule(code="heads_not_divisible", of_degrees=True, field="layout.tp", violated=_heads, explain=_explain_tp),
    Rule(
        code="kv_heads_not_divisible",
        of_degrees=True,
        field="layout.tp",
        violated=_kv_heads,
        explain=_explain_tp,
        frameworks=ALL - REPLICATES_KV,
        source="torchtitan PR 2577; torch views (…, heads / tp, head_dim)",
    ),
    Rule(
        code="kv_heads_not_replicable",
        of_degrees=True,
        field="layout.tp",
        violated=_kv_heads,
        explain=_explain_tp,
        frameworks=REPLICATES_KV,
        source="Megatron-LM transformer_config.py: num_query_groups and tp, one a multiple of the other",
    ),
    Rule(code="ffn_not_divisible", of_degrees=True, field="layout.tp", violated=_dense_ffn, explain=_explain_tp),
    Rule(
        code="shared_ffn_not_divisible", of_degrees=True, field="layout.tp", violated=_shared_ffn, explain=_explain_tp
    ),
    Rule(
        code="context_heads_not_divisible",
        of_degrees=True,
        field="layout.cp",
        violated=_context_heads,
        explain=_explain_context_heads,
    ),
    _only_one("cp"),
    _only_one("ep"),
    Rule(
        code="shard_size_not_divisor", field="layout.dp_shard_size", violated=_shard_size, explain=_explain_shard_size
    ),
    Rule(code="out_of_range", field="layout.zero_stage", violated=_zero_range, explain=_explain_zero_range),
    Rule(
        code="zero_with_pipeline",
        field="layout.zero_stage",
        violated=_zero_with_pipeline,
        explain=_explain_zero,
        frameworks=PIPELINE_WITHOUT_ZERO_2,
        source="DeepSpeed pipe/engine.py: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
    ),
    Rule(
        code="zero_not_in_framework",
        field="layout.zero_stage",
        violated=_zero_of_2022,
        explain=_explain_zero,
        frameworks=MEGATRON_OF_2022,
        source="Megatron-LM 2022: the distributed optimizer shards states only",
    ),
)
