"""What a person should know about a legal layout: not refusals, but consequences that are easily overlooked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpdpdash.faults import Fault
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.frameworks import known_framework
from tpdpdash.layout.placement import domain_block, members_per_block
from tpdpdash.layout.schedules import SCHEDULE_FACTS
from tpdpdash.layout.tensor_rules import REPLICATES_KV
from tpdpdash.layout.unused import unused_settings
from tpdpdash.layout.vocabulary import padded_vocab_size
from tpdpdash.units import ceil_div

if TYPE_CHECKING:
    from tpdpdash.cluster.spec import ClusterSpec
    from tpdpdash.layout.layout import Layout
    from tpdpdash.model.spec import ModelSpec
    from tpdpdash.training import Training


def advice(model: ModelSpec, cluster: ClusterSpec | None, training: Training, layout: Layout) -> list[Fault]:
    """Every remark about a legal layout, as codes with values."""
    framework = known_framework(training.framework)
    remarks = [
        _tp_leaves_domain(cluster, layout),
        _kv_copies(model, framework, layout),
        _padded_vocabulary(model, framework, layout),
        _two_interleaved_stages(layout),
        _order_is_fixed(layout),
        _few_microbatches(training, layout),
        _shards_nothing(layout),
    ]
    return [*(remark for remark in remarks if remark is not None), *unused_settings(model, training, layout)]


def kv_weight_copies(model: ModelSpec, framework: str, tp: int) -> int:
    """How many ranks of a TP group hold the same key and value weights: tp / KV heads where a framework copies them."""
    if model.is_mla or known_framework(framework) not in REPLICATES_KV:
        return 1
    return max(1, tp // max(model.num_kv_heads, 1))


def _tp_leaves_domain(cluster: ClusterSpec | None, layout: Layout) -> Fault | None:
    if cluster is None or layout.tp == 1:
        return None
    columns = LayoutColumns.from_layouts([layout])
    domain_size = domain_block(cluster)
    inside = int(members_per_block(columns, "tp", domain_size)[0])
    if inside == layout.tp:
        return None
    values = {
        "tp": layout.tp,
        "domains": ceil_div(layout.tp, inside),
        "domain_size": domain_size,
        "nearest": "-".join(["tp", *(name for name in layout.rank_order.split("-") if name != "tp")]),
    }
    return Fault(code="tp_leaves_domain", field="layout.rank_order", value=layout.rank_order, values=values)


def _kv_copies(model: ModelSpec, framework: str, layout: Layout) -> Fault | None:
    copies = kv_weight_copies(model, framework, layout.tp)
    if copies == 1:
        return None
    values = {"kv_heads": model.num_kv_heads, "copies": copies}
    return Fault(code="kv_weights_copied", field="layout.tp", value=layout.tp, values=values)


def _padded_vocabulary(model: ModelSpec, framework: str, layout: Layout) -> Fault | None:
    padded = int(padded_vocab_size(model.vocab_size, layout.tp, framework))
    if padded == model.vocab_size:
        return None
    values = {"padded": padded, "added": padded - model.vocab_size, "framework": framework}
    return Fault(code="vocabulary_padded", field="model.vocab_size", value=model.vocab_size, values=values)


def _two_interleaved_stages(layout: Layout) -> Fault | None:
    if layout.schedule != "interleaved" or layout.pp != 2:
        return None
    return Fault(code="interleaving_needs_overlap", field="layout.pp", value=layout.pp)


def _order_is_fixed(layout: Layout) -> Fault | None:
    if layout.ep == 1 or layout.pp == 1 or layout.expert_dp == layout.dp:
        return None
    values = {"ep": layout.ep, "dp": layout.dp, "expert_dp": layout.expert_dp}
    return Fault(code="order_fixed_by_experts", field="layout.rank_order", value=layout.rank_order, values=values)


def _few_microbatches(training: Training, layout: Layout) -> Fault | None:
    """A pipeline that idles more than half of its working time: (p − 1) / (v·m) > 1/2 (Narayanan 2021, section 2.2).
    Split backwards fill most of that time."""
    if SCHEDULE_FACTS[layout.schedule].splits_backward:
        return None
    p, v, m = layout.pp, layout.num_model_chunks, layout.num_microbatches(training.global_batch_size)
    if 2 * (p - 1) <= v * m:
        return None
    values = {"microbatches": m, "stages": p, "chunks": v}
    return Fault(
        code="few_microbatches", field="training.global_batch_size", value=training.global_batch_size, values=values
    )


def _shards_nothing(layout: Layout) -> Fault | None:
    if layout.zero_stage == 0 or layout.dp == 1 or layout.dp_shard_size > 1:
        return None
    return Fault(code="shards_nothing", field="layout.dp_shard_size", value=1, values={"dp": layout.dp})
