"""Keys of [training] in the address come back as they were."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tpdpdash.job_tables import TRAINING_LIMITS
from tpdpdash.training import Training
from tpdpdash.ui.training_code import keys_of_code, training_code
from tpdpdash.ui.training_inputs import GROUPS, HELP, options_of

KEYS = [key for keys in GROUPS.values() for key in keys]


@pytest.mark.parametrize(
    "keys",
    [{}, {"optimizer": "muon"}, {"deterministic": True, "dropout": 0.1, "mtp_num_layers": 1}, {"tf32": False}],
)
def test_keys_come_back_from_their_code(keys: dict[str, object]) -> None:
    assert keys_of_code(training_code(keys)) == keys


@pytest.mark.parametrize("key", KEYS)
def test_every_input_is_a_key_of_training_with_choices_or_limits(key: str) -> None:
    assert key in {field.name for field in fields(Training)}
    assert bool(options_of(key)) != (key in TRAINING_LIMITS)


def test_help_is_written_for_inputs_only() -> None:
    assert set(HELP) <= set(KEYS)
