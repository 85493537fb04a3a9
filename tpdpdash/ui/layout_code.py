"""A chosen layout as it stands in the address, tp4-pp2-dp8-v2-full: degrees, then searched keys that differ."""

from __future__ import annotations

import re

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.layout.layout import Layout
from tpdpdash.ui.key_words import layout_word

_CODES: tuple[tuple[str, str], ...] = (
    ("tp", "tp"), ("cp", "cp"), ("ep", "ep"), ("etp", "etp"), ("pp", "pp"), ("dp", "dp"),
    ("v", "num_model_chunks"), ("mb", "micro_batch_size"), ("z", "zero_stage"), ("shard", "dp_shard_size"),
)  # fmt: skip
KEY_OF_CODE = dict(_CODES)
OFFLOADS = {"offopt": "offload_optimizer", "offact": "offload_activations"}
"""What is held in host memory, in a code: only where it is."""


def layout_code(layout: Layout) -> str:
    """A layout as it stands in the address: its degrees, then every searched key that is not the default."""
    default = Layout(tp=layout.tp, dp=layout.dp, etp=layout.tp, dp_shard_size=layout.dp)
    always = {"tp", "pp", "dp"}
    parts = [
        f"{code}{getattr(layout, key)}"
        for code, key in _CODES
        if code in always or getattr(layout, key) != getattr(default, key)
    ]
    if layout.recompute != "none":
        parts.append(layout.recompute)
    if layout.sequence_parallel != (layout.tp > 1):
        parts.append("sp" if layout.sequence_parallel else "nosp")
    parts += [code for code, key in OFFLOADS.items() if getattr(layout, key)]
    if layout.pp > 1 and layout.schedule not in ("1f1b", "interleaved"):
        parts.append(f"s:{layout.schedule}")
    return "-".join(parts)


def pins_of_code(code: str) -> dict[str, object]:
    """The layout keys of a code, as in a Job file. Raises InvalidInputError for anything else."""
    pins: dict[str, object] = {}
    rest, _, schedule = code.partition("-s:")
    if schedule:
        pins["schedule"] = schedule
    for part in rest.split("-"):
        match = re.fullmatch(r"([a-z]+?)(\d{1,9})", part)
        if part in ("selective", "full"):
            pins["recompute"] = part
        elif part in ("sp", "nosp"):
            pins["sequence_parallel"] = part == "sp"
        elif part in OFFLOADS:
            pins[OFFLOADS[part]] = True
        elif match and match[1] in KEY_OF_CODE:
            pins[KEY_OF_CODE[match[1]]] = int(match[2])
        else:
            raise InvalidInputError([Fault(code="unknown_layout_code", field="layout", value=code)])
    return pins


def id_words(layout_id: str) -> str:
    """A run's layout_id, "tp2-pp2-dp2", as people write it: TP 2 × PP 2 × DP 2; anything else as it is."""
    found = [re.fullmatch(r"(tp|cp|ep|pp|dp)(\d+)", part) for part in layout_id.split("-")]
    return " × ".join(f"{layout_word(part[1])} {part[2]}" for part in found if part) or layout_id
