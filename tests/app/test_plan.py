"""Plan as a person sees it: the answer first, inputs in the address, and every state in words."""

from __future__ import annotations

import pytest
from screens import open_page, param, specs, texts
from streamlit.testing.v1 import AppTest

SMALL = {"model": "llama-3-8b", "device": "H100-SXM5-80GB", "nodes": "1", "seq": "4096", "batch": "64"}


def open_plan(**params: str) -> AppTest:
    """The screen at this address."""
    return open_page("plan", **params)


def test_the_answer_stands_first_with_speed_memory_and_runner_up() -> None:
    at = open_plan(**SMALL)
    assert not at.exception
    answer = at.success[0].value
    assert "tokens/s per GPU" in answer
    assert "to spare" in answer
    assert "runner-up" in answer
    assert " ± " in answer
    assert "measured runs" in answer


def test_six_cards_say_what_it_takes_and_cost_is_unknown_without_a_price() -> None:
    at = open_plan(**SMALL)
    labels = [metric.label for metric in at.metric]
    assert labels == [
        "Tokens/s per GPU", "Step time", "MFU", "Memory, worst stage", "300 B tokens take", "and cost",
    ]  # fmt: skip
    assert at.metric[5].value == "unknown"
    assert "of 79" in at.metric[3].value
    assert all("± " in metric.value for metric in at.metric[:5])


def test_each_row_says_where_it_loses_and_what_is_too_near_to_tell() -> None:
    table = open_plan(**SMALL).dataframe[0].value
    assert table["Where it loses"].iloc[0] == ""
    lost = list(table["Where it loses"].iloc[1:])
    assert all("%" in words for words in lost)
    assert any(name in " ".join(lost) for name in ("TP", "bubble", "DP"))
    assert all(cell.startswith("± ") for cell in (*table["± tokens/s"], *table["± GiB"]))
    for figure, error in (("Tokens/s per GPU", "± tokens/s"), ("Memory, GiB", "± GiB")):
        fracs = table[error].str.removeprefix("± ").str.replace(",", "").astype(float) / table[figure]
        assert fracs.max() < 1.2 * fracs.min(), "a figure and its error have one unit"
    assert table["Against best"].iloc[1].endswith("tie")


def test_no_error_is_claimed_for_the_built_in_worker() -> None:
    at = open_plan(**(SMALL | {"framework": "builtin", "batch": "16"}))
    assert not at.exception
    answer = at.success[0].value
    assert "No error is known" in answer
    assert "±" not in answer


def test_a_price_gives_the_cost_in_dollars() -> None:
    at = open_plan(**SMALL, price="2")
    assert at.metric[5].value.startswith("$")


def test_stated_failures_lengthen_the_days_and_are_told() -> None:
    at = open_plan(**SMALL)
    assert "no failures" in at.metric[4].help
    rough = open_plan(**SMALL, failures="0.01", restart="600", checkpoint="60", every="500")
    assert not rough.exception
    assert "0.01 failures per device and day" in rough.metric[4].help
    assert "one every 500 steps" in rough.metric[4].help
    assert rough.metric[1].value == at.metric[1].value, "a step takes what it takes"
    assert rough.metric[4].value != at.metric[4].value


def test_the_table_has_one_row_for_each_degrees_best_first() -> None:
    table = open_plan(**SMALL).dataframe[0].value
    layouts = list(table["Layout"])
    assert len(layouts) == len(set(layouts))
    speeds = list(table["Tokens/s per GPU"])
    assert speeds == sorted(speeds, reverse=True)
    assert table["Against best"].iloc[0] == "best"


def test_the_best_layout_stands_in_the_address() -> None:
    at = open_plan(**SMALL)
    assert param(at, "layout").startswith("tp")
    assert at.button[0].label == "Open layout 1"


def test_a_layout_from_the_address_is_the_chosen_one_and_fills_the_cards() -> None:
    first = open_plan(**SMALL)
    csv_code = param(open_plan(**SMALL, tp="2", pp="2"), "layout")
    chosen = open_plan(**SMALL, layout=csv_code)
    assert param(chosen, "layout") == csv_code
    assert chosen.button[0].label != "Open layout 1"
    assert chosen.metric[0].value != first.metric[0].value
    assert chosen.success[0].value == first.success[0].value


def test_another_variant_of_a_rows_degrees_stays_chosen() -> None:
    at = open_plan(**SMALL, layout="tp2-pp1-dp4-z0-full")
    assert not at.exception
    assert param(at, "layout") == "tp2-pp1-dp4-z0-full"


def test_a_layout_that_is_not_among_those_that_fit_gives_way_to_the_best() -> None:
    at = open_plan(**SMALL, layout="tp64-pp1-dp1")
    assert not at.exception
    assert param(at, "layout") == param(open_plan(**SMALL), "layout")


def test_pinned_degrees_narrow_the_search() -> None:
    at = open_plan(**SMALL, tp="4")
    assert all(layout.startswith("TP 4 ·") for layout in at.dataframe[0].value["Layout"])


def test_changing_an_input_changes_the_address_and_the_answer() -> None:
    at = open_plan(**SMALL)
    before = at.success[0].value
    at.get_by_key("view-nodes").set_value(2).run()
    assert not at.exception
    assert param(at, "nodes") == "2"
    assert at.success[0].value != before


def test_where_no_layout_is_legal_the_answer_says_which_rule_refuses_them() -> None:
    at = open_plan(model="gpt2-xl", seq="8192")
    assert not at.exception
    assert "**No layout is legal.**" in at.warning[0].value
    assert "1024" in texts(at).split("No layout is legal.")[1][:200], "the length that the positions allow"


