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


def test_a_layer_whose_rows_are_missing_is_left_out() -> None:
    spec = live.step_time_spec("light")
    assert len(live.for_kinds(spec, {"step", "predicted"})["layer"]) == len(spec["layer"]) == 5
    assert len(live.for_kinds(spec, {"step"})["layer"]) == 3
    memory = live.memory_spec("light", 2)
    assert len(live.for_kinds(memory, {"bar", "predicted"})["layer"]) == len(memory["layer"]) - 2


def test_the_numbers_of_microbatches_leave_the_bars_their_axis() -> None:
    """An axis that one layer has switched off is drawn for none."""
    bars, numbers = live.timeline_spec("light", 2, "s")["layer"]
    assert numbers["encoding"]["x"] == bars["encoding"]["x"]
    assert bars["encoding"]["x"]["axis"]["title"] == "s"
