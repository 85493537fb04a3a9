"""A view: what a person looks at, as query parameters and as the tables of the Job that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tpdpdash.faults import Fault
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER
from tpdpdash.ui import uploads
from tpdpdash.ui.training_code import keys_of_code

PIN_NAMES = (
    "tp", "cp", "pp", "dp", "ep", "zero_stage", "micro_batch_size", "num_model_chunks", "recompute",
    "offload_optimizer",
)  # fmt: skip
"""Keys of [layout] that a view can pin."""
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The view's fields; every name is also its query parameter."""

    model: str = "llama-3-8b"
    """A preset's name, or of an upload "config:<content hash>", "table:<content hash>"."""
    device: str = "H100-SXM5-80GB"
    """A catalogue name, or "local"."""
    nodes: int | None = 1
    """Machines; None with "local" = as detected."""
    gpus: int | None = 8
    """Devices in each machine; None = as the catalogue or the detection says."""
    network: float | None = None
    """Network bandwidth per device in GB/s, where it is not the catalogue's."""
    price: float | None = None
    """Dollars per device and hour."""
    failures: float = 0.0
    """Failures that stop the job, for each device and day."""
    restart: float = 0.0
    """Seconds from a failure to the next step."""
    checkpoint: float = 0.0
    """Seconds for which a checkpoint stops training."""
    every: int | None = None
    """Steps between two checkpoints; None = what loses least."""
    seq: int = 8192
    """Tokens in a sequence."""
    batch: int = 128
    """Sequences in a step."""
    tokens: float | None = 3e11
    """Tokens to train on."""
    steps: int | None = None
    """Optimizer steps of a run."""
    precision: str = "bf16"
    """training.precision."""
    framework: str = "megatron-core"
    """training.framework."""
    training: str = ""
    """Further keys of [training], as `training_code` writes them."""
    tp: int | None = None
    """Pinned degree; None = free. So too the next ones."""
    cp: int | None = None
    """Pinned."""
    pp: int | None = None
    """Pinned."""
    dp: int | None = None
    """Pinned."""
    ep: int | None = None
    """Pinned."""
    zero_stage: int | None = None
    """Pinned."""
    micro_batch_size: int | None = None
    """Pinned."""
    num_model_chunks: int | None = None
    """Pinned."""
    recompute: str | None = None
    """Pinned."""
    offload_optimizer: bool | None = None
    """Pinned."""
    layout: str = ""
    """The chosen layout as `layout_code` writes it: tp4-pp2-dp8-v2-full; empty = none chosen."""
    order: str = DEFAULT_RANK_ORDER
    """The chosen layout's rank order."""
    rank: int = 0
    """The chosen rank."""

    def pins(self) -> dict[str, object]:
        """The pinned layout keys, as in a Job file."""
        return {name: value for name in PIN_NAMES if (value := getattr(self, name)) is not None}


def _read(kind: str, text: str) -> Any:
    """One query parameter as its field's type. ValueError when it is not of that type."""
    if kind.startswith("int"):
        return int(text)
    if kind.startswith("float"):
        return float(text)
    if kind.startswith("bool"):
        if text not in _FLAGS:
            raise ValueError(text)
        return _FLAGS[text]
    return text


def _written(value: object) -> str:
    """A field as it stands in the address."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def from_params(params: Mapping[str, str]) -> tuple[JobState, tuple[Fault, ...]]:
    """A view from query parameters, and the parameters that cannot be read: those have their default."""
    values: dict[str, Any] = {}
    faults = []
    for field in fields(JobState):
        text = params.get(field.name)
        if text is None:
            continue
        try:
            values[field.name] = None if text == "auto" and "None" in str(field.type) else _read(str(field.type), text)
        except ValueError:
            used = {"used": "auto" if field.default is None else field.default}
            faults.append(Fault(code="address_not_read", field=field.name, value=text, values=used))
    return JobState(**values), tuple(faults)


def to_params(view: JobState) -> dict[str, str]:
    """The parameters that stand in the address: the model always, the others where they differ from the default."""
    default = JobState()
    shown = {f.name: getattr(view, f.name) for f in fields(view)}
    return {
        name: _written(value) for name, value in shown.items() if name == "model" or value != getattr(default, name)
    }


def tables(view: JobState, layout: Mapping[str, object]) -> dict[str, object]:
    """The view as the tables of a Job file."""
    training = keys_of_code(view.training) | {
        "seq_len": view.seq,
        "global_batch_size": view.batch,
        "tokens": view.tokens,
        "steps": view.steps,
        "checkpoint_s": view.checkpoint or None,
        "checkpoint_interval_steps": view.every,
        "precision": view.precision,
        "framework": view.framework,
    }
    return {
        "model": uploads.model_table(view.model),
        "cluster": cluster_table(view),
        "training": _given(training),
        "layout": dict(layout),
    }


def cluster_table(view: JobState) -> dict[str, object]:
    """The [cluster] table of the view."""
    table = {
        "device": view.device,
        "nodes": view.nodes,
        "devices_per_node": view.gpus,
        "price_per_device_hour": view.price,
        "failures_per_device_day": view.failures or None,
        "restart_s": view.restart or None,
        "links": None if view.network is None else {"network_gb_per_s": view.network},
    }
    return _given(table)


def _given(table: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in table.items() if value is not None}
