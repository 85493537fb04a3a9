"""Answers about facts: devices, models, groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tpdpdash import units
from tpdpdash.model.counts import (
    TRAINING_FLOPS_PER_FORWARD_FLOP,
    forward_flops_per_token,
    parameter_counts,
    prediction_parameters,
)
from tpdpdash.report.lines import table
from tpdpdash.text import fault_text, t

if TYPE_CHECKING:
    from tpdpdash.cluster.detection import DetectedDevice, Detection
    from tpdpdash.model.spec import ModelSpec

UNSUPPORTED = frozenset({"unknown_architecture", "unsupported_value", "unsupported_layers", "nested_config"})
"""Faults of a config that is sound, but of no model that we can count."""
UNSUPPORTED_MODEL = {"supported": False, "parameters": None, "embedding_parameters": None, "active_parameters": None}
REFERENCE_SEQ_LEN = 2048
"""Sequence length at which `model` states FLOPs per token: attention's share depends on it."""


def jsonable(value: Any) -> Any:
    """Faults and tuples inside a fact's dict as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        return [jsonable(entry) for entry in value]
    return value


def detection_document(found: Detection) -> dict[str, Any]:
    """`devices --json`: every field of every device, null where unknown."""
    plain = replace(found, problem=None, devices=tuple(replace(d, problem=None) for d in found.devices))
    document: dict[str, Any] = jsonable(asdict(plain))
    document["problem"] = fault_text(found.problem) if found.problem else None
    for entry, device in zip(document["devices"], found.devices, strict=True):
        entry["problem"] = fault_text(device.problem) if device.problem else None
    return document


def detection_lines(found: Detection) -> list[str]:
    """What is here, in words."""
    host = found.host
    here = t("CPU: {cores} cores, {memory} of memory", cores=host.cores, memory=units.format_memory(host.total_bytes))
    why = [fault_text(found.problem)] if found.problem else []
    if not found.devices:
        return [*why, here]
    head = [t("GPU"), t("name"), t("memory used"), t("load"), t("power"), t("temperature"), t("NVLinks")]
    return [*why, *table([head, *map(_device_row, found.devices)]), here]


def _device_row(device: DetectedDevice) -> list[str]:
    if device.problem is not None:
        return [str(device.index), fault_text(device.problem), "", "", "", "", ""]
    unknown = t("unknown")
    watts = [unknown if w is None else f"{w:.0f} W" for w in (device.power_w, device.power_limit_w)]
    return [
        str(device.index),
        device.name or unknown,
        units.format_memory_of(device.used_bytes, device.total_bytes),
        units.format_share(device.utilisation_frac),
        t("{used} of {limit}", used=watts[0], limit=watts[1]),
        units.format_temperature(device.temperature_c),
        unknown if device.nvlink_links is None else str(device.nvlink_links),
    ]


def model_document(spec: ModelSpec) -> dict[str, Any]:
    """`model --json`: parameters before any padding, FLOPs per trained token at REFERENCE_SEQ_LEN."""
    counts = parameter_counts(spec)
    flops = forward_flops_per_token(replace(spec, mtp_num_layers=0), REFERENCE_SEQ_LEN, causal=True)
    return {
        "name": spec.name,
        "supported": True,
        "parameters": counts.total,
        "embedding_parameters": counts.embedding,
        "active_parameters": counts.active,
        "prediction_parameters": spec.mtp_num_layers * prediction_parameters(spec).total,
        "num_layers": spec.num_layers,
        "flops_per_token": TRAINING_FLOPS_PER_FORWARD_FLOP * flops.total,
        "flops_seq_len": REFERENCE_SEQ_LEN,
    }


def model_lines(spec: ModelSpec) -> list[str]:
    """A model's size, in words."""
    facts = model_document(spec)
    rows = [
        (t("parameters"), f"{facts['parameters']:,}"),
        (t("of these in the embedding"), f"{facts['embedding_parameters']:,}"),
        (t("active for one token"), f"{facts['active_parameters']:,}"),
        (t("layers"), f"{facts['num_layers']:,}"),
        (
            t("FLOPs per trained token, {seq_len} tokens a sequence, causal", seq_len=REFERENCE_SEQ_LEN),
            units.format_large(facts["flops_per_token"]),
        ),
    ]
    return table([[spec.name, ""], *[list(row) for row in rows]])


def group_lines(groups: Mapping[str, list[list[int]]], order: str) -> list[str]:
    """Groups by kind, one line each; the order stands beside them, for without it they mean nothing."""
    lines = [t("order {order}: the first varies fastest over the ranks", order=order)]
    for kind, members in groups.items():
        lines.append(f"{kind}: {' '.join('[' + ','.join(map(str, ranks)) + ']' for ranks in members)}")
    return lines
