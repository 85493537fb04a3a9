"""The tables of a Job file → the facts that they name, with every fault. `job` puts them together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tpdpdash.cluster.describe import cluster_from_fields
from tpdpdash.cluster.detection import Detection
from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.fields import Limits, nearest
from tpdpdash.layout.batch_rules import MAX_GLOBAL_BATCH_SIZE, MAX_SEQ_LEN
from tpdpdash.layout.frameworks import known_framework
from tpdpdash.layout.rules import DEGREES
from tpdpdash.layout.shard_rules import ZERO_STAGES
from tpdpdash.layout.world import MAX_DEGREE
from tpdpdash.model.inline import spec_from_fields
from tpdpdash.model.names import check_name
from tpdpdash.model.presets import preset
from tpdpdash.model.resolve import resolve_model
from tpdpdash.model.rules import LIMITS as MODEL_LIMITS
from tpdpdash.model.rules import REQUIRED
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import FRAMEWORKS, LORA_TARGETS, RECOMPUTE_MODULES
from tpdpdash.units import ceil_div

Table = Mapping[str, object]
TABLES = ("model", "cluster", "training", "layout")

TRAINING_LIMITS: Limits = {
    "seq_len": (1, MAX_SEQ_LEN),
    "global_batch_size": (1, MAX_GLOBAL_BATCH_SIZE),
    "steps": (1, 1_000_000_000),
    "tokens": (1, 1e18),
    "checkpoint_s": (0, 86_400),
    "checkpoint_interval_steps": (1, 1_000_000_000),
    "dropout": (0, 0.999),
    "expert_load_cv": (0, 10),
    "lora_rank": (1, 65_536),
    "mtp_num_layers": MODEL_LIMITS["mtp_num_layers"],
    "packed_seq_len": (1, MAX_SEQ_LEN),
    "optimizer_offload_fraction": (0, 1),
}
LAYOUT_LIMITS: Limits = {
    **dict.fromkeys((*DEGREES, "dp_shard_size"), (1, MAX_DEGREE)),
    **dict.fromkeys(("num_model_chunks", "microbatch_group_size_per_vp_stage"), (1, 100_000)),
    **dict.fromkeys(
        ("layers_per_stage", "first_stage_layers", "last_stage_layers", "recompute_num_layers"), (1, 10_000)
    ),
    "micro_batch_size": (1, 1_000_000),
    "zero_stage": (ZERO_STAGES[0], ZERO_STAGES[-1]),
}


def unknown_table(key: str) -> Fault:
    """A key at the top of the document that is no table of a Job."""
    return Fault(code="unknown_key", field=key, value=None, values={"nearest": nearest(key, (*TABLES, "name"))})


def table_of(document: Table, name: str) -> Table:
    """One table of the document; an absent one, and what is no table, is empty."""
    table = document.get(name, {})
    return table if isinstance(table, Mapping) else {}


def not_a_table(document: Table, name: str) -> list[Fault]:
    """The fault of a table that is something else; none where it is one, or absent."""
    table = document.get(name, {})
    return [] if isinstance(table, Mapping) else [Fault(code="not_table", field=name, value=table)]


def read_name(document: Table, model: ModelSpec | None, faults: list[Fault]) -> str:
    """The job's name, which becomes a folder's; without one, the model's name with other characters left out."""
    if "name" not in document:
        return re.sub(r"[^\w.-]+", "-", model.name if model else "", flags=re.ASCII)[:60].strip("-.") or "job"
    try:
        return check_name(document["name"], "name")
    except InvalidInputError as wrong:
        faults += wrong.faults
        return ""


