"""A Job file as a view: what it says of each input of the screens, and what they have no input for."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.job import Job, decode_job, parse_job
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER
from tpdpdash.ui import services, state, training_inputs, uploads
from tpdpdash.ui.job_state import PIN_NAMES, JobState
from tpdpdash.ui.training_code import training_code


def view_of_job(data: bytes, name: str) -> tuple[JobState, tuple[Fault, ...]]:
    """The view of an uploaded Job file, and the keys that it says nothing of. Raises InvalidInputError: as for a Job
    file, and for one that needs more than itself (a config.json beside it) or than the screens have inputs for."""
    text = decode_job(data, name)
    _refuse_paths(text)
    job = parse_job(text, Path(), services.detection)
    tables = tomllib.loads(text)
    cluster = tables.get("cluster", {})
    if not isinstance(cluster.get("device", "local"), str):
        raise InvalidInputError([Fault(code="upload_own_figures", field="cluster.device")])
    view = _view(job, tables, cluster)
    return view, _left_out(job, state.job(view))


def _refuse_paths(text: str) -> None:
    """A path in an upload means nothing here, and is not to be read: before anything else looks at it."""
    try:
        model = tomllib.loads(text).get("model", {})
    except (ValueError, RecursionError):
        return  # told by the reader of Job files
    if isinstance(model, Mapping) and "config" in model:
        raise InvalidInputError([Fault(code="upload_names_file", field="model.config", value=model["config"])])


def _view(job: Job, tables: Mapping[str, Any], cluster: Mapping[str, Any]) -> JobState:
    is_local = cluster.get("device", "local") == "local"
    model, training = tables["model"], job.training
    return JobState(
        model=model["preset"] if set(model) == {"preset"} else uploads.keep_table(model),
        device=cluster.get("device", "local"),
        nodes=cluster.get("nodes") if is_local else job.cluster.nodes,
        gpus=cluster.get("devices_per_node") if is_local else job.cluster.devices_per_node,
        network=cluster.get("links", {}).get("network_gb_per_s"),
        price=job.cluster.price_per_device_hour,
        failures=job.cluster.failures_per_device_day,
        restart=job.cluster.restart_s,
        checkpoint=training.checkpoint_s,
        every=training.checkpoint_interval_steps,
        seq=training.seq_len,
        batch=training.global_batch_size,
        tokens=training.tokens,
        steps=training.steps,
        precision=training.precision,
        framework=training.framework,
        training=training_code(training_inputs.set_keys(training)),
        **{name: getattr(job.pins, name) for name in PIN_NAMES},
        order=job.pins.rank_order or DEFAULT_RANK_ORDER,
    )


def _left_out(asked: Job, taken: Job) -> tuple[Fault, ...]:
    """Keys of the file's tables that are others in the view's job."""
    pairs = (
        ("training", asdict(asked.training), asdict(taken.training)),
        ("cluster.links", asked.cluster.asked_links, taken.cluster.asked_links),
    )
    differing = [
        (f"{table}.{key}", value, view.get(key))
        for table, file, view in pairs
        for key, value in file.items()
        if value != view.get(key)
    ]
    layout, view_layout = _whole_layout(asked), _whole_layout(taken)
    differing += [
        (f"layout.{key}", value, view_layout.get(key))
        for key, value in asked.pins.given().items()
        if key in layout and key not in PIN_NAMES and key != "rank_order" and layout[key] != view_layout.get(key)
    ]
    return tuple(
        Fault(code="upload_key_left_out", field=field, value=value, values={"used": "free" if now is None else now})
        for field, value, now in differing
    )


def _whole_layout(job: Job) -> dict[str, Any]:
    """Every key of a job's layout; of one that is not possible, or not yet chosen, those that were given."""
    try:
        return asdict(job.layout())
    except InvalidInputError:
        return job.pins.given()
