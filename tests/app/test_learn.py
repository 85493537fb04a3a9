"""Learn: the document's 16 devices by its own names, under other degrees, and the one thing it has wrong."""

from __future__ import annotations

import pytest
from screens import open_page, specs, texts
from streamlit.testing.v1 import AppTest

# The groups as parallel-groups.zh.txt writes them.
TP_GROUPS = "tp_groups = [[g0, g1], [g2, g3], [g4, g5], [g6, g7], [g8, g9], [g10, g11], [g12, g13], [g14, g15]]"
DP_GROUPS = "dp_groups = [[g0, g2, g4, g6, g8, g10, g12, g14], [g1, g3, g5, g7, g9, g11, g13, g15]]"


def open_learn(**params: str) -> AppTest:
    """The screen at this address."""
    return open_page("learn", **params)


def test_the_documents_groups_stand_there_by_name() -> None:
    at = open_learn()
    assert not at.exception
    said = texts(at)
    assert TP_GROUPS in said
    assert DP_GROUPS in said
    assert "world_size = 16, tp_world_size = 2, dp_world_size = 8, pp_world_size = 1" in said


def test_the_product_of_the_degrees_is_said() -> None:
    at = open_learn()
    assert "Total parallelism = TP × DP × PP = 2 × 8 × 1 = 16." in at.info[0].value


def test_a_chosen_device_lights_its_own_groups() -> None:
    at = open_learn(g="g5")
    assert "g5 is chosen: its tensor group is [g4, g5], its data group is [g1, g3, g5, g7" in at.info[0].value
    assert any("TP 4, 5; DP 1, 3, 5, 7, 9, 11, 13, 15" in spec for spec in specs(at))


def test_with_pp_2_the_first_half_of_the_model_lies_on_the_first_eight_devices() -> None:
    at = open_learn(pp_world_size="2")
    assert not at.exception
    assert "2 × 4 × 2 = 16" in texts(at)
    assert "Devices 0–7 hold the first half of the model, 8–15 the second" in texts(at)
    assert "pp_groups = [[g0, g8]" in texts(at)


def test_the_correction_says_what_the_tensor_group_really_sums() -> None:
    warning = open_learn().warning[0].value
    assert "g0 and g1 do **not** exchange ∇W₁ and ∇W₂" in warning
    assert "What the tensor group sums are Y and dX" in warning
    assert "reduce-scatter and an all-gather" in warning


def test_what_each_degree_costs_is_estimated_and_halves_where_it_must() -> None:
    said = texts(open_learn())
    assert "TP 2" in said
    assert "→" in said
    assert "llama-3-8b" in said


@pytest.mark.parametrize("tp", ["1", "2", "4", "8"])
@pytest.mark.parametrize("pp", ["1", "2"])
def test_every_combination_is_sixteen(tp: str, pp: str) -> None:
    at = open_learn(tp_world_size=tp, pp_world_size=pp, g="g13")
    assert not at.exception
    dp = 16 // (int(tp) * int(pp))
    assert f"= {tp} × {dp} × {pp} = 16." in at.info[0].value


@pytest.mark.parametrize("params", [{"tp_world_size": "3"}, {"g": "g99"}, {"pp_world_size": "x"}])
def test_an_address_that_cannot_be_meant_shows_the_example(params: dict[str, str]) -> None:
    at = open_learn(**params)
    assert not at.exception
    assert "2 × 8 × 1 = 16" in at.info[0].value


def test_the_question_knows_its_answer() -> None:
    at = open_learn()
    pills = at.get_by_key("learn-answer")
    pills.set_value("g1, g3, g7, g9, g11, g13, g15").run()
    assert "Right." in at.success[0].value
    at.get_by_key("learn-answer").set_value("g4").run()
    assert any("Not quite." in warning.value for warning in at.warning)
