"""ModelSpec's own fields, given inline in a Job file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from tpdpdash.faults import Fault
from tpdpdash.fields import nearest
from tpdpdash.model.names import shown_name
from tpdpdash.model.rules import build_spec
from tpdpdash.model.spec import ModelSpec

FIELDS = tuple(field.name for field in fields(ModelSpec) if field.name != "source")
"""`source` is left out: it says where a spec comes from, and inline fields come from the file itself."""
KEYS = ("preset", "config", *FIELDS)
"""Every key of a Job's [model] table."""


def _unknown_key_fault(key: str) -> Fault:
    return Fault(code="unknown_key", field=f"model.{key}", value=key, values={"nearest": nearest(key, KEYS)})


def spec_from_fields(given: Mapping[str, object]) -> tuple[ModelSpec | None, list[Fault]]:
    """A ModelSpec from the fields of a Job's [model] table, and every fault.

    Defaults: num_kv_heads = num_attention_heads, head_dim = hidden_size / num_attention_heads, name = "inline",
    ffn_hidden_size = moe_ffn_hidden_size in a mixture of experts.
    """
    unknown = [_unknown_key_fault(str(key)) for key in given if key not in FIELDS]
    values = {"name": "inline", **{key: value for key, value in given.items() if key in FIELDS}}
    if "moe_ffn_hidden_size" in values:
        values.setdefault("ffn_hidden_size", values["moe_ffn_hidden_size"])
    name = values["name"]
    values["name"] = shown_name(name) if isinstance(name, str) else name
    spec, faults = build_spec(values, lambda field: f"model.{field}")
    return (None if unknown else spec), unknown + faults
