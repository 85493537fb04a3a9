"""Which layouts the search looks at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies import cluster_of, dense_model, moe_model, training_of

from tpdpdash.faults import InvalidInputError
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.search.plan import plan
from tpdpdash.search.space import layout_grids, layout_space


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
    return LayoutColumns.joined(list(layout_space(job)))


def test_megatrons_fsdp_is_searched_without_a_pipeline_and_other_frameworks_zero_with_one():
    """Its distributed optimizer is ZeRO 1; what is pinned is taken as it is."""
    for given, expected in (
        ({}, {0.0, 1.0}),
        ({"framework": "fsdp2"}, {0.0, 1.0, 2.0, 3.0}),
        ({"zero_stage": 2}, {2.0}),
    ):
        space = space_of(job_of(**given))
        assert set(space.zero_stage[(space.pp == 2) & (space.dp == 4)]) == expected
    assert set(space_of(job_of(pp=1, tp=1)).zero_stage) == {0.0, 1.0, 2.0, 3.0}


def test_embedding_and_loss_count_as_layers_where_that_makes_stages_even():
    """Llama-3.1-405B has 126 layers for its 16 stages; DeepSeek-V3's 61 fill 31 with the loss."""
    space = space_of(job_of(4, dense_model(num_layers=30), pp=4))
    assert space.account_for_embedding.all()
    assert space.account_for_loss.all()
    assert set(space.num_model_chunks) == {1.0, 2.0, 4.0, 8.0}
    assert set(map(tuple, space.stage_layers[:, :4])) == {(7.0, 8.0, 8.0, 7.0)}
    odd = space_of(job_of(4, dense_model(num_layers=31), pp=4))
    assert not odd.account_for_embedding.any()
    assert set(map(tuple, odd.stage_layers[:, :4])) == {(8.0, 8.0, 8.0, 7.0)}
    assert set(space_of(job_of(4, dense_model(num_layers=29), pp=4)).num_model_chunks) == {1.0}
    assert not space_of(job_of(4, pp=4)).account_for_loss.any()


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


def test_degrees_that_do_not_make_up_the_world_are_an_input_error():
    for pins in ({"tp": 3}, {"dp": 3}, {"tp": 4, "pp": 4}):
        with pytest.raises(InvalidInputError):
            layout_grids(job_of(**pins))


def test_progress_reaches_the_whole_space():
    seen = []
    found = plan(job_of(), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (found.considered, found.considered)


def test_nothing_fits_names_the_closest_layout_and_how_much_it_is_short():
    job = job_of(model=dense_model(hidden_size=16384, num_attention_heads=128, ffn_hidden_size=65536, num_layers=96))
    found = plan(job)
    assert found.ranked is None
    assert found.best is None
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


def test_ties_go_to_the_simpler_layout():
    """On one device every ZeRO stage and schedule costs the same: what is left is the plain layout."""
    found = plan(job_of(micro_batch_size=1, tp=1, pp=1, recompute="none"))
    assert found.best is not None
    steps = found.ranked.step_s
    tied = np.flatnonzero(steps == steps[0])
    zero = found.ranked.columns.zero_stage[tied]
    assert list(zero) == sorted(zero)


def test_json_lists_layouts_best_first():
    answer = plan(job_of(2)).to_json(top=5)
    speeds = [layout["throughput"]["tokens_per_s"] for layout in answer["layouts"]]
    assert len(speeds) == 5
    assert speeds == sorted(speeds, reverse=True)
    assert answer["search"]["considered"] == answer["search"]["feasible"] + sum(answer["refused"].values())