def test_changed_inputs_choose_the_new_plans_best_layout() -> None:
    at = open_plan(**SMALL, layout="tp2-pp2-dp2")
    assert param(at, "layout") == "tp2-pp2-dp2"
    at.get_by_key("view-batch").set_value(128).run()
    assert at.button[0].label == "Open layout 1"
    assert param(at, "layout") != "tp2-pp2-dp2"


def test_nothing_fits_says_how_far_the_closest_layout_misses_and_what_would_help() -> None:
    at = open_plan(model="gpt3-175b", device="A100-SXM4-80GB", nodes="1", seq="2048", batch="64")
    assert not at.exception
    warning = at.warning[0].value
    assert "Nothing fits 1 × 8 A100" in warning
    assert "short" in warning
    assert "Layouts gained" in at.table[0].value.columns
    assert any("Refused layouts: Out of memory" in spec for spec in specs(at))


@pytest.mark.parametrize(
    ("params", "said"),
    [
        pytest.param({"model": "lama-3-8b"}, "llama-3-8b", id="unknown model with the nearest"),
        pytest.param({"device": "A100"}, "A100", id="ambiguous device"),
        pytest.param({"nodes": "0"}, "nodes", id="no nodes"),
        pytest.param({"batch": "-5"}, "batch", id="negative batch"),
        pytest.param({"seq": "nonsense"}, "", id="unreadable number is dropped"),
        pytest.param({"framework": "megatron-cor"}, "megatron-core", id="unknown framework is treated as the nearest"),
    ],
)
def test_an_address_that_cannot_be_meant_is_answered_in_words(params: dict[str, str], said: str) -> None:
    at = open_plan(**(SMALL | params))
    assert not at.exception
    assert said in texts(at)


def test_text_from_outside_is_shown_as_text() -> None:
    at = open_plan(**(SMALL | {"model": "<b>x</b>[a](http://b)"}))
    assert not at.exception
    raw = "\n".join(str(element.value) for element in at.error)
    assert raw
    assert "<b>" not in raw
    assert "](http" not in raw


def test_charts_carry_their_text_for_screen_readers() -> None:
    described = specs(open_plan(**SMALL))
    assert len(described) == 4
    assert all('"description"' in spec for spec in described)


def test_a_hundred_and_twenty_eight_nodes_are_planned_with_counts_that_say_what_was_cut() -> None:
    at = open_plan(model="gpt3-175b", device="A100-SXM4-80GB", nodes="128", seq="2048", batch="1536", zero_stage="1")
    assert not at.exception
    assert any("showing 8 of" in caption.value and "considered" in caption.value for caption in at.caption)


def test_a_model_with_fewer_positions_shortens_the_sequence_and_says_so() -> None:
    at = open_plan(**SMALL)
    (box,) = [box for box in at.selectbox if box.label == "Model"]
    box.select("gpt2-medium").run()
    assert not at.exception
    assert param(at, "seq") == "1024"
    assert "gpt2-medium has a table of 1024 positions: training.seq_len is 1024 now, it was 4096" in texts(at)
    assert at.success, "the plan stands"
    (box,) = [box for box in at.selectbox if box.label == "Model"]
    box.select("llama-3-8b").run()
    assert "has a table of" not in texts(at)


def test_how_a_step_trains_can_be_set_and_stands_in_the_address() -> None:
    at = open_page("plan", model="llama-3-8b")
    before = param(at, "layout"), texts(at)
    at.selectbox(key="training-optimizer").set_value("sgd").run()
    at.toggle(key="training-deterministic").set_value(True).run()
    at.number_input(key="training-packed_seq_len").set_value(2048).run()
    assert param(at, "training") == "optimizer:sgd,deterministic:true,packed_seq_len:2048"
    assert not at.exception
    assert (param(at, "layout"), texts(at)) != before
    at.selectbox(key="training-optimizer").set_value("adamw").run()
    assert param(at, "training") == "deterministic:true,packed_seq_len:2048", "a default stands nowhere"
    assert at.toggle(key="training-deterministic").value is True


def test_only_keys_with_a_meaning_are_asked_for() -> None:
    def keys(**params: str) -> set[str]:
        at = open_page("plan", **params)
        shown = [*at.selectbox, *at.toggle, *at.number_input]
        return {each.key.removeprefix("training-") for each in shown if each.key.startswith("training-")}

    dense = keys(model="llama-3-8b")
    assert {"optimizer", "gradient_dtype", "attention", "packed_seq_len"} <= dense
    assert not {"fp8_recipe", "tf32", "expert_dispatcher", "mtp_num_layers", "lora_rank"} & dense
    assert {"fp8_recipe", "fp8_attention"} <= keys(model="llama-3-8b", precision="fp8")
    assert "tf32" in keys(model="llama-3-8b", precision="fp32")
    assert "lora_rank" in keys(model="llama-3-8b", training="trainable:lora")
    mixture = keys(model="deepseek-v3", nodes="32", batch="2048", seq="4096")
    assert {"expert_dispatcher", "fp8_dispatch", "expert_load_cv", "mtp_num_layers"} <= mixture


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("optimizer:adamx", "adamx"),
        ("colour:red", "colour"),
        ("dropout:often", "often"),
        ("packed_seq_len:0", "0"),
        ("x", "x"),
    ],
)
def test_a_key_in_the_address_that_no_training_has_is_refused_by_name(code: str, said: str) -> None:
    at = open_page("plan", model="llama-3-8b", training=code)
    assert not at.exception
    assert said in texts(at)
