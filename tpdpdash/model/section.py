"""The part of a config that describes the decoder, with labels that name keys as they stand in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpdpdash.faults import Fault

ABSENT = object()
"""Marks a key that is not there, as against one that is null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One object of a config file."""

    table: Mapping[str, object]
    """Its keys."""
    file: str
    """Name of the file."""
    prefix: str = ""
    """Path to the object inside the file: "text_config."."""

    @property
    def is_nested(self) -> bool:
        """Whether the decoder is described inside a wrapper: then absent sizes are those of its config class."""
        return bool(self.prefix)

    def label(self, key: str) -> str:
        """The key as a person finds it: "config.json: text_config.hidden_size"."""
        return f"{self.file}: {self.prefix}{key}"

    def get(self, key: str) -> object:
        """The value of a key, ABSENT if it is not there; a dot reaches into a nested object."""
        value: object = self.table
        for step in key.split("."):
            if not isinstance(value, Mapping) or step not in value:
                return ABSENT
            value = value[step]
        return value

    def find(self, keys: Sequence[str]) -> tuple[str, object]:
        """The first spelling that is there, and its value; the first spelling and ABSENT if none is."""
        present = [(key, value) for key in keys if (value := self.get(key)) is not ABSENT]
        given = [(key, value) for key, value in present if value is not None]
        return (given or present or [(keys[0], ABSENT)])[0]

    def conflict(self, keys: Sequence[str]) -> Fault | None:
        """A fault if two spellings of one key are there and differ."""
        present = [(key, value) for key in keys if (value := self.get(key)) is not ABSENT and value is not None]
        for key, value in present[1:]:
            if value != present[0][1]:
                values = {"other": present[0][0], "other_value": present[0][1]}
                return Fault(code="differing_keys", field=self.label(key), value=value, values=values)
        return None
