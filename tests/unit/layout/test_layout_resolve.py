"""From given keys to a complete layout: the defaults of the Job file, and every contradiction at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from strategies import cluster_of, dense_model, training_of

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.layout.layout import Layout, LayoutPins
from tpdpdash.layout.resolve import draft_layout, resolve_layout
from tpdpdash.text import fault_lines


def resolved(world_size: int | None = None, framework: str = "megatron-core", layers: int = 8, **pins: Any) -> Layout:
    model = dense_model(num_layers=layers)
    return resolve_layout(LayoutPins(**pins), model, training_of(framework=framework), world_size)


def faults_of(world_size: int | None = None, layers: int = 8, **pins: Any) -> dict[str, Fault]:
    with pytest.raises(InvalidInputError) as refused:
        resolved(world_size, layers=layers, **pins)
    assert len(fault_lines(refused.value.faults)) == len(refused.value.faults)
    return {fault.code: fault for fault in refused.value.faults}


def test_nothing_given_is_one_rank() -> None:
    assert resolved() == Layout(layers_per_stage=(8,))


def test_defaults_follow_the_degrees() -> None:
    layout = resolved(64, tp=4, pp=4)
    assert (layout.dp, layout.dp_shard_size, layout.etp) == (4, 4, 4)
    assert (layout.schedule, layout.microbatch_group_size_per_vp_stage) == ("1f1b", 4)
    assert layout.sequence_parallel
    assert layout.layers_per_stage == (2, 2, 2, 2)
    assert resolved(8, pp=2, num_model_chunks=2).schedule == "interleaved"
    assert resolved(8, tp=1).sequence_parallel is False


@pytest.mark.parametrize(
    ("framework", "overlaps"), [("megatron-core", True), ("megatron-2022", False), ("fsdp2", True)]
)
def test_overlap_is_the_habit_of_the_framework(framework: str, overlaps: bool) -> None:
    layout = resolved(8, framework=framework)
    assert (layout.overlap_grad_reduce, layout.overlap_param_gather) == (overlaps, overlaps)
    given = resolved(8, framework=framework, overlap_grad_reduce=not overlaps)
    assert given.overlap_grad_reduce is not overlaps


def test_without_a_world_size_the_degrees_give_it() -> None:
    layout = resolved(None, tp=2, pp=2, dp=2)
    assert layout.world_size == 8
    assert resolved(None, tp=2).dp == 1


def test_a_complete_layout_resolves_to_itself() -> None:
    layout = resolved(64, tp=4, pp=4, micro_batch_size=2, recompute="full", layers_per_stage=(3, 2, 2, 1), zero_stage=0)
    pins = LayoutPins(**{name: getattr(layout, name) for name in Layout.__slots__})
    assert resolve_layout(pins, dense_model(), training_of(), 64) == layout


def test_given_values_stay_as_they_are() -> None:
    layout = resolved(16, tp=2, dp=8, dp_shard_size=4, sequence_parallel=False, etp=1, rank_order="tp-dp")
    assert (layout.dp_shard_size, layout.sequence_parallel, layout.etp, layout.rank_order) == (4, False, 1, "tp-dp")


def test_r014_the_world_names_its_smallest_multiple_and_leaves_dp() -> None:
    assert resolved(16, tp=2, pp=8).dp == 1
    fault = faults_of(12, tp=2, pp=8)["world_not_divisible"]
    assert (fault.values["product"], fault.values["min_world_size"]) == (16, 16)
    assert fault.values["nearest_world_size"] == 16


def test_a_dp_that_contradicts_the_world_is_refused_once() -> None:
    fault = faults_of(16, tp=2, dp=4)["dp_not_world"]
    assert (fault.value, fault.values["nearest"]) == (4, 8)
    with pytest.raises(InvalidInputError) as refused:
        resolve_layout(LayoutPins(tp=2, dp=4), dense_model(), training_of(), 16, cluster_of(2, 8))
    assert [f.code for f in refused.value.faults] == ["dp_not_world"]
    with pytest.raises(InvalidInputError) as refused:
        resolve_layout(LayoutPins(tp=32), dense_model(num_attention_heads=32), training_of(), 16, cluster_of(2, 8))
    assert "dp_not_world" not in [f.code for f in refused.value.faults]


def test_a_degree_that_no_world_fits_offers_the_nearest_ones() -> None:
    assert faults_of(64, tp=2, pp=3)["world_not_divisible"].values["nearest"] == (2, 4)


@pytest.mark.parametrize("name", ["tp", "cp", "pp", "dp", "ep", "etp", "micro_batch_size", "dp_shard_size"])
@pytest.mark.parametrize("value", [0, -3, 2**40])
def test_a_value_out_of_range_names_its_key(name: str, value: int) -> None:
    assert faults_of(**{name: value})["out_of_range"].field == f"layout.{name}"


@pytest.mark.parametrize(
    ("name", "value"), [("tp", 1.5), ("pp", "two"), ("zero_stage", True), ("micro_batch_size", "1")]
)
def test_b61_a_value_that_is_no_whole_number_names_its_key(name: str, value: object) -> None:
    assert faults_of(**{name: value})["not_whole_number"].field == f"layout.{name}"


@pytest.mark.parametrize(
    ("pins", "code"),
    [
        ({"schedule": "1f2b"}, "unknown_choice"),
        ({"recompute": 3}, "unknown_choice"),
        ({"layers_per_stage": ("all",)}, "not_list"),
        ({"layers_per_stage": 8}, "not_list"),
        ({"rank_order": 7}, "not_text"),
        ({"first_stage_layers": 1.5}, "not_whole_number"),
    ],
)
def test_b61_other_wrong_values_name_their_key(pins: dict[str, Any], code: str) -> None:
    assert faults_of(2, pp=2, **pins)[code].field == f"layout.{next(iter(pins))}"


def test_faults_of_keys_and_of_rules_come_together() -> None:
    found = faults_of(64, tp=3, zero_stage=7, rank_order="tp-xx", last_stage_layers=2, micro_batch_size=0)
    assert set(found) == {
        "out_of_range",
        "world_not_divisible",
        "rank_order_unknown_name",
        "stage_pin_without_pipeline",
        "heads_not_divisible",
        "kv_heads_not_replicable",
        "ffn_not_divisible",
        "sequence_not_divisible",
    }


# ------------------------------------------------------------------------------------------------ stages


def test_an_uneven_split_is_resolved_to_explicit_layers() -> None:
    assert resolved(4, layers=30, pp=4).layers_per_stage == (7, 8, 8, 7)
    assert resolved(4, layers=61, pp=4, last_stage_layers=13).layers_per_stage == (16, 16, 16, 13)
    layout = resolved(12, layers=70, pp=12, account_for_embedding=True, account_for_loss=True)
    assert layout.layers_per_stage == (5, *[6] * 10, 5)


def test_r052_a_stage_pin_without_a_pipeline_is_refused() -> None:
    assert faults_of(1, layers=20, last_stage_layers=1)["stage_pin_without_pipeline"].value == 1


@pytest.mark.parametrize(
    ("pins", "field"),
    [
        ({"first_stage_layers": 1, "account_for_embedding": True}, "layout.account_for_embedding"),
        ({"last_stage_layers": 1, "account_for_loss": True}, "layout.account_for_loss"),
        ({"layers_per_stage": (2, 2, 2, 2), "last_stage_layers": 1}, "layout.last_stage_layers"),
    ],
)
def test_keys_that_say_the_split_twice_are_refused(pins: dict[str, Any], field: str) -> None:
    assert faults_of(4, pp=4, **pins)["conflicting_keys"].field == field


def test_keys_that_say_the_same_split_twice_are_not() -> None:
    layout = resolved(4, pp=4, layers_per_stage=(1, 3, 2, 2), first_stage_layers=1, last_stage_layers=2)
    assert layout.layers_per_stage == (1, 3, 2, 2)


def test_r050_interleaving_that_does_not_divide_the_stages_is_refused() -> None:
    assert "chunks_not_divisible" in faults_of(8, layers=40, pp=8, num_model_chunks=2)


def test_a_split_of_another_sum_is_refused_with_one_that_fits() -> None:
    assert faults_of(4, pp=4, layers_per_stage=(2, 2, 2, 1))["stage_layers_do_not_sum"].values["nearest"] == (
        2,
        2,
        2,
        2,
    )


# ------------------------------------------------------------------------------------------------ the rest


def test_a_draft_raises_nothing_and_is_complete() -> None:
    draft = draft_layout(LayoutPins(tp=0, pp=99, rank_order=""), dense_model(), training_of(), 7)
    assert {fault.field for fault in draft.faults} == {"layout.tp", "layout.pp", "layout.rank_order"}
    assert draft.layout.tp == 1
    assert draft.layout.rank_order == "tp-cp-ep-dp-pp"


def test_rules_about_the_device_are_asked_where_it_is_known() -> None:
    training = training_of(precision="fp8")
    assert resolve_layout(LayoutPins(dp=16), dense_model(), training, 16).dp == 16
    with pytest.raises(InvalidInputError) as refused:
        resolve_layout(LayoutPins(dp=16), dense_model(), training, 16, cluster_of())
    assert [fault.code for fault in refused.value.faults] == ["precision_not_on_device"]


def test_the_builtin_worker_says_what_it_cannot_run() -> None:
    training = training_of(framework="builtin")
    with pytest.raises(InvalidInputError) as refused:
        resolve_layout(LayoutPins(cp=2, pp=2, zero_stage=3), dense_model(), training, 4)
    fields = {fault.field for fault in refused.value.faults}
    assert fields >= {"layout.cp", "layout.zero_stage"}
    assert resolve_layout(LayoutPins(tp=2, pp=2), dense_model(), training, 8).dp == 2


def test_pins_are_not_changed() -> None:
    pins = LayoutPins(tp=2)
    before = replace(pins)
    resolve_layout(pins, dense_model(), training_of(), 4)
    assert pins == before
