"""Watch's specs stay the same from tick to tick: equal, without data, limits or words of a tick."""

import json

import pytest

from tpdpdash.charts import live

SPECS = {
    "step": lambda theme: live.step_time_spec(theme),
    "heat": lambda theme: live.heat_spec(theme),
    "phases": lambda theme: live.phases_spec(theme, 8),
    "timeline": lambda theme: live.timeline_spec(theme, 8, "s"),
    "loss": lambda theme: live.loss_spec(theme),
    "memory": lambda theme: live.memory_spec(theme, 8),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", SPECS)
def test_a_spec_is_equal_each_time_and_holds_nothing_of_a_tick(name: str, theme: str) -> None:
    spec = SPECS[name](theme)
    assert SPECS[name](theme) == spec
    text = json.dumps(spec)
    assert '"data"' not in text
    assert '"values"' not in text
    assert '"domain": [' not in text


def test_light_and_dark_differ_in_colors_only() -> None:
    def shape(value: object) -> object:
        if isinstance(value, dict):
            return {key: shape(v) for key, v in value.items()}
        if isinstance(value, list):
            return [shape(v) for v in value]
        return "color" if isinstance(value, str) and value.startswith("#") else value

    assert shape(live.step_time_spec("light")) == shape(live.step_time_spec("dark"))
    assert live.step_time_spec("light") != live.step_time_spec("dark")
