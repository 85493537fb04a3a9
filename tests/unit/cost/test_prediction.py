"""Multi-token prediction: what DeepSeek-V3's module adds to memory, time and FLOPs, and who trains it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from strategies import cluster_of, layout_of, moe_model, training_of

from tpdpdash.cost.case import case_of
from tpdpdash.cost.ends import end_message_counts, end_messages
from tpdpdash.cost.estimate import estimate_layout
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.layer_messages import states_messages_s
from tpdpdash.cost.states import state_bytes
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.layout.prediction import counted_ends, mtp_layers
from tpdpdash.layout.resolve import draft_layout
from tpdpdash.model.counts import forward_flops_per_token, layer_parameters, parameter_counts, prediction_parameters
from tpdpdash.model.presets import preset

MODEL = moe_model(num_layers=7, mtp_num_layers=1)


def priced(training, model=MODEL, **pins):
    layout = draft_layout(LayoutPins(**pins), model, training, 16).layout
    return estimate_layout(model, cluster_of(), training, LayoutColumns.from_layouts([layout]))


def test_deepseek_v3s_module_is_11_5_billion_parameters_that_the_model_is_told_without():
    """685B in the published checkpoint, of which 671B are the main model and 1.85B the module's copies of its ends."""
    model = preset("deepseek-v3")
    assert model.mtp_num_layers == 1
    assert parameter_counts(model).total == 671_026_404_352
    assert prediction_parameters(model).total == 2 * 7168**2 + 3 * 7168 + layer_parameters(model, moe=True).total
    assert prediction_parameters(model).total / 1e9 == pytest.approx(11.5, abs=0.15)


@pytest.mark.parametrize(
    ("framework", "asked", "trained"),
    [("megatron-core", None, 1), ("megatron-core", 0, 0), ("fsdp2", None, 0), ("fsdp2", 2, 2), ("builtin", None, 0)],
)
def test_what_is_trained_is_what_is_asked_or_what_the_frameworks_recipes_do(framework, asked, trained):
    assert mtp_layers(MODEL, training_of(framework=framework, mtp_num_layers=asked)) == trained


def test_a_module_is_one_more_layer_with_a_projection_and_one_more_head_in_flops():
    without = replace(MODEL, mtp_num_layers=0)
    longer = forward_flops_per_token(replace(without, num_layers=8), 1024, causal=True)
    found = forward_flops_per_token(MODEL, 1024, causal=True)
    assert found.gemm == longer.gemm + 2 * 2 * 1024 * 1024
    assert (found.attention, found.head) == (longer.attention, 2 * longer.head)


def test_the_last_stage_holds_the_module_and_a_copy_of_the_embedding():
    training = training_of(mtp_num_layers=0)
    split = {"pp": 2, "layers_per_stage": (4, 3), "zero_stage": 0}
    off, on = priced(training, **split), priced(replace(training, mtp_num_layers=1), **split)
    each = state_bytes(training, framework_habits("megatron-core")).total
    more = prediction_parameters(MODEL).total + MODEL.vocab_size * MODEL.hidden_size
    states = [
        sum(getattr(e.stages[stage], f"{part}_bytes") for part in ("weights", "gradients", "optimizer"))
        for stage in (0, 1)
        for e in (on, off)
    ]
    assert states[0] == states[1]
    assert states[2] - states[3] == pytest.approx(each * more)
    assert on.stages[1].logits_bytes == 2 * off.stages[1].logits_bytes
    assert on.stages[1].activations_bytes > off.stages[1].activations_bytes


def test_a_module_takes_more_than_a_layer_and_its_share_of_a_second_head():
    training = training_of(mtp_num_layers=0)
    keys = {"pp": 2, "layers_per_stage": (4, 3)}
    off, on = priced(training, **keys), priced(replace(training, mtp_num_layers=1), **keys)
    longer = priced(training, replace(MODEL, num_layers=8), **keys | {"layers_per_stage": (4, 4)})
    assert on.stages[0].forward_s == pytest.approx(off.stages[0].forward_s)
    for name in ("forward_s", "backward_s"):
        last, plain, layer = (getattr(each.stages[1], name) for each in (on, off, longer))
        end = plain - 3 * (layer - plain)  # the head, and the host's and the message's time of a microbatch
        assert 0.6 * end < last - layer < 1.4 * end
    assert on.stages[1].tied_embedding_s > off.stages[1].tied_embedding_s == 0


