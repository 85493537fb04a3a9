"""Framework habits."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.training import FRAMEWORKS


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_has_habits_and_each_figure_a_source(name):
    habits = framework_habits(name)
    assert habits.name == name
    for field, source in habits.sources.items():
        kind, _, reason = source.partition(": ")
        assert kind in ("documented", "assumed", "fitted"), field
        assert reason, field


def test_the_table_has_no_framework_that_a_job_cannot_name():
    tables = tomllib.loads((files("tpdpdash.cost") / "frameworks.toml").read_text(encoding="utf-8"))
    assert set(tables) == {"default", *FRAMEWORKS}


def test_an_unknown_framework_takes_the_nearest():
    assert framework_habits("megatron").name.startswith("megatron")
    assert framework_habits("fsdp").name.startswith("fsdp")
    assert framework_habits("zzz").name == "megatron-core"
    assert framework_habits("zzz").asked == "zzz"


def test_deepspeed_moves_twice_the_bytes_of_a_fused_addition_of_gradients():
    assert framework_habits("megatron-deepspeed").accumulation_bytes == 20
    assert framework_habits("nanotron").accumulation_bytes == 10


def test_fsdp1_reduces_gradients_in_16_bits_and_fsdp2_in_32():
    assert framework_habits("fsdp1").reduces_16bit_gradients
    assert not framework_habits("fsdp2").reduces_16bit_gradients