def read_model(table: Table, base_dir: Path) -> tuple[ModelSpec | None, list[Fault], tuple[Fault, ...]]:
    """[model]: a preset or a config, with changes of single fields; or all fields inline."""
    if not table:
        return None, [Fault(code="no_model", field="model", values={"needed": REQUIRED})], ()
    named = [key for key in ("preset", "config") if key in table]
    changes = {key: value for key, value in table.items() if key not in ("preset", "config")}
    if len(named) > 1:
        return None, [Fault(code="conflicting_keys", field="model.preset", values={"other": "model.config"})], ()
    if not named:
        return *spec_from_fields(changes), ()
    key, value = named[0], table[named[0]]
    if not isinstance(value, str):
        return None, [Fault(code="not_text", field=f"model.{key}", value=value)], ()
    notices: tuple[Fault, ...] = ()
    try:
        if key == "preset":
            spec = preset(value)
        else:
            read = resolve_model(value, base_dir=base_dir, field="model.config")
            spec, notices = read.spec, read.notices
    except InvalidInputError as wrong:
        return None, list(wrong.faults), ()
    if changes:
        changed, faults = spec_from_fields({**_kept(spec), **changes})
        return changed, faults, notices
    return spec, [], notices


def _kept(spec: ModelSpec) -> dict[str, object]:
    """The fields of a model that stay when others are changed: all but those that followed from others, which follow
    again (the width of a head, and KV heads where every head has its own)."""
    fields_of = {name: value for name, value in asdict(spec).items() if name != "source"}
    heads = spec.num_attention_heads
    followed = {"head_dim": spec.head_dim * heads == spec.hidden_size, "num_kv_heads": spec.num_kv_heads == heads}
    return {name: value for name, value in fields_of.items() if spec.is_mla or not followed.get(name, False)}


def read_cluster(
    table: Table, pins: Mapping[str, Any], detect: Callable[[], Detection]
) -> tuple[ClusterSpec | None, bool, list[Fault], list[Fault]]:
    """[cluster]; where nodes is absent, the layout's dp decides the size (or, on this machine's CPU, the layout)."""
    sized = "nodes" in table or "devices_per_node" in table
    is_local = table.get("device", "local") == "local"
    if is_local or "nodes" in table or "dp" not in pins:
        spec, faults, notices = cluster_from_fields(table, detect)
        follows = spec is not None and is_local and spec.device.is_cpu and not sized
        return spec, follows, faults, notices
    one_node, faults, notices = cluster_from_fields({**table, "nodes": 1}, detect)
    if one_node is None:
        return None, False, faults, notices
    world_size = pins["dp"] * pins.get("tp", 1) * pins.get("cp", 1) * pins.get("pp", 1)
    size = _size_of_layout(world_size, one_node.devices_per_node, "devices_per_node" in table)
    spec, faults, notices = cluster_from_fields({**table, **size}, detect)
    usual = one_node.devices_per_node
    if size["nodes"] > 1 and size["devices_per_node"] != usual:
        shown = f"{size['devices_per_node']}, for nodes of {usual} do not make {world_size} ranks"
        notices = [*notices, Fault(code="assumed_figures", field="cluster.devices_per_node", value=shown)]
    return spec, False, faults, notices


def _size_of_layout(world_size: int, devices_per_node: int, node_is_given: bool) -> dict[str, int]:
    """The nodes that a layout needs. Where a node's size was not given: the largest that makes exactly the layout's
    world of equal nodes, so that a layout smaller than a node takes a part of one."""
    if not node_is_given:
        devices_per_node = max(n for n in range(1, devices_per_node + 1) if world_size % n == 0)
    return {"nodes": ceil_div(world_size, devices_per_node), "devices_per_node": devices_per_node}


def training_name_faults(training: Mapping[str, Any]) -> list[Fault]:
    """Names of linear layers or modules that no model has: they would be priced as none at all."""
    return [
        Fault(
            code="unknown_choice",
            field=f"training.{field}",
            value=name,
            values={"choices": known, "nearest": nearest(name, known)},
        )
        for field, known in (("lora_targets", LORA_TARGETS), ("recompute_modules", RECOMPUTE_MODULES))
        for name in training.get(field, ())
        if name not in known
    ]


def framework_notice(training: Mapping[str, Any]) -> tuple[Fault, ...]:
    """A framework that we do not know is treated as the nearest: said, not hidden."""
    framework = training.get("framework")
    if framework is None or framework in FRAMEWORKS:
        return ()
    values = {"nearest": known_framework(framework)}
    return (Fault(code="unknown_framework", field="training.framework", value=framework, values=values),)
