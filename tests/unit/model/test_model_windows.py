"""Sliding windows, as published configs say them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpdpdash.faults import InvalidInputError
from tpdpdash.model.config import read_config_table
from tpdpdash.model.spec import ModelSpec

CONFIGS = Path(__file__).parents[2] / "golden" / "model" / "hf_configs"


def spec_of(file: str, **changes: object) -> ModelSpec:
    config = json.loads((CONFIGS / f"{file}.json").read_text()) | changes
    return read_config_table({key: value for key, value in config.items() if value != "absent"}, file).spec


@pytest.mark.parametrize(
    ("file", "window", "layers"),
    [
        ("gpt-oss-120b", 128, 18),  # layer_types: 18 of 36
        ("exaone-4.0-32b", 4096, 48),  # layer_types: 48 of 64
        ("command-r7b", 4096, 24),  # sliding_window_pattern 4 of 32 layers
        ("mistral-7b-v0.1", 4096, 32),  # every layer
        ("mistral-7b-v0.3", 0, 0),  # null
        ("qwen2-7b", 0, 0),  # named, and switched off
        ("llama-3-8b", 0, 0),
    ],
)
def test_windows_of_published_configs(file: str, window: int, layers: int) -> None:
    spec = spec_of(file)
    assert (spec.sliding_window, spec.sliding_layers) == (window, layers)


def test_a_family_says_which_layers_where_the_config_does_not() -> None:
    assert spec_of("gpt-oss-20b", layer_types="absent").sliding_layers == 12


def test_qwen_has_windows_from_a_layer_on_where_they_are_switched_on() -> None:
    spec = spec_of("qwen2-7b", use_sliding_window=True, max_window_layers=20)
    assert (spec.sliding_window, spec.sliding_layers) == (131_072, 8)
    assert spec_of("qwen2-7b", use_sliding_window="absent").sliding_window == 0


@pytest.mark.parametrize("window", ["many", -1, 1.5, True])
def test_a_window_that_is_no_number_of_tokens_is_refused(window: object) -> None:
    with pytest.raises(InvalidInputError) as refused:
        spec_of("mistral-7b-v0.1", sliding_window=window)
    assert [fault.field for fault in refused.value.faults] == ["mistral-7b-v0.1: sliding_window"]
