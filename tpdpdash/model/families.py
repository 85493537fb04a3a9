"""The conventions of each architecture, as families.toml has them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from tpdpdash.model.spec import ModelSpec

_SPEC_FIELDS = frozenset(field.name for field in fields(ModelSpec)) | {"num_shared_experts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one field is read from a config."""

    keys: tuple[str, ...]
    """Spellings of the key; a dot reaches into a nested table. Empty: the config never gives this field."""
    default: int | bool | None = None
    """Value where the key is absent; None: it follows from other fields, or is missing."""
    when_true: object = None
    """What a true switch stands for, if not for itself."""
    when_false: object = None
    """What a false switch stands for, if not for itself."""

    @property
    def is_switch(self) -> bool:
        """Whether true and false stand for other values."""
        return self.when_true is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The conventions of one model_type; families.toml explains the fields."""

    model_type: str
    """The model_type that config files name."""
    source: str
    """Where the conventions stand."""
    literals: Mapping[str, object]
    """Fields that are the same in every config of this family."""
    rules: Mapping[str, Rule]
    """Fields that are read from the config."""
    sizes: Mapping[str, int]
    """Sizes of the config class, for a nested text_config that leaves them out."""
    requires: Mapping[str, object]
    """Keys that must hold one value."""
    moe_layers: str = ""
    """Function of patterns.py that says which layers route to experts; empty for a dense model."""
    variant: str = ""
    """Function of variants.py; empty for none."""
    ffn_multiple: int = 0
    """Inner width of the MLP in multiples of hidden_size where the config does not give it."""
    full_every: int = 0
    """Every n-th layer attends to all keys where the config has a sliding window and says no more; 0 = none does."""
    position_offset: int = 0
    """Rows of the position table beyond what the config says."""


def _rule(entry: Mapping[str, Any]) -> Rule:
    key = entry.get("key", ())
    keys = (key,) if isinstance(key, str) else tuple(key)
    return Rule(keys=keys, default=entry.get("default"), when_true=entry.get("true"), when_false=entry.get("false"))


def _merged(tables: Mapping[str, Mapping[str, Any]], model_type: str) -> dict[str, Any]:
    """A table on top of the one that it is like, down to the base."""
    own = tables[model_type]
    if model_type == "base":
        return dict(own)
    below = _merged(tables, own.get("like", "base"))
    requires = {**below["requires"], **own.get("requires", {})}
    return {**below, "sizes": {}, **own, "requires": requires}


def _family(tables: Mapping[str, Mapping[str, Any]], model_type: str) -> Family:
    table = _merged(tables, model_type)
    entries = {field: entry for field, entry in table.items() if field in _SPEC_FIELDS and field != "source"}
    return Family(
        model_type=model_type,
        source=table["source"],
        literals=MappingProxyType({f: e for f, e in entries.items() if not isinstance(e, dict)}),
        rules=MappingProxyType({f: _rule(e) for f, e in entries.items() if isinstance(e, dict)}),
        sizes=MappingProxyType(table["sizes"]),
        requires=MappingProxyType(table["requires"]),
        moe_layers=table.get("moe_layers", ""),
        variant=table.get("variant", ""),
        ffn_multiple=table.get("ffn_multiple", 0),
        full_every=table.get("full_every", 0),
        position_offset=table.get("position_offset", 0),
    )


@cache
def families() -> Mapping[str, Family]:
    """Every family by each model_type that names it."""
    tables = tomllib.loads(files("tpdpdash.model").joinpath("families.toml").read_text("utf-8"))
    by_type: dict[str, Family] = {}
    for model_type, table in tables.items():
        if model_type != "base":
            family = _family(tables, model_type)
            by_type |= dict.fromkeys((model_type, *table.get("aliases", ())), family)
    return MappingProxyType(by_type)
