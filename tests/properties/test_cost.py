"""What must hold of every estimate, whatever the layout."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cluster_of, dense_model, device, layout_of, moe_model, training_of

from tpdpdash.cost.estimate import Estimates, estimate, estimate_layout
from tpdpdash.cost.figures import TIME_PARTS
from tpdpdash.cost.result import MEMORY_PARTS
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import Layout
from tpdpdash.model.counts import forward_flops_per_token, parameter_counts
from tpdpdash.model.presets import preset, preset_names
from tpdpdash.model.spec import ModelSpec

powers = st.sampled_from([1, 2, 4, 8])
frameworks = st.sampled_from(["megatron-core", "megatron-2022", "deepspeed", "fsdp2", "builtin", "somebody's own"])


@st.composite
def priced_layouts(draw: st.DrawFn) -> tuple[ModelSpec, Layout]:
    """A dense or MoE model of 8 layers and a layout of up to 8·4·8·4 ranks that its rules allow."""
    moe = draw(st.booleans())
    model = moe_model() if moe else dense_model()
    tp, dp = draw(powers), draw(powers)
    pp, cp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    chunks = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    keys: dict[str, Any] = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "num_model_chunks": chunks}
    if moe:
        keys["ep"] = draw(st.sampled_from([e for e in (1, 2, 4, 8) if tp * cp * dp % e == 0]))
        keys["etp"] = draw(st.sampled_from([t for t in (1, tp) if tp * cp * dp % (keys["ep"] * t) == 0] or [1]))
    keys["micro_batch_size"] = draw(st.sampled_from([1, 2, 4]))
    keys["zero_stage"] = draw(st.sampled_from([0, 1, 2, 3]))
    keys["recompute"] = draw(st.sampled_from(["none", "selective", "full"]))
    keys["sequence_parallel"] = draw(st.booleans()) and tp > 1
    return model, layout_of(**keys)


def one(model: ModelSpec, layout: Layout, **training: Any) -> Estimates:
    """The estimate of one layout on a cluster of its size."""
    cluster = cluster_of(nodes=max(1, -(-layout.world_size // 8)))
    steps = training_of(**{"global_batch_size": 256, **training})
    return estimate(model, cluster, steps, LayoutColumns.from_layouts([layout]))


@settings(max_examples=60)
@given(priced_layouts(), frameworks)
def test_parts_add_up_exactly(case, framework):
    found = one(*case, framework=framework).row(0)
    assert found.step_s == sum(getattr(found.time, name) for name in TIME_PARTS)
    assert all(getattr(found.time, name) >= 0 for name in TIME_PARTS)
    for stage in found.stages:
        assert stage.total_bytes == pytest.approx(sum(getattr(stage, part) for part in MEMORY_PARTS), rel=1e-12)
        assert all(getattr(stage, part) >= 0 for part in MEMORY_PARTS)
    assert found.peak_bytes == pytest.approx(max(stage.total_bytes for stage in found.stages))


@settings(max_examples=60)
@given(priced_layouts(), frameworks)
def test_a_step_is_never_quicker_than_its_flops_at_the_peak(case, framework):
    model, layout = case
    found = one(model, layout, framework=framework)
    steps = training_of(global_batch_size=256)
    flops = 3 * forward_flops_per_token(model, steps.seq_len, causal=True).total * steps.tokens_per_step
    assert found.step_s[0] >= flops / (layout.world_size * device().peak_flops_per_s["bf16"])
    assert found.throughput.mfu[0] <= 1


@settings(max_examples=60)
@given(priced_layouts())
def test_a_degree_of_one_sends_nothing_on_its_group(case):
    model, layout = case
    parts = one(model, layout).row(0).time
    if layout.tp == 1 and layout.etp == 1:
        assert parts.tp_s == 0
    if layout.cp == 1:
        assert parts.cp_s == 0
    if layout.ep == 1:
        assert parts.ep_s == 0
    if layout.pp == 1:
        assert parts.pp_s == parts.bubble_s == 0
    if layout.dp == layout.cp == 1 and layout.tp * layout.cp * layout.dp == layout.etp * layout.ep:
        assert parts.dp_s == 0


STATE_BYTES = {
    **dict.fromkeys(("megatron-core", "megatron-2022", "nanotron", "internevo"), (2, 4, 12)),
    **dict.fromkeys(("megatron-deepspeed", "deepspeed"), (2, 4 + 2, 12)),
    **dict.fromkeys(("fsdp1", "fsdp2", "jax"), (4, 4, 8)),
}
"""Weights, gradients and optimizer states of Adam and bf16, bytes a parameter, by hand from each framework's code."""


