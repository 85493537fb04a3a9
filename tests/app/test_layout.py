"""Layout as a person sees it: one layout in full, or every fault of one that is not possible."""

from __future__ import annotations

import json

import pytest
from screens import open_page, specs, texts
from streamlit.testing.v1 import AppTest

JOB = {"model": "llama-3-70b", "device": "H100-SXM5-80GB", "nodes": "8", "seq": "4096", "batch": "128"}
CHOSEN = JOB | {"layout": "tp4-pp4-dp4", "rank": "21"}


def open_layout(**params: str) -> AppTest:
    """The screen at this address."""
    return open_page("layout", **params)


def rows_of_table(at: AppTest) -> dict[str, str]:
    """What the rank holds, by its first column."""
    table = at.table[0].value
    return {str(a): str(b) for a, b in table.to_numpy()}


def test_the_answer_says_time_speed_fit_and_where_groups_lie() -> None:
    at = open_layout(**CHOSEN)
    assert not at.exception
    answer = at.success[0].value
    assert "a step" in answer
    assert "It fits: stage 0 needs the most" in answer
    assert "TP stays inside a node. DP joins 2 nodes, 2 ranks in each. PP hands over between nodes." in answer


def test_the_chosen_rank_holds_its_layers_heads_columns_and_sequences() -> None:
    held = rows_of_table(open_layout(**CHOSEN))
    assert held["Layers"] == "20–39 of 80"
    assert held["Attention"] == "heads 16–31 of 64, KV heads 2–3 of 8"
    assert held["MLP"].startswith("7,168–14,335 of 28,672")
    assert held["Data"] == "sequences 32–63 of 128, in 32 microbatches"
    assert held["Optimizer"] == "1/4 of its parameters' states (ZeRO 1)"


def test_the_map_lights_the_groups_of_the_chosen_rank() -> None:
    at = open_layout(**CHOSEN)
    described = next(spec for spec in specs(at) if "Map of" in spec)
    assert "TP 20, 21, 22, 23; DP 17, 21, 25, 29; PP 5, 21, 37, 53" in described


def test_every_group_can_be_copied_as_json() -> None:
    groups = json.loads(open_layout(**CHOSEN).code[0].value)
    assert groups["tp"][5] == [20, 21, 22, 23]
    assert groups["dp"][5] == [17, 21, 25, 29]
    assert groups["pp"][5] == [5, 21, 37, 53]
    assert sorted(rank for group in groups["tp"] for rank in group) == list(range(64))


def test_groups_can_be_copied_as_python() -> None:
    at = open_layout(**CHOSEN)
    form = next(control for control in at.segmented_control if control.key == "groups-form")
    form.set_value("Python").run()
    assert at.code[0].value.startswith("tp_groups = [[0, 1, 2, 3]")


def test_another_rank_order_moves_the_groups() -> None:
    groups = json.loads(open_layout(**CHOSEN, order="tp-cp-ep-pp-dp").code[0].value)
    assert groups["pp"][0] == [0, 4, 8, 12]


def test_the_collectives_name_group_bytes_times_link_and_time() -> None:
    table = open_layout(**CHOSEN).dataframe[0].value
    assert {"TP", "PP", "DP"} == set(table["Group"])
    assert list(table.columns) == ["Group", "What", "When", "Bytes each", "Times a step", "Link", "Seconds a step"]


def test_without_a_chosen_layout_the_plans_best_one_is_shown() -> None:
    at = open_layout(**JOB)
    assert not at.exception
    assert at.success


def test_typed_degrees_change_the_address_and_the_page() -> None:
    at = open_layout(**CHOSEN)
    at.get_by_key("edit-pp").set_value(2).run()
    assert not at.exception
    assert "pp2" in str(at.query_params["layout"])
    assert rows_of_table(at)["Layers"].startswith("0–39 of 80")


def test_a_layout_that_is_not_possible_lists_all_its_faults_with_the_nearest_legal_values() -> None:
    at = open_layout(**(CHOSEN | {"layout": "tp3-pp5-dp4"}))
    assert not at.exception
    said = texts(at)
    assert "This layout is not possible" in said
    assert "64 is not divisible by" in said
    assert "attention heads" in said
    assert said.count("nearest") >= 3
    assert at.get_by_key("edit-tp").value == 3


