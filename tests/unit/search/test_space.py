"""Which layouts the search looks at."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from strategies import cluster_of, dense_model, moe_model, training_of

from tpdpdash.faults import InvalidInputError
from tpdpdash.job import Job
from tpdpdash.layout.columns import RECOMPUTE_METHODS, LayoutColumns
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.model.presets import preset
from tpdpdash.search import space as search_space
from tpdpdash.search.plan import plan
from tpdpdash.search.splits import head_layers, splits_of
from tpdpdash.training import FRAMEWORKS


def job_of(nodes: int = 1, model: Any = None, **given: Any) -> Job:
    """A job on nodes of eight; keys of LayoutPins are pins, others belong to training."""
    pins = {k: v for k, v in given.items() if k in LayoutPins.__dataclass_fields__}
    training = {k: v for k, v in given.items() if k not in pins}
    return Job(
        name="small",
        model=model or dense_model(),
        cluster=cluster_of(nodes),
        training=training_of(**training),
        pins=LayoutPins(**pins),
    )


def space_of(job: Job) -> LayoutColumns:
    """All of a job's layouts."""
    space = search_space.space_of(job)
    return search_space.chunk_columns(job, space, space.grids)


def test_megatrons_fsdp_is_searched_without_a_pipeline_and_other_frameworks_zero_with_one():
    """Its distributed optimizer is ZeRO 1; what is pinned is taken as it is."""
    for given, expected in (
        ({}, {0.0, 1.0}),
        ({"framework": "fsdp2"}, {0.0, 1.0, 2.0, 3.0}),
        ({"framework": "deepspeed"}, {0.0, 1.0}),
        ({"framework": "builtin"}, {0.0, 1.0}),
        ({"zero_stage": 2}, {2.0}),
    ):
        space = space_of(job_of(**given))
        assert set(space.zero_stage[(space.pp == 2) & (space.dp == 4)]) == expected
    assert set(space_of(job_of(pp=1, tp=1)).zero_stage) == {0.0, 1.0, 2.0, 3.0}
    assert set(space_of(job_of(pp=1, tp=1, framework="megatron-2022")).zero_stage) == {0.0, 1.0}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_search_proposes_a_shard_or_a_schedule_only_to_refuse_it(framework: str):
    refused = plan(job_of(framework=framework)).refused
    assert not {"zero_with_pipeline", "zero_not_in_framework", "schedule_not_in_framework"} & set(refused)


def splits_by_chunks(layers: int) -> dict[tuple[float, ...], set[float]]:
    """Chunks that are searched with each split over four stages."""
    space = space_of(job_of(4, dense_model(num_layers=layers), pp=4))
    found: dict[tuple[float, ...], set[float]] = {}
    for split, chunks in zip(map(tuple, space.stage_layers[:, :4]), space.num_model_chunks, strict=True):
        found.setdefault(split, set()).add(chunks)
    return found


def test_embedding_and_loss_count_as_layers_where_that_makes_stages_even():
    """Llama-3.1-405B has 126 layers for its 16 stages; DeepSeek-V3's 61 fill 31 with the loss."""
    assert splits_by_chunks(30)[7, 8, 8, 7] == {1, 2, 4, 8}
    assert splits_by_chunks(31)[8, 8, 8, 7] == {1, 2, 4, 8}
    assert set().union(*splits_by_chunks(29).values()) == {1}
    space = space_of(job_of(4, dense_model(num_layers=30), pp=4))
    assert space.account_for_loss[(space.stage_layers[:, :4] == (7, 8, 8, 7)).all(axis=1)].all()
    even = (space_of(job_of(4, pp=4)).stage_layers[:, :4] == 2).all(axis=1)
    assert not space_of(job_of(4, pp=4)).account_for_loss[even].any()


@pytest.mark.parametrize("layers", [29, 30, 31, 32])
def test_no_split_is_searched_twice(layers):
    """Where the default split itself counts the loss as a layer, as 31 layers on four stages do, it stands once."""
    job = job_of(4, dense_model(num_layers=layers))
    for pp, schedule in itertools.product((2, 4, 8), ("1f1b", "zb-v")):
        found = splits_of(job, pp, schedule)
        assert len(found) == len({split.layers for split in found})