@settings(max_examples=80)
@given(st.sampled_from(preset_names()), st.sampled_from(sorted(STATE_BYTES)), st.sampled_from([0, 1, 2, 3]))
def test_each_framework_holds_its_bytes_a_parameter_of_every_preset(name, framework, zero_stage):
    model, dp = preset(name), 8
    stage = one(model, layout_of(model.num_layers, dp=dp, zero_stage=zero_stage), framework=framework).row(0).stages[0]
    weights, gradients, optimizer = (each * parameter_counts(model).total for each in STATE_BYTES[framework])
    held = weights / dp if zero_stage == 3 else weights
    if zero_stage == 2 and framework.startswith("fsdp"):
        held = weights / dp + weights / 2
    assert stage.weights_bytes == pytest.approx(held, rel=0.01)
    assert stage.gradients_bytes == pytest.approx(gradients / (dp if zero_stage >= 2 else 1), rel=0.01)
    assert stage.optimizer_bytes == pytest.approx(optimizer / (dp if zero_stage else 1), rel=0.01)


@settings(max_examples=60)
@given(priced_layouts(), frameworks, st.sampled_from(["naive", "flash"]))
def test_recomputing_more_never_holds_more(case, framework, attention):
    model, layout = case
    forms = [replace(layout, recompute=form) for form in ("none", "selective", "full")]
    found = [one(model, each, framework=framework, attention=attention).memory for each in forms]
    for less, more in pairwise(found):
        assert (more.activations_bytes <= less.activations_bytes * (1 + 1e-12)).all()
        assert (more.total_bytes <= less.total_bytes * (1 + 1e-12)).all()


@settings(max_examples=60)
@given(priced_layouts(), st.sampled_from(["megatron-core", "fsdp2", "deepspeed"]), st.integers(1, 6))
def test_a_stage_of_1f1b_holds_as_many_microbatches_as_are_in_flight(case, framework, microbatches):
    model, layout = case
    layout = replace(layout, num_model_chunks=1, schedule="1f1b" if layout.pp > 1 else "none")

    def held(number: int) -> np.ndarray:
        batch = number * layout.micro_batch_size * layout.dp
        return one(model, layout, framework=framework, global_batch_size=batch).memory.activations_bytes[0]

    alone, stages = held(1), np.arange(layout.pp)
    each = held(2)[0] - alone[0] if layout.pp > 1 else 0.0
    more = np.minimum(layout.pp - stages, microbatches) - 1
    inner = stages < layout.pp - 1
    assert held(microbatches)[inner] == pytest.approx((alone + more * each)[inner], rel=1e-9)
    assert held(microbatches)[-1] == pytest.approx(alone[-1])


@settings(max_examples=60)
@given(priced_layouts(), st.sampled_from(["megatron-core", "fsdp2", "deepspeed"]))
def test_splitting_a_sequence_over_more_ranks_never_holds_more_of_it(case, framework):
    model, layout = case
    wider = replace(layout, cp=2 * layout.cp, ep=layout.ep)
    less, more = (one(model, each, framework=framework).memory for each in (wider, layout))
    assert (less.activations_bytes <= more.activations_bytes * (1 + 1e-12)).all()
    assert (less.logits_bytes <= more.logits_bytes * (1 + 1e-12)).all()


