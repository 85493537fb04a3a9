"""What schedules make of stage times and memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies import cluster_of, dense_model, layout_of, moe_model, training_of

from tpdpdash.cost.case import Case, case_of
from tpdpdash.cost.estimate import estimate_layout
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.messages import collectives_of
from tpdpdash.cost.passes import layer_passes
from tpdpdash.cost.pipeline import CARRIED_FRAC, end_passes
from tpdpdash.cost.result import Estimate
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import LayoutPins

CHUNKS = {"zb-v": 2, "dualpipe-v": 2}


def found(schedule: Any, model: Any = None, framework: str = "megatron-core", **keys: Any) -> Estimate:
    """The estimate of 8 layers on 4 stages of one device each."""
    model = model or dense_model()
    keys = {"pp": 4, "num_model_chunks": CHUNKS.get(schedule, 1), **keys}
    layout = layout_of(model.num_layers, schedule=schedule, **keys)
    training = training_of(framework=framework, global_batch_size=32 * layout.dp)
    return estimate_layout(model, cluster_of(2, 8), training, LayoutColumns.from_layouts([layout]))


def case(**keys: Any) -> Case:
    training = training_of()
    columns = LayoutColumns.from_layouts([layout_of(8, **keys)])
    return case_of(dense_model(), cluster_of(), training, framework_habits(training.framework), columns)


def test_a_third_of_a_layers_products_can_wait() -> None:
    passes = layer_passes(case(pp=4), moe=False)
    assert 0 < passes.weight_gradient_s[0] < passes.backward.compute_s[0]
    assert passes.weight_gradient_s[0] == pytest.approx(passes.forward.compute_s[0], rel=0.5)


def test_frozen_weights_leave_nothing_to_wait() -> None:
    training = training_of(trainable="lora")
    columns = LayoutColumns.from_layouts([layout_of(8, pp=4)])
    lora = case_of(dense_model(), cluster_of(), training, framework_habits(training.framework), columns)
    assert layer_passes(lora, moe=False).weight_gradient_s[0] == 0


def test_stages_put_off_what_their_layers_and_ends_can() -> None:
    own, split, whole = case(pp=4), found("zb-1p"), found("1f1b")
    ends, layer = end_passes(own), float(layer_passes(own, moe=False).weight_gradient_s[0])
    put_off = [stage.weight_gradient_s for stage in split.stages]
    assert put_off[1] == pytest.approx(2 * layer)
    assert put_off[0] - put_off[1] == pytest.approx(float(ends.embedding_weight_gradient_s[0, 0]))
    assert put_off[3] - put_off[1] == pytest.approx(float(ends.head_weight_gradient_s[0, 0]))
    assert [stage.weight_gradient_s for stage in whole.stages] == [0] * 4


def test_torchs_pipelines_send_once_a_step_what_fsdp_would_in_every_microbatch() -> None:
    """torch.distributed.pipelining stage.py: no reduction and no resharding before the last microbatch."""
    keys = {"dp": 4, "dp_shard_size": 4, "overlap_grad_reduce": False, "overlap_param_gather": False}
    for zero in (2, 3):
        torch = found("1f1b", framework="fsdp2", zero_stage=zero, **keys)
        assert all(stage.data_per_microbatch_s == 0 < stage.data_per_step_s for stage in torch.stages)
        assert all(stage.data_per_microbatch_s > 0 for stage in found("1f1b", zero_stage=zero, **keys).stages)


def test_torchs_pipelines_hold_a_stage_whole_in_between() -> None:
    model, keys = dense_model(), {"dp": 4, "dp_shard_size": 4, "framework": "fsdp2"}
    optimizer, two, three = (found("1f1b", model, zero_stage=zero, **keys).stages[1] for zero in (1, 2, 3))
    parameters = optimizer.gradients_bytes / 4
    assert two.gradients_bytes == three.gradients_bytes == pytest.approx(parameters)
    plain = optimizer.buffers_bytes - (2 + 4) * parameters  # less autocast's casts and DDP's buckets
    assert two.buffers_bytes - plain == pytest.approx(3 * parameters)
    assert three.total_bytes == pytest.approx(two.total_bytes)


def test_bubbles_shrink_from_1f1b_to_zb_1p_to_zb_2p() -> None:
    bubbles = [found(name).time.bubble_s for name in ("1f1b", "zb-1p", "zb-2p")]
    assert bubbles == sorted(bubbles, reverse=True)
    assert bubbles[2] < 0.5 * bubbles[1] < 0.5 * bubbles[0]


def test_torch_meets_in_the_optimizer_and_megatrons_fork_does_not() -> None:
    keys = {"overlap_grad_reduce": False, "overlap_param_gather": False, "zero_stage": 1}
    model = dense_model(vocab_size=1024)  # whose head is light: all ranks are busy alike
    torch, fork = (found("zb-v", model, framework=name, **keys) for name in ("fsdp2", "megatron-core"))
    assert fork.time.bubble_s / fork.step_s < torch.time.bubble_s / torch.step_s


def test_both_ends_of_a_v_stand_on_its_first_rank() -> None:
    v, plain = found("zb-v"), found("1f1b")
    assert v.stages[0].logits_bytes > 0
    assert [stage.logits_bytes for stage in v.stages[1:]] == [0] * 3
    weights = [[stage.weights_bytes for stage in each.stages] for each in (v, plain)]
    assert sum(weights[0]) == pytest.approx(sum(weights[1]))
    assert weights[0][0] - weights[0][1] == pytest.approx(sum(weights[1]) - 4 * weights[1][1])


def test_a_tied_head_of_a_v_is_the_embedding_itself() -> None:
    model = dense_model(tied_embeddings=True)
    v, plain = found("zb-v", model), found("1f1b", model)
    once = sum(s.weights_bytes for s in plain.stages) - sum(s.weights_bytes for s in v.stages)
    assert once == pytest.approx(2 * model.vocab_size * model.hidden_size, rel=0.02)
    assert [stage.tied_embedding_s for stage in v.stages] == [0] * 4
    assert plain.stages[0].tied_embedding_s > 0


def test_dualpipe_holds_the_model_twice() -> None:
    twice, once = found("dualpipe"), found("1f1b")
    held = [
        [sum(getattr(stage, part) for stage in each.stages) for each in (twice, once)]
        for part in ("weights_bytes", "gradients_bytes", "optimizer_bytes")
    ]
    assert [a / b for a, b in held] == pytest.approx([2, 2, 1])  # ZeRO 1 over both copies
    assert twice.throughput.hfu == pytest.approx(twice.throughput.mfu)


def test_pairs_hide_the_experts_messages_but_for_the_processors_that_carry_them() -> None:
    keys = {"pp": 2, "ep": 8, "dp": 8, "tp": 1}
    hidden, shown = found("dualpipe-v", moe_model(), **keys), found("zb-v", moe_model(), **keys)
    assert CARRIED_FRAC * shown.time.ep_s < hidden.time.ep_s < 0.5 * shown.time.ep_s
    assert hidden.time.tp_s == shown.time.tp_s


def test_messages_of_dualpipe_are_those_of_two_stages_for_half_of_the_microbatches() -> None:
    pins = LayoutPins(pp=4, schedule="dualpipe")
    training = training_of(global_batch_size=64)
    job = Job(name="small", model=dense_model(), cluster=cluster_of(2, 8), training=training, pins=pins)
    layout = job.layout()
    one = estimate_layout(job.model, job.cluster, training, LayoutColumns.from_layouts([layout]))
    sent = [m for m in collectives_of(job, one, 0) if m.group == "pp" and m.when == "forward"]
    assert [m.times for m in sent] == [one.num_microbatches]


def test_what_waits_for_weight_gradients_is_held() -> None:
    """Recomputed layers keep one tensor until their backward, and all their inputs until their weight gradient."""
    split, whole = found("zb-2p", recompute="full"), found("1f1b", recompute="full")
    held = np.array([stage.activations_bytes for stage in split.stages])
    assert held[2] > held[1]
    assert whole.stages[2].activations_bytes < whole.stages[1].activations_bytes
    assert split.stages[3].logits_bytes > whole.stages[3].logits_bytes
