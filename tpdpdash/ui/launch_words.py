"""Launch's checks and a rehearsal's changes, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from tpdpdash.text import t
from tpdpdash.ui import parts
from tpdpdash.units import format_memory

if TYPE_CHECKING:
    from tpdpdash.run.change import Change
    from tpdpdash.run.preflight import Check

_KEY_WORDS = {
    "model.num_layers": "Layers",
    "model.hidden_size": "Hidden size",
    "model.ffn_hidden_size": "MLP size",
    "model.num_attention_heads": "Attention heads",
    "model.num_kv_heads": "KV heads",
    "model.head_dim": "Head width",
    "model.vocab_size": "Vocabulary",
    "training.seq_len": "Sequence length",
    "training.global_batch_size": "Global batch",
    "training.precision": "Precision",
    "training.framework": "Framework",
    "training.steps": "Steps",
    "cluster.device": "Device",
    "cluster.nodes": "Nodes",
    "cluster.devices_per_node": "Devices in a node",
    "layout.zero_stage": "ZeRO stage",
    "layout.layers_per_stage": "Layers per stage",
    "layout.schedule": "Schedule",
    "layout.num_model_chunks": "Model chunks",
    "layout.sequence_parallel": "Sequence parallel",
    "layout.overlap_grad_reduce": "Gradients overlap",
    "layout.overlap_param_gather": "Parameters overlap",
    "layout.overlap_tp": "TP messages overlap",
    **{f"layout.{name}": name.upper() for name in ("tp", "cp", "pp", "dp", "ep")},
}
_CHECKS = {
    "layout": "Layout", "world_size": "Ranks", "cores": "Cores", "memory": "Memory", "platform": "System",
    "torch": "PyTorch", "runs_folder": "Runs folder", "disk": "Disk", "port": "Port",
}  # fmt: skip
_REASONS = {
    "here": "this machine",
    "shrunken": "shrunken",
    "follows": "follows from the others",
    "worker": "the built-in worker",
    "cpu": "CPU ranks",
    "default": "was not given",
}


def check_name(check: Check) -> str:
    """What a check looked at."""
    return t(_CHECKS.get(check.code, check.code))


def check_words(check: Check) -> str:
    """What a check found (markdown)."""
    v = check.values
    if check.faults:
        return "; ".join(parts.literal_sentence(fault) for fault in check.faults)
    sentences = {
        "layout": lambda: t("every degree divides what it must"),
        "world_size": lambda: _world_words(check),
        "cores": lambda: _cores_words(check),
        "memory": lambda: t(
            "{needed} needed of {free} free", needed=format_memory(_real(v, "needed_bytes")),
            free=format_memory(_real(v, "available_bytes")),
        ),
        "platform": lambda: "Linux" if check.level == "ok" else t("runs are for Linux; this is {name}",
                                                                  name=parts.literal(v.get("platform"))),
        "torch": lambda: t("installed") if check.level == "ok" else t("not installed in this environment"),
        "runs_folder": lambda: t("writable") if check.level == "ok" else t("{path} is not writable",
                                                                           path=parts.literal(v.get("path"))),
        "disk": lambda: t("{free} free", free=format_memory(_real(v, "free_bytes"))),
        "port": lambda: t("a free port on 127.0.0.1 is taken at start"),
    }  # fmt: skip
    words = sentences.get(check.code)
    return words() if words else parts.literal(check.code)


def _real(values: Mapping[str, object], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else None


def _world_words(check: Check) -> str:
    v = check.values
    if check.level == "ok":
        return t("{n} ranks, one a device", n=v.get("world_size"))
    return t("{n} ranks need one machine with as many devices; here: {nodes} × {devices}", n=v.get("world_size"),
             nodes=v.get("nodes"), devices=v.get("devices"))  # fmt: skip


def _cores_words(check: Check) -> str:
    v = check.values
    if check.level == "ok":
        return t("{ranks} ranks, {cores} cores", ranks=v.get("ranks"), cores=v.get("cores"))
    return t("{ranks} ranks on {cores} cores: step times show the order of things, not their speed",
             ranks=v.get("ranks"), cores=v.get("cores"))  # fmt: skip


def changes_table(changes: Sequence[Change]) -> pd.DataFrame:
    """Each change of a rehearsal: what was asked, what runs and why (cells are markdown)."""
    rows = [
        {
            "": t(_KEY_WORDS[change.key]) if change.key in _KEY_WORDS else parts.literal(change.key.partition(".")[2]),
            t("Asked"): f":gray[{parts.literal(_shown(change.asked))}]",
            t("Rehearsed"): f"**{parts.literal(_shown(change.rehearsed))}** :small[:gray[{_reason(change)}]]",
        }
        for change in changes
    ]
    return pd.DataFrame(rows, columns=["", t("Asked"), t("Rehearsed")])


def _reason(change: Change) -> str:
    return t(_REASONS.get(change.reason, change.reason))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return t("yes") if value else t("no")
    if isinstance(value, int | float):
        return f"{value:,}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return t("not given") if value is None else parts.plain(value)