@pytest.mark.parametrize("code", ["tp", "x9", "tp4--pp4", "tp4-pp4-dp999999999", "../../etc/passwd", "tp0-pp1-dp1"])
def test_a_layout_code_that_cannot_be_meant_is_answered_in_words(code: str) -> None:
    at = open_layout(**(CHOSEN | {"layout": code}))
    assert not at.exception
    assert at.error


def test_an_order_that_is_none_is_answered_in_words() -> None:
    at = open_layout(**CHOSEN, order="tp-xx-pp")
    assert not at.exception
    assert "xx" in texts(at)


@pytest.mark.parametrize("rank", ["-1", "64", "99999999"])
def test_a_rank_that_does_not_exist_gives_way_to_the_nearest(rank: str) -> None:
    at = open_layout(**(CHOSEN | {"rank": rank}))
    assert not at.exception
    assert any(f"Rank {0 if rank == '-1' else 63}" in str(head.value) for head in at.subheader)


def test_a_thousand_ranks_are_cut_to_the_chosen_ranks_nodes_and_the_page_says_so() -> None:
    at = open_layout(
        model="gpt3-175b", device="A100-SXM4-80GB", nodes="128", seq="2048", batch="1536",
        layout="tp8-pp8-dp16-v6", rank="333",
    )  # fmt: skip
    assert not at.exception
    assert "showing 128 of 1,024 ranks: nodes of rank 333's groups" in texts(at)


def test_a_long_step_is_drawn_in_parts_that_stay_small() -> None:
    at = open_layout(
        model="gpt3-175b", device="A100-SXM4-80GB", nodes="128", seq="2048", batch="1536", layout="tp8-pp8-dp16-v6"
    )
    assert "Showing 0 s to" in texts(at)
    assert at.get_by_key("timeline-part").max > 1


def test_a_layout_that_does_not_fit_says_by_how_much() -> None:
    at = open_layout(**(JOB | {"layout": "tp1-pp1-dp64-z0"}))
    assert "It does not fit: stage 0 is" in at.warning[0].value


def test_experts_are_shown_as_a_group_of_their_own() -> None:
    at = open_layout(
        model="mixtral-8x7b", device="H100-SXM5-80GB", nodes="2", seq="4096", batch="128", layout="tp2-ep4-pp2-dp4",
        rank="3",
    )  # fmt: skip
    assert not at.exception
    assert rows_of_table(at)["Experts"] == "2–3 of 8 in each MoE layer; 1/2 of each"
    assert "MLP" not in rows_of_table(at), "every layer of it is an MoE layer"
    assert "ep" in json.loads(at.code[0].value)


def test_one_device_alone_sends_nothing_and_says_so() -> None:
    at = open_layout(
        model="gpt2", device="H100-SXM5-80GB", nodes="1", gpus="1", seq="1024", batch="8", layout="tp1-pp1-dp1"
    )
    assert not at.exception
    assert "Nothing is sent" in texts(at)


@pytest.mark.parametrize(
    ("layout", "layers", "told"),
    [
        ("tp4-pp4-dp4-s:zb-1p", "20–39 of 80", "zero bubble, ZB-1p · 4 stages"),
        ("tp4-pp4-dp4-v2-s:zb-v", "10–19, 60–69 of 80", "zero bubble, ZB-V · 4 stages"),
        ("tp4-pp4-dp4-s:dualpipe", "20–39, 40–59 of 80", "DualPipe · 4 stages"),
    ],
)
def test_a_split_schedule_is_drawn_and_a_ranks_parts_are_told(layout: str, layers: str, told: str) -> None:
    at = open_layout(**JOB | {"layout": layout, "rank": "21"})
    assert not at.exception
    assert rows_of_table(at)["Layers"] == layers
    assert told in texts(at)


def test_choosing_a_v_brings_its_two_chunks() -> None:
    at = open_layout(**CHOSEN)
    at.get_by_key("edit-schedule").set_value("zb-v").run()
    assert not at.exception
    assert at.get_by_key("edit-v").value == 2
    assert "zero bubble, ZB-V" in texts(at)