def test_ends_with_fewer_layers_are_searched_as_far_as_their_head_is_worth_them():
    """Eight layers over four stages; the head of the small model is worth two layers."""
    assert splits_by_chunks(8) == {(2, 2, 2, 2): {1, 2}, (2, 2, 3, 1): {1}, (1, 3, 3, 1): {1}, (1, 2, 3, 2): {1}}
    gpt3 = preset("gpt3-175b")
    assert head_layers(gpt3, 2048) == pytest.approx(gpt3.vocab_size / (12 * gpt3.hidden_size + 2048), rel=1e-6)


def test_partial_recompute_is_searched_with_the_frameworks_that_have_it():
    """Stages of four layers: one to three of them by blocks, or two from each kept input."""
    uniform, block = (float(RECOMPUTE_METHODS.index(name)) for name in ("uniform", "block"))
    expected = {(1.0, block), (2.0, block), (3.0, block), (2.0, uniform)}
    for framework, partial in (("megatron-core", expected), ("fsdp2", set())):
        space = space_of(job_of(framework=framework, pp=2, tp=1))
        some = ~np.isnan(space.recompute_num_layers)
        assert set(zip(space.recompute_num_layers[some], space.recompute_method[some], strict=True)) == partial


def test_states_are_sharded_over_all_replicas_or_those_of_a_node():
    space = space_of(job_of(2, tp=2, pp=1))
    assert set(zip(space.zero_stage, space.dp_shard_size, strict=True)) == {
        (0, 8), (1, 8), (2, 8), (3, 8), (1, 4), (2, 4), (3, 4)
    }  # fmt: skip
    assert set(space_of(job_of(2, tp=2, pp=1, framework="megatron-2022")).dp_shard_size) == {8.0}


def test_both_rank_orders_are_searched_where_a_group_then_sits_differently():
    space = space_of(job_of(2))
    other = space.rank_order == space.rank_orders.index("tp-cp-ep-pp-dp")
    assert set(zip(space.tp[other], space.pp[other], strict=True)) == {(1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (4, 2)}
    assert not (space_of(job_of(1)).rank_order > 0).any()


def test_no_rank_order_is_searched_that_context_parallelism_rules_out():
    found = plan(job_of(2, seq_len=32768, cp=2))
    assert found.considered > found.feasible > 0
    assert "rank_order_pp_not_last" not in found.refused


def test_a_group_of_microbatches_is_one_that_megatron_takes():
    space = space_of(job_of(pp=4, tp=1, micro_batch_size=1, global_batch_size=14 * 2, num_model_chunks=2))
    assert set(space.microbatch_group_size_per_vp_stage) == {5.0}
    assert plan(job_of(pp=4, tp=1, micro_batch_size=1, global_batch_size=28, num_model_chunks=2)).feasible > 0


def test_every_row_multiplies_to_the_world():
    assert set(space_of(job_of(2)).world_size) == {16.0}


def test_a_flag_that_changes_no_figure_is_no_dimension():
    space = space_of(job_of())
    assert not space.sequence_parallel[space.tp == 1].any()
    assert set(space.zero_stage[space.dp == 1]) == {1.0}
    assert set(space.num_model_chunks[space.pp == 1]) == {1.0}
    assert set(space.ep) == {1.0}
    assert len({space.layout(i) for i in range(len(space))}) == len(space)


PINS = {
    "tp": 2, "pp": 2, "dp": 4, "micro_batch_size": 2, "num_model_chunks": 2, "zero_stage": 3, "recompute": "full",
    "sequence_parallel": False, "offload_optimizer": True, "overlap_tp": True, "rank_order": "tp-cp-ep-pp-dp",
    "dp_shard_size": 2, "account_for_loss": True, "recompute_num_layers": 1, "recompute_method": "block",
    "microbatch_group_size_per_vp_stage": 4,
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), PINS.items(), ids=PINS.keys())
def test_a_pinned_key_is_fixed_in_every_layout(key, value):
    space = space_of(job_of(**{key: value}))
    assert {getattr(space.layout(i), key) for i in range(0, len(space), 7)} == {value}


