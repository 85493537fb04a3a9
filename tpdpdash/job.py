"""The Job: the one document (model + cluster + training + layout), as TOML, as tables, and as the rooms use it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tpdpdash.cluster.describe import cluster_to_fields
from tpdpdash.cluster.detection import Detection
from tpdpdash.cluster.local import with_ranks
from tpdpdash.cluster.nvml import detect_devices
from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.fields import read_fields
from tpdpdash.job_tables import (
    LAYOUT_LIMITS,
    TABLES,
    TRAINING_LIMITS,
    Table,
    framework_notice,
    not_a_table,
    read_cluster,
    read_model,
    read_name,
    table_of,
    training_name_faults,
    unknown_table,
)
from tpdpdash.layout.layout import Layout, LayoutPins
from tpdpdash.layout.resolve import resolve_layout
from tpdpdash.model.presets import preset
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training
from tpdpdash.units import MIB

MAX_JOB_BYTES = MIB


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
        """The same job with every layout key fixed (docs/reference.md's defaults), on a cluster of the layout's size.

        Raises InvalidInputError with every fault of the layout.
        """
        layout = self.layout()
        return replace(self, pins=pins_of(layout), cluster=self.cluster_of(layout), world_follows_layout=False)

    def cluster_of(self, layout: Layout) -> ClusterSpec:
        """The cluster on which a layout of this job runs: the job's, or this machine with as many ranks."""
        return with_ranks(self.cluster, layout.world_size) if self.world_follows_layout else self.cluster

    def layout(self) -> Layout:
        """The one layout that this job describes. Raises InvalidInputError with every fault of it."""
        world_size = None if self.world_follows_layout else self.cluster.world_size
        return resolve_layout(self.pins, self.model, self.training, world_size, self.cluster)


DEFAULT_STEPS = 20
"""Steps of a run whose job states none."""


def as_builtin(job: Job) -> Job:
    """The job as the built-in worker runs it: under that framework's rules and habits, for a stated number of steps."""
    steps = DEFAULT_STEPS if job.training.steps is None else job.training.steps
    return replace(job, training=replace(job.training, framework="builtin", steps=steps))


def pins_of(layout: Layout) -> LayoutPins:
    """Pins that fix every key of a layout."""
    return LayoutPins(**{field.name: getattr(layout, field.name) for field in fields(layout)})


def detect_here() -> Detection:
    """The devices of this machine, as the environment shows them (the edge where it is read)."""
    import os

    from tpdpdash.cluster.measured import config_path, read_measured

    measured, faults = read_measured(config_path())
    return replace(detect_devices(os.environ), measured=measured, measured_faults=faults)


def job_from_tables(document: Table, base_dir: Path = Path(), detect: Callable[[], Detection] = detect_here) -> Job:
    """A Job from the tables of its file. Raises InvalidInputError with every fault of every table.

    `base_dir`: where a relative model.config is looked up; `detect`: finds this machine's devices.
    """
    faults = [unknown_table(key) for key in document if key not in (*TABLES, "name")]
    tables = {name: table_of(document, name) for name in TABLES}
    pins, layout_faults = read_fields(LayoutPins, tables["layout"], "layout", LAYOUT_LIMITS)
    training, training_faults = read_fields(Training, tables["training"], "training", TRAINING_LIMITS)
    training_faults += training_name_faults(training)
    model, model_faults, notices = read_model(tables["model"], base_dir)
    cluster, follows, cluster_faults, cluster_notices = read_cluster(tables["cluster"], pins, detect)
    found = {"model": model_faults, "cluster": cluster_faults, "training": training_faults, "layout": layout_faults}
    for name, of_table in found.items():  # what is no table is told once, not as a table that lacks its keys
        faults += not_a_table(document, name) or of_table
    name = read_name(document, model, faults)
    if faults or model is None or cluster is None:
        raise InvalidInputError(faults)
    return Job(
        name=name,
        model=model,
        cluster=cluster,
        training=Training(**training),
        pins=LayoutPins(**pins),
        world_follows_layout=follows,
        notices=(*notices, *cluster_notices, *framework_notice(training)),
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
    return decode_job(data, str(path))


def decode_job(data: bytes, name: str) -> str:
    """The text of a Job file's bytes. Raises InvalidInputError when they are too many or not UTF-8."""
    if len(data) > MAX_JOB_BYTES:
        sizes = {"limit": MAX_JOB_BYTES, "size": f"more than {MAX_JOB_BYTES}"}
        raise InvalidInputError([Fault(code="file_too_large", field="job", value=name, values=sizes)])
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