def state_bytes(found: Estimates) -> float:
    """Weights, gradients and optimizer states of the fullest stage."""
    memory = found.memory
    return float((memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes).max())


@settings(max_examples=60)
@given(priced_layouts(), frameworks.filter(lambda name: name != "builtin"))
def test_states_do_not_grow_with_the_zero_stage(case, framework):
    """Before padding: the built-in worker's are counted with it, to the byte (tests/differential/test_memory.py)."""
    model, layout = case
    sizes = [state_bytes(one(model, replace(layout, zero_stage=zero), framework=framework)) for zero in range(4)]
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=60)
@given(priced_layouts())
def test_states_do_not_grow_with_tp(case):
    """Before padding: a vocabulary that every tp divides without it (the framework pads to 128 · tp)."""
    model = replace(case[0], vocab_size=128 * 8 * 32)
    shared = {"pp": case[1].pp, "zero_stage": case[1].zero_stage, "num_model_chunks": case[1].num_model_chunks}
    sizes = [state_bytes(one(model, layout_of(tp=tp, dp=8 // tp, **shared))) for tp in (1, 2, 4, 8)]
    whole = [state_bytes(one(model, layout_of(tp=tp, **{**shared, "zero_stage": 0}))) for tp in (1, 2, 4, 8)]
    assert whole == sorted(whole, reverse=True)
    if shared["zero_stage"] == 0:
        assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=60)
@given(priced_layouts(), st.floats(1e8, 1e12))
def test_what_fits_a_device_fits_a_larger_one(case, usable_bytes):
    model, layout = case
    columns, steps = LayoutColumns.from_layouts([layout]), training_of(global_batch_size=256)
    fits = [
        estimate_layout(model, cluster_of(device=device(usable_bytes=size)), steps, columns).fits
        for size in (usable_bytes, 2 * usable_bytes)
    ]
    assert fits[1] >= fits[0]


FASTER = {
    "network": lambda c: replace(c, network=replace(c.network, bytes_per_s=2 * c.network.bytes_per_s)),
    "scale-up link": lambda c: replace(c, scale_up=replace(c.scale_up, bytes_per_s=2 * c.scale_up.bytes_per_s)),
    "larger domains": lambda c: replace(c, scale_up_domain_size=16),
    "memory": lambda c: replace(c, device=device(memory_bytes_per_s=4e12)),
    "peak": lambda c: replace(
        c, device=device(peak_flops_per_s={k: 2 * v for k, v in device().peak_flops_per_s.items()})
    ),
    "host": lambda c: replace(c, device=device(launch_s=1e-6)),
}


@pytest.mark.parametrize("change", FASTER.values(), ids=FASTER.keys())
@settings(max_examples=40)
@given(priced_layouts(), frameworks, st.sampled_from(["all", "lora"]))
def test_a_faster_part_never_slows_the_step(change, case, framework, trainable):
    model, layout = case
    cluster = cluster_of(nodes=max(1, -(-layout.world_size // 8)))
    steps = training_of(global_batch_size=256, seq_len=4096, framework=framework, trainable=trainable)
    columns = LayoutColumns.from_layouts([layout])
    before, after = (estimate(model, c, steps, columns).step_s[0] for c in (cluster, change(cluster)))
    assert after <= before * (1 + 1e-9)


@settings(max_examples=60)
@given(st.lists(priced_layouts(), min_size=2, max_size=8), st.booleans(), frameworks)
def test_a_row_of_an_array_is_the_scalar_call_to_the_last_bit(cases, moe, framework):
    model = moe_model() if moe else dense_model()
    layouts = [layout for of, layout in cases if of == model]
    if not layouts:
        return
    cluster, steps = cluster_of(nodes=64), training_of(global_batch_size=256, tokens=1e9, framework=framework)
    together = estimate(model, cluster, steps, LayoutColumns.from_layouts(layouts), every_stage=False)
    for row, layout in enumerate(layouts):
        alone = estimate(model, cluster, steps, LayoutColumns.from_layouts([layout]))
        assert together.step_s[row] == alone.step_s[0]
        assert together.peak_bytes[row] == alone.peak_bytes[0]
        for part in ("time", "throughput", "budget"):
            for field in fields(getattr(alone, part)):
                pair = [getattr(getattr(found, part), field.name) for found in (together, alone)]
                np.testing.assert_array_equal(pair[0][row], pair[1][0], err_msg=field.name)


@settings(max_examples=60)
@given(priced_layouts(), st.sampled_from([1, 2, 3]))
def test_more_tokens_in_a_microbatch_never_take_less_memory(case, factor):
    model, layout = case
    larger = replace(layout, micro_batch_size=layout.micro_batch_size * factor)
    batch = 256 * 6
    small, large = (one(model, x, global_batch_size=batch).memory for x in (layout, larger))
    assert large.peak_bytes[0] >= small.peak_bytes[0] * (1 - 1e-12)


def steps_of(layout: Layout, model: ModelSpec | None = None, **training: Any) -> float:
    """Step time of a layout of the MoE model [s]."""
    return float(one(model or moe_model(), layout, **training).step_s[0])


experts_spread = st.sampled_from([(2, 8), (4, 8), (8, 8), (8, 16), (16, 16)])


@settings(max_examples=30)
@given(experts_spread, st.floats(0, 2), st.floats(0, 2))
def test_a_less_even_router_is_never_quicker(spread, one_cv, other_cv):
    ep, dp = spread
    low, high = sorted((one_cv, other_cv))
    layout = layout_of(ep=ep, dp=dp)
    assert steps_of(layout, expert_load_cv=low) <= steps_of(layout, expert_load_cv=high)


@settings(max_examples=30)
@given(experts_spread, st.sampled_from(["bf16", "fp16"]))
def test_overlap_and_graphs_never_slow_a_step_down(spread, precision):
    ep, dp = spread
    plain, beside = (layout_of(ep=ep, dp=dp, overlap_ep=overlap) for overlap in (False, True))
    assert steps_of(beside, precision=precision) <= steps_of(plain, precision=precision)
    captured = [steps_of(plain, precision=precision, cuda_graphs=how) for how in ("step", "modules", "none")]
    assert captured == sorted(captured)


@settings(max_examples=30)
@given(st.sampled_from([8, 16]), st.integers(1, 8))
def test_experts_within_a_domain_exchange_tokens_sooner_than_across(ep, top_k):
    model = moe_model(num_experts_per_token=top_k)
    layout = layout_of(ep=ep, dp=16)
    steps = training_of(global_batch_size=256)
    columns = LayoutColumns.from_layouts([layout])
    near, far = (
        estimate(model, replace(cluster_of(nodes=2), scale_up_domain_size=size), steps, columns).row(0)
        for size in (16, ep // 2)
    )
    assert near.time.ep_s < far.time.ep_s


@settings(max_examples=40)
@given(priced_layouts(), frameworks, st.sampled_from([2, 3, 8]))
def test_a_larger_batch_never_trains_fewer_tokens_a_second(case, framework, factor):
    once, more = (one(*case, framework=framework, global_batch_size=256 * times) for times in (1, factor))
    assert more.throughput.tokens_per_s[0] >= once.throughput.tokens_per_s[0] * (1 - 1e-9)


@settings(max_examples=40)
@given(priced_layouts(), frameworks.filter(lambda name: name != "builtin"))
def test_launches_that_wait_never_quicken_the_step(case, framework):
    usual, waiting = (one(*case, framework=framework, launch_blocking=waits) for waits in (False, True))
    assert waiting.step_s[0] >= usual.step_s[0]
