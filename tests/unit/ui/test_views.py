"""The plain tables between rooms and charts: what a rank holds, drawn steps, refusals in words, the 16 devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpdpdash.cost.estimate import estimate_job
from tpdpdash.cost.messages import collectives_of
from tpdpdash.cost.result import OUT_OF_MEMORY
from tpdpdash.job import Job, parse_job
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.rules import RULES
from tpdpdash.ui import (
    estimate_view,
    layout_view,
    learn_costs,
    learn_view,
    learn_words,
    rank_view,
    refusals,
    timeline_view,
)


def job(layout: str, *, nodes: int = 2, batch: int = 64, model: str = "llama-3-8b") -> Job:
    """A job on H100s with these layout keys."""
    return parse_job(
        f'[model]\npreset = "{model}"\n[cluster]\ndevice = "H100-SXM5-80GB"\nnodes = {nodes}\n'
        f"[training]\nseq_len = 4096\nglobal_batch_size = {batch}\n[layout]\n{layout}"
    ).resolved()


# ----------------------------------------------------------------------------------------- a rank


def test_interleaved_chunks_hold_layers_far_apart() -> None:
    layout = Layout(pp=2, num_model_chunks=2, layers_per_stage=(4, 4), schedule="interleaved")
    assert rank_view.held_layers(layout, 0) == [(0, 1), (4, 5)]
    assert rank_view.held_layers(layout, 1) == [(2, 3), (6, 7)]


def test_all_stages_together_hold_every_layer_once() -> None:
    layout = Layout(pp=4, num_model_chunks=2, layers_per_stage=(8, 8, 8, 8), schedule="interleaved")
    spans = [span for stage in range(4) for span in rank_view.held_layers(layout, stage)]
    assert sorted(layer for first, last in spans for layer in range(first, last + 1)) == list(range(32))


def test_a_v_turns_on_the_last_rank_and_ends_on_the_first() -> None:
    layout = Layout(pp=2, num_model_chunks=2, layers_per_stage=(3, 4), schedule="zb-v")
    assert rank_view.held_layers(layout, 0) == [(0, 1), (6, 6)]
    assert rank_view.held_layers(layout, 1) == [(2, 3), (4, 5)]


def test_a_rank_of_dualpipe_holds_a_stage_of_each_copy() -> None:
    layout = Layout(pp=4, layers_per_stage=(1, 2, 2, 3), schedule="dualpipe")
    assert [rank_view.held_layers(layout, stage) for stage in range(2)] == [[(0, 0), (5, 7)], [(1, 2), (3, 4)]]
    assert rank_view.held_layers(layout, 3) == rank_view.held_layers(layout, 0)
    asked = job('pp = 4\nschedule = "dualpipe"')
    for rank, ends in ((0, True), (4, False), (12, True)):
        told = dict(rank_view.holdings(asked.layout(), asked.model, asked.training, rank, 1.0, 2.0))["Layers"]
        assert told.endswith("embedding, head and loss") == ends


def test_ranks_that_share_a_kv_head_name_the_same_one() -> None:
    asked = job("tp = 16", nodes=2)
    layout = asked.layout()
    held = [dict(rank_view.holdings(layout, asked.model, asked.training, r, 0, 0))["Attention"] for r in (0, 1, 2)]
    assert held[0].endswith("KV heads 0 of 8")
    assert held[1].endswith("KV heads 0 of 8")
    assert held[2].endswith("KV heads 1 of 8")


def test_the_parameters_of_all_ranks_of_one_replica_make_up_the_model() -> None:
    asked = job("tp = 1\npp = 4")
    layout = asked.layout()
    parts = [rank_view.rank_parameters(asked, layout, stage * 4) for stage in range(4)]
    assert sum(part for part, _ in parts) == pytest.approx(parts[0][1], rel=0.001)


def test_groups_that_are_long_are_cut_and_say_how_long_they_are() -> None:
    assert layout_view.members(range(4)) == "[0, 1, 2, 3]"
    assert layout_view.members(range(0, 256, 2)) == "[0, 2, 4, 6, …, 254] (128 ranks)"


def test_a_group_over_several_nodes_of_one_nvlink_domain_stays_on_nvlink() -> None:
    asked = job("tp = 8")
    layout, cluster = asked.layout(), asked.cluster
    wide = replace(cluster, scale_up_domain_size=layout.world_size)
    assert layout_view.link_name(layout, "dp", cluster) == cluster.network.name
    assert layout_view.link_name(layout, "dp", wide) == cluster.scale_up.name


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "pp-dp-cp-ep-tp"])
@pytest.mark.parametrize("device", ["GB200-NVL72-186GB", "H100-SXM5-80GB"])
def test_a_group_is_said_to_cross_the_link_that_its_messages_are_priced_for(device: str, order: str) -> None:
    """A rack of 72 is used as 64: the map and the table of collectives say the same."""
    asked = parse_job(
        f'[model]\npreset = "llama-3-8b"\n[cluster]\ndevice = "{device}"\nnodes = 36\ndevices_per_node = 4\n'
        f'[training]\nseq_len = 4096\nglobal_batch_size = 144\n[layout]\ntp = 4\npp = 4\nrank_order = "{order}"'
    ).resolved()
    layout = asked.layout()
    links = {message.group: message.link for message in collectives_of(asked, estimate_job(asked), 0)}
    for kind in ("tp", "pp", "dp"):
        assert layout_view.link_name(layout, kind, asked.cluster) == links[kind]


def test_the_optimizer_states_of_a_rank_are_divided_as_its_memory_is() -> None:
    """ZeRO shards over context parallel ranks too: they hold the same weights."""
    asked = job("tp = 2\ncp = 4")
    rows = dict(rank_view.holdings(asked.layout(), asked.model, asked.training, 0, 1.0, 2.0))
    assert rows["Optimizer"] == "1/8 of its parameters' states (ZeRO 1)"


# ----------------------------------------------------------------------------------------- a step


def test_the_drawn_step_has_every_action_and_ends_with_the_optimizer() -> None:
    asked = job("tp = 2\npp = 4")
    estimate = estimate_job(asked)
    drawn = timeline_view.draw(asked, estimate)
    assert (drawn.bars["kind"] == "forward").sum() == 4 * estimate.num_microbatches
    assert drawn.bars["end_s"].max() == pytest.approx(drawn.total_s)
    assert drawn.bars.loc[drawn.bars["end_s"].idxmax(), "kind"] == "optimizer"
    assert drawn.total_s == pytest.approx(estimate.step_s, rel=0.05)


def test_microbatches_in_flight_rise_to_the_depth_of_the_pipeline_and_end_at_none() -> None:
    asked = job("tp = 2\npp = 4")
    flight = timeline_view.draw(asked, estimate_job(asked)).in_flight
    assert flight["count"].max() == 4
    assert flight["count"].iloc[-1] == 0


def test_weight_gradients_of_a_split_backward_are_bars_of_their_own() -> None:
    asked = job('tp = 2\npp = 4\nschedule = "zb-1p"')
    estimate = estimate_job(asked)
    drawn = timeline_view.draw(asked, estimate)
    counts = drawn.bars["kind"].value_counts()
    assert counts["forward"] == counts["input_gradient"] == counts["weight_gradient"] == 4 * estimate.num_microbatches
    assert "backward" in drawn.phases
    assert drawn.in_flight["count"].max() == 4
    assert drawn.in_flight["count"].iloc[-1] == 0
    assert "weight gradients" in timeline_view.caption(estimate)


@pytest.mark.parametrize(("schedule", "most"), [("zb-2p", 7), ("zb-v", 4), ("dualpipe-v", 4.5), ("dualpipe", 2.5)])
def test_the_drawn_flight_has_the_height_that_memory_is_counted_with(schedule: str, most: float) -> None:
    asked = job(f'tp = 2\npp = 4\nschedule = "{schedule}"')
    drawn = timeline_view.draw(asked, estimate_job(asked))
    assert drawn.in_flight["count"].max() == most
    assert drawn.in_flight_note.startswith(f"{most:.3g} in flight")


def test_a_step_of_very_many_microbatches_is_drawn_with_fewer_and_says_so() -> None:
    asked = job("tp = 8\npp = 2", batch=65536)
    estimate = estimate_job(asked)
    drawn = timeline_view.draw(asked, estimate)
    assert drawn.num_microbatches < estimate.num_microbatches
    assert len(drawn.bars) <= timeline_view.MAX_ACTIONS + 16
    assert "drawn with" in timeline_view.caption(estimate)


def test_memory_of_many_stages_keeps_the_fullest_one() -> None:
    asked = job("tp = 1\npp = 32", nodes=4, batch=64)
    estimate = estimate_job(asked)
    table, names, fullest = estimate_view.memory_table(estimate)
    assert len(names) <= estimate_view.MAX_STAGES
    assert names[fullest] == f"stage {estimate_view.fullest_stage(estimate)}"
    assert {f"stage {0}", f"stage {31}"} <= set(names)
    assert table.groupby("row")["value"].sum().max() == pytest.approx(estimate.peak_bytes)


def test_the_drawn_parts_of_a_step_add_up_to_it() -> None:
    estimate = estimate_job(job("tp = 2\npp = 4"))
    assert estimate_view.step_table([estimate.time])["value"].sum() == pytest.approx(estimate.step_s)


# --------------------------------------------------------------------------------------- refusals


def test_every_rule_has_words() -> None:
    for code in (OUT_OF_MEMORY, *(rule.code for rule in RULES)):
        assert refusals.title(code)


# ------------------------------------------------------------------------------------------ learn


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("pp", [1, 2])
def test_the_question_offers_its_answer_among_others_whoever_is_chosen(tp: int, pp: int) -> None:
    for device in range(learn_view.WORLD_SIZE):
        world = learn_view.learn_world(tp, pp, device)
        assert learn_words.right_answer(world) in learn_words.answers(world)
        assert len(learn_words.answers(world)) >= 3
        assert learn_words.asked(world) != device


def test_the_examples_figures_come_from_the_estimate_and_halve_with_tp_and_pp() -> None:
    alone, half, stages, replicas = (learn_costs.priced(**d) for d in ({}, {"tp": 2}, {"pp": 2}, {"dp": 8}))
    assert half.states_bytes == pytest.approx(alone.states_bytes / 2, rel=0.01)
    assert stages.states_bytes < 0.6 * alone.states_bytes
    assert replicas.states_bytes == pytest.approx(alone.states_bytes)
    assert learn_costs.priced(dp=8, zero_stage=1).states_bytes < replicas.states_bytes
    assert alone.sent_bytes("tp") == 0
    assert half.sent_bytes("tp") > stages.sent_bytes("pp") > 0