def test_a_pinned_schedule_holds_wherever_there_is_a_pipeline():
    space = space_of(job_of(schedule="gpipe"))
    schedules = {(space.layout(i).schedule, space.layout(i).pp > 1) for i in range(len(space))}
    assert schedules == {("none", False), ("gpipe", True)}


def test_pinned_stage_layers_reach_every_layout():
    space = space_of(job_of(pp=2, layers_per_stage=(3, 5)))
    assert set(map(tuple, space.stage_layers[:, :2])) == {(3.0, 5.0)}


def test_experts_are_a_dimension_of_mixtures():
    space = space_of(job_of(model=moe_model()))
    assert set(space.ep) == {1.0, 2.0, 4.0, 8.0}
    assert set(space.etp[space.tp == 4]) == {1.0, 4.0}
    assert (space.expert_dp % 1 == 0).all()


def test_context_parallelism_is_searched_for_long_sequences_only():
    assert set(space_of(job_of(seq_len=8192)).cp) == {1.0}
    assert set(space_of(job_of(seq_len=16384)).cp) == {1.0, 2.0, 4.0}
    assert set(space_of(job_of(seq_len=8192, cp=2)).cp) == {2.0}


@pytest.mark.parametrize("order", ["", "x-y", "tp-tp-dp", "pp-x"])
def test_a_pinned_rank_order_that_names_no_order_is_an_input_error(order: str):
    with pytest.raises(InvalidInputError, match="rank_order"):
        space_of(job_of(2, rank_order=order))


def test_a_degree_that_a_pinned_rank_order_leaves_out_stays_1():
    space = space_of(job_of(2, rank_order="tp-dp"))
    assert set(space.pp) == {1.0}
    assert set(space.tp) > {1.0}


def test_degrees_that_do_not_make_up_the_world_are_an_input_error():
    for pins in ({"tp": 3}, {"dp": 3}, {"tp": 4, "pp": 4}):
        with pytest.raises(InvalidInputError):
            search_space.space_of(job_of(**pins))


def test_progress_reaches_the_whole_space():
    seen = []
    found = plan(job_of(), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (found.considered, found.considered)


def test_nothing_fits_names_the_closest_layout_and_how_much_it_is_short():
    job = job_of(model=dense_model(hidden_size=16384, num_attention_heads=128, ffn_hidden_size=65536, num_layers=96))
    found = plan(job)
    assert found.ranked is None
    assert found.picked is None
    assert found.top(5) == []
    assert found.closest is not None
    assert found.closest_bytes_short == found.closest.peak_bytes - found.closest.capacity_bytes > 0
    assert found.refusals["out_of_memory"].layout == found.closest.layout
    answer = found.to_json()
    assert answer["layouts"] == []
    assert answer["refused"]["out_of_memory"] > 0
    assert answer["search"]["feasible"] == 0


def test_refusals_have_an_example_with_the_nearest_legal_values():
    found = plan(job_of(model=dense_model(num_attention_heads=12, num_kv_heads=12, head_dim=64, hidden_size=768)))
    refusal = found.refusals["heads_not_divisible"]
    assert refusal.fault.value == refusal.layout.tp == 8
    assert refusal.count == found.refused["heads_not_divisible"]


def test_json_lists_layouts_best_first_as_far_as_the_model_can_tell():
    answer = plan(job_of(2)).to_json(top=5)
    speeds = [layout["throughput"]["tokens_per_s"] for layout in answer["layouts"]]
    assert len(speeds) == 5
    assert all(slower <= 1.005 * faster for faster, slower in itertools.pairwise(speeds))
    assert answer["search"]["considered"] == answer["search"]["feasible"] + sum(answer["refused"].values())


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_the_first_split_of_a_model_with_prediction_modules_is_the_jobs_own(pp: int):
    job = job_of(model=dense_model(num_layers=13, mtp_num_layers=1), pp=pp, tp=1)
    layout = job.layout()
    for schedule in ("1f1b", "zb-v"):
        first = splits_of(job, pp, schedule)[0]
        assert (first.account_for_embedding, first.account_for_loss) == (
            layout.account_for_embedding,
            layout.account_for_loss,
        )
    assert splits_of(job, pp, "1f1b")[0].layers == layout.layers_per_stage
