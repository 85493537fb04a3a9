"""Further keys of [training] as they stand in the address: optimizer:muon,mtp_num_layers:1."""

from __future__ import annotations

from collections.abc import Mapping


def training_code(keys: Mapping[str, object]) -> str:
    """Keys of [training] as one word of the address."""
    return ",".join(f"{key}:{str(value).lower()}" for key, value in keys.items())


def keys_of_code(code: str) -> dict[str, object]:
    """The keys of such a word. What is no key or no value of one is refused where the Job is read, by its name."""
    parts = [part.partition(":") for part in code.split(",") if part]
    return {key: _value(text) for key, _, text in parts}


def _value(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
