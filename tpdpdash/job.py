"""The Job: the one document (model + cluster + training + layout), as TOML, as tables, and as the rooms use it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tpdpdash.cluster.describe import cluster_from_fields, cluster_to_fields
from tpdpdash.cluster.detection import Detection
from tpdpdash.cluster.local import with_ranks
from tpdpdash.cluster.nvml import detect_devices
from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.fields import Limits, nearest, read_fields
from tpdpdash.layout.layout import Layout, LayoutPins
from tpdpdash.layout.resolve import resolve_layout
from tpdpdash.model.inline import spec_from_fields
from tpdpdash.model.names import check_name
from tpdpdash.model.presets import preset
from tpdpdash.model.resolve import resolve_model
from tpdpdash.model.rules import REQUIRED
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import FRAMEWORKS, Training
from tpdpdash.units import MIB, ceil_div

Table = Mapping[str, object]
MAX_JOB_BYTES = MIB
MAX_DEGREE = 1_000_000
TABLES = ("model", "cluster", "training", "layout")

TRAINING_LIMITS: Limits = {
    "seq_len": (1, 16_777_216),
    "global_batch_size": (1, 10_000_000),
    "steps": (1, 1_000_000_000),
    "tokens": (1, 1e18),
    "dropout": (0, 0.999),
    "lora_rank": (1, 65_536),
}
LAYOUT_LIMITS: Limits = {
    **dict.fromkeys(("tp", "cp", "pp", "dp", "ep", "etp", "dp_shard_size"), (1, MAX_DEGREE)),
    **dict.fromkeys(("num_model_chunks", "microbatch_group_size_per_vp_stage"), (1, 100_000)),
    **dict.fromkeys(
        ("layers_per_stage", "first_stage_layers", "last_stage_layers", "recompute_num_layers"), (1, 10_000)
    ),
    "micro_batch_size": (1, 1_000_000),
    "zero_stage": (0, 3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a person asks for. Complete but for the layout, of which `pins` holds what was fixed."""

    name: str
    """Short name for lists and run ids: the model's name unless the file says otherwise."""
    model: ModelSpec
    """What is trained."""
    cluster: ClusterSpec
    """What it is trained on."""
    training: Training
    """What a step is."""
    pins: LayoutPins
    """The layout keys that were given; `plan` searches the others."""
    world_follows_layout: bool = False
    """The cluster is this machine's CPU and no size was given: the world is what the layout multiplies to."""
    notices: tuple[Fault, ...] = ()
    """What the person should know about how the input was read (an unknown framework, mixed GPUs)."""

    def resolved(self) -> Job:
        """The same job with every layout key fixed by design.md's defaults, on a cluster of the layout's size.

        Raises InvalidInputError with every fault of the layout.
        """
        layout = self.layout()
        cluster = with_ranks(self.cluster, layout.world_size) if self.world_follows_layout else self.cluster
        return replace(self, pins=pins_of(layout), cluster=cluster, world_follows_layout=False)

    def layout(self) -> Layout:
        """The one layout that this job describes. Raises InvalidInputError with every fault of it."""
        world_size = None if self.world_follows_layout else self.cluster.world_size
        return resolve_layout(self.pins, self.model, self.training, world_size, self.cluster)


def pins_of(layout: Layout) -> LayoutPins:
    """Pins that fix every key of a layout."""
    return LayoutPins(**{field.name: getattr(layout, field.name) for field in fields(layout)})


def detect_here() -> Detection:
    """The devices of this machine, as the environment shows them (the edge where it is read)."""
    import os

    return detect_devices(os.environ)


def job_from_tables(document: Table, base_dir: Path = Path(), detect: Callable[[], Detection] = detect_here) -> Job:
    """A Job from the tables of its file. Raises InvalidInputError with every fault of every table.

    `base_dir`: where a relative model.config is looked up; `detect`: finds this machine's devices.
    """
    faults = [_unknown_table(key) for key in document if key not in (*TABLES, "name")]
    tables = {name: _table(document, name) for name in TABLES}
    pins, layout_faults = read_fields(LayoutPins, tables["layout"], "layout", LAYOUT_LIMITS)
    training, training_faults = read_fields(Training, tables["training"], "training", TRAINING_LIMITS)
    model, model_faults, notices = _read_model(tables["model"], base_dir)
    cluster, follows, cluster_faults, cluster_notices = _read_cluster(tables["cluster"], pins, detect)
    found = {"model": model_faults, "cluster": cluster_faults, "training": training_faults, "layout": layout_faults}
    for name, of_table in found.items():  # what is no table is told once, not as a table that lacks its keys
        faults += _not_a_table(document, name) or of_table
    name = _read_name(document, model, faults)
    if faults or model is None or cluster is None:
        raise InvalidInputError(faults)
    return Job(
        name=name,
        model=model,
        cluster=cluster,
        training=Training(**training),
        pins=LayoutPins(**pins),
        world_follows_layout=follows,
        notices=(*notices, *cluster_notices, *_framework_notice(training)),
    )


