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
    tables = {name: _table(document, name, faults) for name in TABLES}
    pins, layout_faults = read_fields(LayoutPins, tables["layout"], "layout", LAYOUT_LIMITS)
    training, training_faults = read_fields(Training, tables["training"], "training", TRAINING_LIMITS)
    model, model_faults, notices = _read_model(tables["model"], base_dir)
    cluster, follows, cluster_faults, cluster_notices = _read_cluster(tables["cluster"], pins, detect)
    faults += [*model_faults, *cluster_faults, *training_faults, *layout_faults]
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
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as wrong:
        raise InvalidInputError([Fault(code="not_toml", field="job", values={"reason": str(wrong)})]) from wrong
    return job_from_tables(document, base_dir, detect)


def read_job(path: Path, detect: Callable[[], Detection] = detect_here) -> Job:
    """A Job from its file. Raises InvalidInputError, also when the file is missing, too large or not UTF-8."""
    return parse_job(read_job_text(path), path.parent, detect)


def read_job_text(path: Path) -> str:
    """The text of a Job file, bounded in size. Raises InvalidInputError."""
    try:
        if path.stat().st_size > MAX_JOB_BYTES:
            sizes = {"size": path.stat().st_size, "limit": MAX_JOB_BYTES}
            raise InvalidInputError([Fault(code="file_too_large", field="job", value=str(path), values=sizes)])
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as missing:
        raise InvalidInputError([Fault(code="file_missing", field="job", value=str(path))]) from missing
    except (OSError, UnicodeDecodeError) as wrong:
        reason = {"reason": str(wrong)}
        raise InvalidInputError([Fault(code="file_unreadable", field="job", value=str(path), values=reason)]) from wrong


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


def _table(document: Table, name: str, faults: list[Fault]) -> Table:
    """One table of the document; an absent one is empty."""
    table = document.get(name, {})
    if isinstance(table, Mapping):
        return table
    faults.append(Fault(code="not_table", field=name, value=table))
    return {}


def _read_model(table: Table, base_dir: Path) -> tuple[ModelSpec | None, list[Fault], tuple[Fault, ...]]:
    """[model]: a preset or a config, with changes of single fields; or all fields inline."""
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
            read = resolve_model(value, base_dir=base_dir)
            spec, notices = read.spec, read.notices
    except InvalidInputError as wrong:
        return None, list(wrong.faults), ()
    if changes:
        unchanged = {name: value for name, value in asdict(spec).items() if name != "source"}
        changed, faults = spec_from_fields({**unchanged, **changes})
        return changed, faults, notices
    return spec, [], notices


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
    spec, faults, notices = cluster_from_fields({**table, "nodes": 1}, detect)
    if spec is None:
        return None, False, faults, notices
    world_size = pins["dp"] * pins.get("tp", 1) * pins.get("cp", 1) * pins.get("pp", 1)
    return *_sized_by_layout(spec, world_size, "devices_per_node" in table), faults, notices


def _sized_by_layout(spec: ClusterSpec, world_size: int, node_is_given: bool) -> tuple[ClusterSpec, bool]:
    """The cluster with as many nodes as the layout needs; a layout smaller than a node takes a part of one."""
    if world_size < spec.devices_per_node and not node_is_given:
        return replace(spec, devices_per_node=world_size), False
    return replace(spec, nodes=ceil_div(world_size, spec.devices_per_node)), False


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
