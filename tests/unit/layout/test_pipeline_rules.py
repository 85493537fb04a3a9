"""Rules of stages and schedules.

Test names carry the rows of the reference reports (r…) and bad inputs (b…) that they answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rule_faults import faults_of
from strategies import dense_model, layout_of

from tpdpdash.layout.schedules import SCHEDULE_FACTS, schedules_of
from tpdpdash.layout.stages import chunk_layers
from tpdpdash.training import FRAMEWORKS


@pytest.mark.parametrize(
    ("split", "code"),
    [
        pytest.param((8, 8, 8, 4), "stage_layers_do_not_sum", id="r048"),
        pytest.param((8, 8, 14), "stage_entries_not_pp", id="three-entries"),
        pytest.param((15, 0, 8, 7), "stage_without_layers", id="an-empty-stage"),
        pytest.param((1,), "stage_layers_do_not_sum", id="r052"),
    ],
)
def test_stage_lists_have_pp_entries_that_sum_to_the_layers(split: tuple[int, ...], code: str) -> None:
    fault = faults_of(layout_of(30, pp=4, layers_per_stage=split), dense_model(num_layers=30))[code]
    assert fault.values["nearest"] == (7, 8, 8, 7)


def test_more_stages_than_layers_is_refused() -> None:
    assert faults_of(layout_of(4, pp=8), dense_model(num_layers=4))["more_stages_than_layers"].values["nearest"] == 4


def test_r050_five_layers_a_stage_do_not_divide_into_two_chunks() -> None:
    fault = faults_of(layout_of(40, pp=8, num_model_chunks=2), dense_model(num_layers=40))["chunks_not_divisible"]
    assert (fault.values["layers"], fault.values["nearest"]) == (5, (1, 5))


def test_r051_40_layers_on_16_stages_run_with_a_named_uneven_split() -> None:
    layout = layout_of(40, pp=16)
    assert sum(layout.layers_per_stage) == 40
    assert faults_of(layout, dense_model(num_layers=40)) == {}


def test_r053_interleaving_needs_a_pipeline_and_two_stages_are_enough() -> None:
    alone = layout_of(8, num_model_chunks=2, schedule="interleaved")
    assert "interleaved_without_pipeline" in faults_of(alone)
    assert faults_of(layout_of(8, pp=2, num_model_chunks=2)) == {}


@pytest.mark.parametrize("framework", ["fsdp2", "fsdp1", "builtin"])
def test_r054_torch_pipelines_need_as_many_microbatches_as_stages(framework: str) -> None:
    layout = layout_of(8, pp=8, overlap_grad_reduce=False, overlap_param_gather=False)
    found = faults_of(layout, global_batch_size=4, framework=framework)
    fault = found["fewer_microbatches_than_stages"]
    assert (fault.values["microbatches"], fault.values["nearest"]) == (4, (4,))
    assert fault.values["nearest_batch"] == 8
    assert "fewer_microbatches_than_stages" not in faults_of(layout, global_batch_size=8, framework=framework)


def test_megatron_runs_fewer_microbatches_than_stages_and_gpipe_does_everywhere() -> None:
    assert faults_of(layout_of(8, pp=8), global_batch_size=4) == {}
    assert faults_of(layout_of(8, pp=8, schedule="gpipe"), global_batch_size=4, framework="fsdp2") == {}


@pytest.mark.parametrize(
    ("microbatches", "group", "code"),
    [
        (10, 4, "group_remainder"),
        (2, 4, "interleaved_few_microbatches"),
        (8, 3, "group_size_out_of_range"),
        (8, 9, "group_size_out_of_range"),
    ],
)
def test_interleaved_groups_follow_megatron(microbatches: int, group: int, code: str) -> None:
    layout = layout_of(8, pp=4, num_model_chunks=2, microbatch_group_size_per_vp_stage=group)
    assert set(faults_of(layout, global_batch_size=microbatches)) == {code}


def test_fewer_microbatches_than_interleaved_stages_offer_1f1b_or_a_larger_batch() -> None:
    layout = layout_of(8, pp=4, num_model_chunks=2, dp=2)
    fault = faults_of(layout, global_batch_size=4)["interleaved_few_microbatches"]
    assert (fault.values["microbatches"], fault.values["nearest_batch"]) == (2, 8)
    assert faults_of(layout, global_batch_size=8) == {}


def test_the_nearest_group_and_the_nearest_batch_are_legal() -> None:
    layout = layout_of(8, pp=4, num_model_chunks=2)
    fault = faults_of(layout, global_batch_size=10)["group_remainder"]
    assert fault.values["nearest"] == (5,)
    assert fault.values["nearest_batch"] == (8, 12)
    assert faults_of(replace(layout, microbatch_group_size_per_vp_stage=5), global_batch_size=10) == {}
    assert faults_of(layout, global_batch_size=8) == faults_of(layout, global_batch_size=12) == {}


@pytest.mark.parametrize("schedule", ["zb-1p", "zb-2p", "zb-v", "dualpipe", "dualpipe-v"])
def test_every_schedule_is_legal_somewhere(schedule: Any) -> None:
    chunks = 2 if schedule.endswith("-v") else 1
    assert faults_of(layout_of(8, pp=4, schedule=schedule, num_model_chunks=chunks)) == {}


@pytest.mark.parametrize(
    ("framework", "schedule", "nearest"),
    [
        ("fsdp2", "zb-2p", "zb-1p"),
        ("fsdp1", "dualpipe", "dualpipe-v"),
        ("deepspeed", "zb-1p", "1f1b"),
        ("megatron-deepspeed", "zb-2p", "1f1b"),
        ("deepspeed", "gpipe", "1f1b"),
        ("megatron-deepspeed", "interleaved", "1f1b"),
    ],
)
def test_what_a_framework_does_not_have_is_refused_with_what_it_has(
    framework: str, schedule: Any, nearest: str
) -> None:
    fault = faults_of(layout_of(8, pp=4, schedule=schedule), framework=framework)["schedule_not_in_framework"]
    assert (fault.value, fault.values["nearest"]) == (schedule, nearest)
    assert nearest in fault.values["choices"]


def test_split_backwards_need_a_pipeline_and_a_v_two_chunks() -> None:
    assert "split_without_pipeline" in faults_of(layout_of(8, schedule="zb-1p"))
    fault = faults_of(layout_of(8, pp=4, schedule="zb-v"))["v_needs_two_chunks"]
    assert (fault.value, fault.values["nearest"]) == (1, 2)
    assert "chunks_without_interleaving" in faults_of(layout_of(8, pp=4, schedule="zb-2p", num_model_chunks=2))


def test_an_odd_layer_of_a_v_goes_to_the_first_chunk() -> None:
    assert faults_of(layout_of(20, pp=4, schedule="zb-v", num_model_chunks=2), dense_model(num_layers=20)) == {}
    assert chunk_layers((5, 4), 2, folded=True) == [[3, 2], [2, 2]]


def test_pairs_of_passes_need_two_microbatches_a_stage() -> None:
    layout = layout_of(8, pp=4, schedule="dualpipe-v", num_model_chunks=2, dp=2)
    fault = faults_of(layout, global_batch_size=14)["paired_few_microbatches"]
    assert (fault.values["microbatches"], fault.values["least"], fault.values["nearest_batch"]) == (7, 8, 16)
    assert faults_of(layout, global_batch_size=16) == {}


def test_dualpipe_divides_ranks_and_microbatches_by_two() -> None:
    assert "mirror_not_even" in faults_of(layout_of(9, pp=3, schedule="dualpipe"), dense_model(num_layers=9))
    assert set(faults_of(layout_of(8, pp=4, schedule="dualpipe"), global_batch_size=9)) == {"mirror_not_even"}
    assert faults_of(layout_of(8, pp=4, schedule="dualpipe"), global_batch_size=10) == {}


def test_torch_deals_microbatches_over_rounds() -> None:
    layout = layout_of(8, pp=4, schedule="zb-1p")
    fault = faults_of(layout, global_batch_size=9, framework="fsdp2")["rounds_not_even"]
    assert (fault.values["rounds"], fault.values["nearest_batch"]) == (2, (8, 10))
    assert faults_of(layout, global_batch_size=9) == faults_of(layout, global_batch_size=10, framework="fsdp2") == {}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_a_framework_offers_it_may_run(framework: str) -> None:
    for schedule in schedules_of(framework):
        facts = SCHEDULE_FACTS[schedule]
        keys: dict[str, Any] = {"schedule": schedule, "num_model_chunks": facts.num_model_chunks or 2}
        layout = layout_of(8, pp=4, overlap_grad_reduce=False, overlap_param_gather=False, **keys)
        assert faults_of(layout, global_batch_size=16, framework=framework) == {}


def test_schedule_and_chunks_agree() -> None:
    assert "pipeline_without_schedule" in faults_of(layout_of(8, pp=2, schedule="none"))
    assert "chunks_without_interleaving" in faults_of(layout_of(8, pp=2, schedule="1f1b", num_model_chunks=2))
    assert "interleaved_needs_chunks" in faults_of(layout_of(8, pp=2, schedule="interleaved"))


def test_a_chunk_too_small_for_the_prediction_module_and_the_loss_is_refused() -> None:
    """Four units on the last stage, two of them module and loss: as four chunks each would be one unit."""
    model = dense_model(num_layers=5, mtp_num_layers=1)
    layout = layout_of(
        5, pp=2, num_model_chunks=4, layers_per_stage=(3, 2), account_for_embedding=True, account_for_loss=True
    )
    assert faults_of(layout, model)["chunks_not_divisible"].values["nearest"] == (2,)
    assert "chunks_not_divisible" not in faults_of(replace(layout, num_model_chunks=2), model)