def parse_job(text: str, base_dir: Path = Path(), detect: Callable[[], Detection] = detect_here) -> Job:
    """A Job from the text of its TOML file. Raises InvalidInputError."""
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise InvalidInputError([Fault(code="nested_too_deep", field="job")]) from None
    except ValueError as wrong:  # TOMLDecodeError is one; so is a number of too many digits
        raise InvalidInputError([Fault(code="not_toml", field="job", values={"reason": str(wrong)})]) from wrong
    return job_from_tables(document, base_dir, detect)


def read_job(path: Path, detect: Callable[[], Detection] = detect_here) -> Job:
    """A Job from its file. Raises InvalidInputError, also when the file is missing, too large or not UTF-8."""
    return parse_job(read_job_text(path), path.parent, detect)


def read_job_text(path: Path) -> str:
    """The text of a Job file. Raises InvalidInputError.

    No more than the limit is read, also of what has no size: a pipe, a device that never ends.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JOB_BYTES + 1)
    except FileNotFoundError as missing:
        raise InvalidInputError([Fault(code="file_missing", field="job", value=str(path))]) from missing
    except OSError as wrong:
        reason = {"reason": wrong.strerror or "unknown"}
        raise InvalidInputError([Fault(code="file_unreadable", field="job", value=str(path), values=reason)]) from wrong
    if len(data) > MAX_JOB_BYTES:
        sizes = {"limit": MAX_JOB_BYTES, "size": f"more than {MAX_JOB_BYTES}"}
        raise InvalidInputError([Fault(code="file_too_large", field="job", value=str(path), values=sizes)])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        values = {"encoding": "UTF-8", "position": wrong.start}
        raise InvalidInputError([Fault(code="not_utf8", field="job", values=values)]) from wrong


def job_tables(job: Job) -> dict[str, dict[str, Any]]:
    """The tables that `job_from_tables` reads back as the same job; defaults are left out."""
    cluster = cluster_to_fields(job.cluster)
    if job.world_follows_layout:
        cluster = {key: value for key, value in cluster.items() if key not in ("nodes", "devices_per_node")}
    return {
        "model": _model_table(job.model),
        "cluster": cluster,
        "training": _not_default(job.training),
        "layout": job.pins.given(),
    }


def write_job(job: Job) -> str:
    """The TOML text of a job."""
    import tomli_w

    return tomli_w.dumps({"name": job.name, **job_tables(job)})


# ------------------------------------------------------------------------------------------- tables


def _unknown_table(key: str) -> Fault:
    return Fault(code="unknown_key", field=key, value=None, values={"nearest": nearest(key, (*TABLES, "name"))})


def _read_name(document: Table, model: ModelSpec | None, faults: list[Fault]) -> str:
    """The job's name, which becomes a folder's; without one, the model's name with other characters left out."""
    if "name" not in document:
        return re.sub(r"[^\w.-]+", "-", model.name if model else "", flags=re.ASCII)[:60].strip("-.") or "job"
    try:
        return check_name(document["name"], "name")
    except InvalidInputError as wrong:
        faults += wrong.faults
        return ""


def _table(document: Table, name: str) -> Table:
    """One table of the document; an absent one, and what is no table, is empty."""
    table = document.get(name, {})
    return table if isinstance(table, Mapping) else {}


def _not_a_table(document: Table, name: str) -> list[Fault]:
    table = document.get(name, {})
    return [] if isinstance(table, Mapping) else [Fault(code="not_table", field=name, value=table)]


def _read_model(table: Table, base_dir: Path) -> tuple[ModelSpec | None, list[Fault], tuple[Fault, ...]]:
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


def _read_cluster(
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


def _framework_notice(training: Mapping[str, Any]) -> tuple[Fault, ...]:
    """A framework that we do not know is treated as the nearest: said, not hidden."""
    framework = training.get("framework")
    if framework is None or framework in FRAMEWORKS:
        return ()
    closest = nearest(framework, FRAMEWORKS) or "megatron-core"
    values = {"nearest": closest}
    return (Fault(code="unknown_framework", field="training.framework", value=framework, values=values),)


def _not_default(fact: Any) -> dict[str, Any]:
    """The fields of a fact that differ from their defaults (required ones always)."""
    values = {f.name: (getattr(fact, f.name), f.default) for f in fields(fact)}
    return {name: value for name, (value, default) in values.items() if default is MISSING or value != default}


def _model_table(model: ModelSpec) -> dict[str, Any]:
    """A preset by its name as long as it is unchanged; anything else inline."""
    kind, _, name = model.source.partition(":")
    if kind == "preset" and preset(name) == model:
        return {"preset": name}
    return _not_default(model)
