"""Framework habits."""

from __future__ import annotations

import pytest

from tpdpdash.cost.frameworks import framework_habits, framework_names
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
    assert set(framework_names()) == set(FRAMEWORKS)


def test_an_unknown_framework_takes_the_nearest():
    assert framework_habits("megatron").name.startswith("megatron")
    assert framework_habits("fsdp").name.startswith("fsdp")
    assert framework_habits("zzz").name == "megatron-core"
    assert framework_habits("zzz").asked == "zzz"
