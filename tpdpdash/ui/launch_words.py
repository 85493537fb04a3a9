"""Launch's checks and a rehearsal's changes, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from tpdpdash.run.preflight import failed
from tpdpdash.text import t
from tpdpdash.ui import parts, watch_words
from tpdpdash.ui.key_words import key_word
from tpdpdash.units import format_memory

if TYPE_CHECKING:
    from tpdpdash.run.change import Change
    from tpdpdash.run.place import Place
    from tpdpdash.run.preflight import Check

_CHECKS = {
    "layout": "Layout", "world_size": "Ranks", "cores": "Cores", "memory": "Memory", "platform": "System",
    "torch": "PyTorch", "runs_folder": "Runs folder", "disk": "Disk", "devices": "Devices", "fits": "Fit",
    "in_use": "In use", "slurm": "Slurm", "partition": "Partition", "nodes": "Nodes", "shared_folder": "Shared folder",
}  # fmt: skip
_GOOD = {
    "layout": "every degree divides what it must",
    "world_size": "{world_size} ranks, one a device",
    "devices": "{here} here",
    "fits": "{needed} of {available} on each device",
    "in_use": "by nobody else",
    "cores": "{ranks} ranks, {cores} cores",
    "memory": "{needed} needed of {available} free",
    "platform": "Linux",
    "torch": "installed",
    "runs_folder": "writable",
    "disk": "{free} free",
    "slurm": "answers, {partitions} partitions",
    "partition": "{partition} is up",
    "nodes": "{nodes} × {each} {kind}; it has {num_nodes} with {has}",
    "shared_folder": "{path}",
}
_PLACES = {
    "local": ("the job as it is, on this machine",
              "Nothing is changed but the cluster. A model of full size needs GPUs that hold it."),
    "hosts": ("the job as it is, on this machine and others",
              "The run starts here and waits until the others have joined: after the start this page shows the line "
              "that starts each of them. They must see the folder of runs, and Python, at the same paths."),
    "slurm": ("the job as it is, on Slurm's nodes",
              "A batch job with torchrun on each node. The nodes must see the folder of runs, and Python, at the same "
              "paths. Account and time limit are taken from SBATCH_ACCOUNT, SBATCH_TIMELIMIT and the like."),
}  # fmt: skip
_REASONS = {
    "here": "this machine",
    "shrunken": "shrunken",
    "follows": "follows from the others",
    "worker": "the built-in worker",
    "cpu": "CPU ranks",
    "default": "was not given",
}


def place_words(place: Place) -> str:
    """Where a job runs, in a line."""
    return t(_PLACES[place.engine][0])


def place_details(place: Place) -> str:
    """What that takes."""
    return t(_PLACES[place.engine][1])


def check_name(check: Check) -> str:
    """What a check looked at."""
    return t(_CHECKS.get(check.code, check.code))


def check_words(check: Check) -> str:
    """What a check found (markdown); what stands against a start is said in the fault's own words."""
    if check.faults or check.level == "failed":
        return "; ".join(parts.literal_sentence(fault) for fault in check.faults or failed([check]))
    v = check.values
    if check.code == "cores" and check.level == "warning":
        return t("{ranks} ranks on {cores} cores: {note}", ranks=v.get("ranks"), cores=v.get("cores"),
                 note=watch_words.shared_cores())  # fmt: skip
    if check.code == "shared_folder" and check.level == "warning":
        return t("{path} lies on {kind}, which other machines may not see", **_shown_values(v))
    if check.code == "memory" and _real(v, "available_bytes") is None:
        return t("{needed} needed; what is free is unknown", needed=format_memory(_real(v, "needed_bytes")))
    return parts.literal(t(_GOOD[check.code], **_shown_values(v))) if check.code in _GOOD else t("good")


def _real(values: Mapping[str, object], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else None


def _shown_values(values: Mapping[str, object]) -> dict[str, object]:
    """Bytes as people write them, everything else as it is."""
    return {
        name.removesuffix("_bytes"): format_memory(_real(values, name)) if name.endswith("_bytes") else value
        for name, value in values.items()
    }


def changes_table(changes: Sequence[Change]) -> pd.DataFrame:
    """Each change of a rehearsal: what was asked, what runs and why (cells are markdown)."""
    rows = [
        {
            "": key_word(change.key),
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