@pytest.mark.parametrize(
    ("pp", "split"), [(2, (31, 30)), (4, (15, 16, 16, 14)), (8, (7, *[8] * 6, 6)), (16, (3, *[4] * 14, 2))]
)
def test_stages_make_room_for_the_module_and_the_loss_as_for_a_layer_each(pp, split):
    """61 layers of DeepSeek-V3 with embedding, module and loss are 64 units: Megatron-Bridge's "Et|(tt|)*30mL"."""
    draft = draft_layout(LayoutPins(pp=pp, ep=8), preset("deepseek-v3"), training_of(), 16 * pp).layout
    assert draft.layers_per_stage == split
    assert (draft.account_for_embedding, draft.account_for_loss) == counted_ends(61, pp, 1)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "dualpipe-v", "dualpipe"])
def test_no_default_split_leaves_a_stage_without_layers_to_make_room(schedule):
    """In a V both ends stand on rank 0: embedding, loss and module are three of its layers."""
    for num_layers in (4, 7, 45, 61):
        for modules in (1, 2):
            model = replace(MODEL, num_layers=num_layers, mtp_num_layers=modules)
            for pp in range(2, min(num_layers, 16) + 1):
                draft = draft_layout(LayoutPins(pp=pp, schedule=schedule), model, training_of(), pp).layout
                assert min(draft.layers_per_stage) >= 1
                assert sum(draft.layers_per_stage) == num_layers


def test_deepseek_v3s_published_layout_is_a_legal_job():
    """PP 8, four chunks of two units each, EP 32 on 256 GB200; without the module 61 layers do not divide."""
    pins = LayoutPins(pp=8, ep=32, num_model_chunks=4)
    job = Job(
        name="dsv3",
        model=preset("deepseek-v3"),
        cluster=cluster_of(64, 4),
        training=training_of(global_batch_size=4096, seq_len=4096),
        pins=pins,
    )
    assert job.layout().layers_per_stage == (7, 8, 8, 8, 8, 8, 8, 6)


@pytest.mark.parametrize(
    ("sequence_parallel", "head", "module"),
    [(True, (1.0, 2.0), (5.0, 8.0)), (False, (0.0, 1.0), (2.0, 3.0))],
    ids=["sequence parallel", "whole sequences"],
)
def test_a_module_sends_both_ends_messages_and_those_of_its_projection(sequence_parallel, head, module):
    """Megatron-Core multi_token_prediction.py: two states gathered for the projection, its output gathered, and under
    sequence parallelism scattered; backward the conjugates, with both inputs gathered again."""
    columns = LayoutColumns.from_layouts([layout_of(tp=2, dp=8, sequence_parallel=sequence_parallel)])
    habits, training = framework_habits("megatron-core"), training_of()
    with_module, without = (
        case_of(model, cluster_of(), training, habits, columns) for model in (MODEL, replace(MODEL, mtp_num_layers=0))
    )
    counted, plain = end_message_counts(with_module), end_message_counts(without)
    for part, own, more in zip(("head_forward_s", "head_backward_s"), head, module, strict=True):
        assert plain[part] == own
        assert counted[part] - own == more
    gather, scatter, whole = (float(np.ravel(each)[0]) for each in states_messages_s(with_module))
    sent = end_messages(with_module)
    forward, backward = (
        (5 * gather + scatter, 6 * gather + 4 * scatter) if sequence_parallel else (whole + gather, 4 * whole)
    )
    assert sent.head_forward_s[0] == pytest.approx(forward)
    assert sent.head_backward_s[0] == pytest.approx(backward)
