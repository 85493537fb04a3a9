"""Models by name, from presets.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.fields import nearest_words
from tpdpdash.model.config import read_config_table
from tpdpdash.model.names import check_name
from tpdpdash.model.spec import ModelSpec

FIELD = "model.preset"


@cache
def _presets() -> Mapping[str, Mapping[str, Any]]:
    text = files("tpdpdash.model").joinpath("presets.toml").read_text("utf-8")
    return MappingProxyType(tomllib.loads(text))


def preset_names() -> tuple[str, ...]:
    """All names, in the order of presets.toml: by family, small to large."""
    return tuple(_presets())


def preset_source(name: str) -> str:
    """Where the figures of a preset come from."""
    return str(_presets()[name]["source"])


def preset(name: str, field: str = FIELD) -> ModelSpec:
    """The model of that name, however capitalised; raises InvalidInputError with the nearest names.

    `field`: the key under which the person gave the name.
    """
    known = check_name(name, field).lower()
    entry = _presets().get(known)
    if entry is None:
        values = {"choices": preset_names(), "nearest": nearest_words(known, preset_names())}
        raise InvalidInputError([Fault(code="unknown_choice", field=field, value=name, values=values)])
    spec = read_config_table(entry["config"], f"preset {known}").spec
    return replace(spec, name=known, source=f"preset:{known}")
