"""Keys that were set and change nothing are said."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from strategies import cluster_of, dense_model, layout_of, moe_model, training_of

from tpdpdash.cost.estimate import estimate_layout
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.unused import unused_settings
from tpdpdash.model.spec import ModelSpec
from tpdpdash.text import fault_lines
from tpdpdash.training import Training

SET: dict[str, Any] = {
    "tf32": True, "fp8_recipe": "blockwise", "fp8_attention": True, "expert_load_cv": 0.5,
    "expert_dispatcher": "alltoall",
    "fp8_dispatch": True, "cp_comm_type": "all_gather", "optimizer_offload_fraction": 0.5,
    "recompute_modules": ("mlp",), "lora_rank": 8, "lora_targets": ("q_proj",),
}  # fmt: skip


def unused(model: ModelSpec, layout: Layout | None, **training: Any) -> set[str]:
    found = unused_settings(model, training_of(**training), layout)
    assert all("changes nothing" in line for line in fault_lines(found))
    return {fault.field.removeprefix("training.") for fault in found}


def test_what_nobody_set_is_not_spoken_of() -> None:
    assert unused(dense_model(), layout_of(8)) == set()


@pytest.mark.parametrize("key", SET)
def test_a_key_that_changes_nothing_is_named(key: str) -> None:
    assert unused(dense_model(), layout_of(8), **{key: SET[key]}) == {key}


@pytest.mark.parametrize(
    ("training", "layout"),
    [
        ({"tf32": True, "precision": "fp32"}, {}),
        ({"fp8_recipe": "blockwise", "fp8_attention": True, "precision": "fp8"}, {}),
        ({"expert_load_cv": 0.5, "expert_dispatcher": "alltoall", "fp8_dispatch": True}, {"ep": 4}),
        ({"cp_comm_type": "all_gather"}, {"cp": 2}),
        ({"optimizer_offload_fraction": 0.5}, {"offload_optimizer": True}),
        ({"recompute_modules": ("mlp",)}, {"recompute": "selective"}),
        ({"lora_rank": 8, "lora_targets": ("q_proj",), "trainable": "lora"}, {}),
    ],
)
def test_a_key_with_the_choice_that_it_goes_with_is_not(training: dict[str, Any], layout: dict[str, Any]) -> None:
    assert unused(moe_model(), layout_of(8, **layout), **training) == set()


@pytest.mark.parametrize("key", SET)
@pytest.mark.parametrize("narrow", [False, True])
def test_what_is_said_to_change_nothing_changes_no_figure(key: str, narrow: bool) -> None:
    precision = "mxfp8" if narrow else "bf16"
    layout = layout_of(8, tp=2, dp=4, zero_stage=1, recompute="full")
    for model in (dense_model(), moe_model()):
        plain, changed = training_of(precision=precision), training_of(precision=precision, **{key: SET[key]})
        if unused_settings(model, changed, layout):
            columns = LayoutColumns.from_layouts([layout])
            before, after = (estimate_layout(model, cluster_of(), one, columns) for one in (plain, changed))
            assert before.to_json() == after.to_json()


def test_before_a_layout_is_chosen_only_what_no_layout_can_use_is_named() -> None:
    assert unused(dense_model(), None, **SET) == set(SET) - {
        "cp_comm_type", "optimizer_offload_fraction", "recompute_modules",
    }  # fmt: skip


def test_every_key_in_the_table_is_one_of_training() -> None:
    assert set(SET) <= {field.name for field in fields(Training)}
