"""How a run of a mixture of experts was tuned, from its notes or its release."""

from __future__ import annotations

import pytest

from tpdpdash.compare.cells import Cells
from tpdpdash.compare.recipes import (
    cuda_graphs_of,
    dispatcher_of,
    expert_load_cv_of,
    is_first_deepseek_recipe,
    mtp_layers_of,
    overlaps_experts,
    recompute_modules_of,
    runs_fp8_attention,
)
from tpdpdash.training import EXPERT_LOAD_CV

FULL = "recipe QWEN3_CONFIG_GB300@v0.5.1: none set; cuda_graph=full_iteration/[]; dispatcher=hybridep; moe_a2a_overlap."
PARTLY = "recipe QWEN3_CONFIG_GB300@v0.4.0: x; cuda_graph=transformer_engine/['moe_router']; dispatcher=hybridep."
PLAIN = "recipe QWEN3_PRETRAIN_CONFIG_H100@v0.4.0: no recompute set; dispatcher=hybridep."
RACK = "GB200-NVL72-186GB"


def run(notes="", **cells):
    return Cells(row={"notes": notes, "num_experts": "128", **cells})


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        (FULL, "step"),
        (PARTLY, "modules"),
        (PLAIN, "none"),
        ("cuda_graph=none/full_iteration", "none"),
        ("HybridEP dispatcher, partial CUDA graphs", "modules"),
        ("", "none"),
    ],
)
def test_captured_is_what_the_notes_say(notes, expected):
    assert cuda_graphs_of(run(notes)) == expected


def test_releases_from_2606_capture_the_step_on_racks_and_say_that_it_was_inferred():
    late = run(source_id="mbridge-26.08", hardware=RACK)
    assert cuda_graphs_of(late) == "step"
    assert overlaps_experts(late)
    assert late.inferred == ["cuda_graphs", "overlap_ep"]
    for other in ({"source_id": "mbridge-26.04", "hardware": RACK}, {"source_id": "mbridge-26.08", "hardware": "H100"}):
        assert cuda_graphs_of(run(**other)) == "none"
        assert not overlaps_experts(run(**other))


def test_a_dense_run_infers_nothing():
    dense = Cells(row={"source_id": "mbridge-26.08", "hardware": RACK, "vpp": "4", "pp": "8"})
    assert (cuda_graphs_of(dense), overlaps_experts(dense), dense.inferred) == ("none", False, [])


@pytest.mark.parametrize(
    ("notes", "expected"),
    [(FULL, True), (PARTLY, False), ("EP overlap on", True), ("EP overlap off", False), ("DualPipe; MTP", True)],
)
def test_overlap_of_expert_messages_is_what_the_notes_say(notes, expected):
    assert overlaps_experts(run(notes, source_id="mbridge-26.02", vpp="4", pp="8", hardware="H100")) is expected


def test_recipes_that_are_not_named_overlap_where_pipelines_interleave_on_nodes():
    silent = {"source_id": "mbridge-25.09", "pp": "8", "hardware": "H100-SXM5-80GB"}
    assert overlaps_experts(run(**silent, vpp="4"))
    assert not overlaps_experts(run(**silent, vpp="1"))
    assert not overlaps_experts(run(**{**silent, "hardware": RACK}, vpp="4"))
    assert not overlaps_experts(run(**{**silent, "source_id": "someone"}, vpp="4"))


@pytest.mark.parametrize("notes", ["MoE load force-balanced", "forced balanced routing", "fake balanced gate for MoE"])
def test_benchmarks_that_force_balance_have_no_busiest_rank(notes):
    assert expert_load_cv_of(run(notes)) == 0
    assert expert_load_cv_of(run()) == EXPERT_LOAD_CV


@pytest.mark.parametrize(
    ("notes", "expected"),
    [(FULL, "flex"), ("TE + DeepEP", "flex"), (FULL.replace("dispatcher=hybridep; ", ""), "alltoall"), ("", None)],
)
def test_the_dispatcher_is_what_the_notes_say_or_a_listed_recipe_leaves_out(notes, expected):
    assert dispatcher_of(run(notes)) == expected


@pytest.mark.parametrize(
    ("notes", "source", "expected"),
    [
        ("MTP depth 1", "deepseek-v3", 1),
        ("variant: w/o MTP.", "mbridge-25.11", 0),
        ("variant: w/ MTP.", "mbridge-25.11", 1),
        ("", "mbridge-26.06", 1),
        ("", "nemo-automodel", 0),
    ],
)
def test_prediction_modules_are_what_the_notes_say_or_nvidias_recipes_train(notes, source, expected):
    cells = run(notes, source_id=source, model_family="deepseek-v3")
    assert mtp_layers_of(cells) == expected
    assert cells.inferred == (["mtp_num_layers"] if source == "mbridge-26.06" else [])
    assert mtp_layers_of(run("", source_id="mbridge-26.06", model_family="kimi-k2")) == 0


def test_nemos_first_recipe_for_deepseek_v3_recomputes_nearly_everything():
    first = run(source_id="dgxc-v25.05", model_family="deepseek-v3")
    assert recompute_modules_of(first) == ("mla_up_proj", "layernorm", "moe", "mlp")
    stated = run(source_id="dgxc-v25.05", model_family="deepseek-v3", recompute="none")
    assert not is_first_deepseek_recipe(stated)
    assert recompute_modules_of(stated) == ()


@pytest.mark.parametrize(
    ("family", "hardware", "release", "expected"),
    [
        ("deepseek-v3", "GB300-NVL72-288GB", "mbridge-26.08", True),
        ("deepseek-v3", RACK, "mbridge-26.08", False),
        ("gpt-oss-120b", RACK, "mbridge-26.06", True),
        ("gpt-oss-120b", RACK, "mbridge-26.04", False),
        ("qwen3", RACK, "mbridge-26.08", False),
    ],
)
def test_attention_runs_in_8_bits_where_the_recipe_of_the_release_says_so(family, hardware, release, expected):
    cells = run(source_id=release, hardware=hardware, model_family=family, precision="mxfp8")
    assert runs_fp8_attention(cells) is expected
    assert ("fp8_attention" in cells.inferred) is expected


def test_experts_of_fixed_capacity_are_captured_whole_where_the_first_recipes_did_so():
    drops = {"notes": "variant: tokendrop.", "source_id": "mbridge-25.09", "hardware": "B200-SXM-180GB"}
    assert cuda_graphs_of(run(**drops, model_family="qwen3-30b-a3b")) == "step"
    assert cuda_graphs_of(run(**drops, model_family="deepseek-v3")) == "none"
    assert cuda_graphs_of(run(**drops | {"hardware": "H100-SXM5-80GB"}, model_family="qwen3-30b-a3b")) == "none"
