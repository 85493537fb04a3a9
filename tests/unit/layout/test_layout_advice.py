"""Advice on layouts that are legal: what is easily overlooked."""

from __future__ import annotations

from typing import Any

import pytest
from strategies import cluster_of, dense_model, layout_of, moe_model, training_of

from tpdpdash.faults import Fault
from tpdpdash.layout.advice import advice, kv_weight_copies
from tpdpdash.layout.layout import Layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.text import fault_lines


def advice_on(layout: Layout, model: ModelSpec | None = None, cluster: Any = None, **training: Any) -> dict[str, Fault]:
    found = advice(model or dense_model(), cluster, training_of(**training), layout)
    assert len(fault_lines(found)) == len(found)
    return {remark.code: remark for remark in found}


def test_an_ordinary_layout_needs_no_remark() -> None:
    assert advice_on(layout_of(8, tp=2, pp=2, dp=4), cluster=cluster_of()) == {}


def test_r044_copied_kv_weights_are_counted() -> None:
    remark = advice_on(layout_of(8, tp=8), dense_model(num_kv_heads=2))["kv_weights_copied"]
    assert remark.values["copies"] == 4
    assert kv_weight_copies(dense_model(num_kv_heads=2), "megatron-core", 4) == 2
    assert kv_weight_copies(dense_model(num_kv_heads=8), "megatron-core", 4) == 1
    assert kv_weight_copies(dense_model(num_kv_heads=2), "fsdp2", 8) == 1
    assert kv_weight_copies(dense_model(num_kv_heads=2, kv_lora_rank=512), "megatron-core", 8) == 1


def test_r053_two_interleaved_stages_need_overlapped_messages() -> None:
    assert "interleaving_needs_overlap" in advice_on(layout_of(8, pp=2, num_model_chunks=2))
    assert "interleaving_needs_overlap" not in advice_on(layout_of(8, pp=4, num_model_chunks=2))


def test_r061_the_padded_vocabulary_and_its_added_rows_are_said() -> None:
    remark = advice_on(layout_of(8, tp=4), dense_model(vocab_size=151669))["vocabulary_padded"]
    assert (remark.values["padded"], remark.values["added"]) == (152064, 395)


def test_r078_the_order_cannot_change_with_experts_unless_the_data_parallel_sizes_agree() -> None:
    model = moe_model(num_layers=32)
    remark = advice_on(layout_of(32, tp=8, pp=4, dp=4, ep=4, etp=1), model)["order_fixed_by_experts"]
    assert (remark.values["dp"], remark.values["expert_dp"]) == (4, 8)
    assert "order_fixed_by_experts" not in advice_on(layout_of(32, tp=8, pp=4, dp=4, ep=8, etp=1), model)


def test_r079_tensor_parallel_groups_that_leave_the_node_are_warned_of() -> None:
    layout = layout_of(8, tp=8, dp=8, rank_order="dp-tp-cp-ep-pp")
    remark = advice_on(layout, cluster=cluster_of(8, 8))["tp_leaves_domain"]
    assert (remark.values["domains"], remark.values["nearest"]) == (8, "tp-dp-cp-ep-pp")
    assert "tp_leaves_domain" not in advice_on(layout_of(8, tp=8, dp=8), cluster=cluster_of(8, 8))


def test_a_domain_that_spans_nodes_holds_wide_tensor_parallel_groups() -> None:
    layout = layout_of(8, tp=16, dp=4)
    wide = cluster_of(16, 4, scale_up_domain_size=64)
    assert "tp_leaves_domain" not in advice_on(layout, cluster=wide)
    assert advice_on(layout, cluster=cluster_of(16, 4))["tp_leaves_domain"].values["domains"] == 4


def test_a_group_that_fits_the_64_devices_taken_of_each_rack_stays_in_its_domain() -> None:
    racks = cluster_of(36, 4, scale_up_domain_size=72)
    assert "tp_leaves_domain" not in advice_on(layout_of(8, tp=16, dp=9), cluster=racks)
    remark = advice_on(layout_of(8, tp=72, dp=2), dense_model(num_attention_heads=72), racks)["tp_leaves_domain"]
    assert (remark.values["domain_size"], remark.values["domains"]) == (64, 9)


@pytest.mark.parametrize(("chunks", "batch", "told"), [(1, 13, True), (1, 14, False), (2, 6, True), (2, 8, False)])
def test_a_pipeline_that_idles_more_than_half_of_its_work_is_told(chunks: int, batch: int, told: bool) -> None:
    layout = layout_of(16, pp=8, num_model_chunks=chunks)
    found = advice_on(layout, dense_model(num_layers=16), global_batch_size=batch)
    assert ("few_microbatches" in found) is told


def test_r084_shards_over_one_rank_shard_nothing() -> None:
    assert "shards_nothing" in advice_on(layout_of(8, dp=8, dp_shard_size=1))
    assert "shards_nothing" not in advice_on(layout_of(8, dp=8, dp_shard_size=1, zero_stage=0))
