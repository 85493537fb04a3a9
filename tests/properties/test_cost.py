"""What must hold of every estimate, whatever the layout."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cluster_of, dense_model, device, layout_of, moe_model, training_of

from tpdpdash.cost.estimate import Estimates, estimate, estimate_layout
from tpdpdash.cost.result import MEMORY_PARTS, TIME_PARTS
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import Layout
from tpdpdash.model.counts import forward_flops_per_token
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


@settings(deadline=None, max_examples=60)
@given(priced_layouts(), frameworks)
def test_parts_add_up_exactly(case, framework):
    found = one(*case, framework=framework).row(0)
    assert found.step_s == sum(found.parts[name] for name in TIME_PARTS)
    assert all(found.parts[name] >= 0 for name in TIME_PARTS)
    for stage in found.stages:
        assert stage.total_bytes == pytest.approx(sum(getattr(stage, part) for part in MEMORY_PARTS), rel=1e-12)
        assert all(getattr(stage, part) >= 0 for part in MEMORY_PARTS)
    assert found.peak_bytes == pytest.approx(max(stage.total_bytes for stage in found.stages))


@settings(deadline=None, max_examples=60)
@given(priced_layouts(), frameworks)
def test_a_step_is_never_quicker_than_its_flops_at_the_peak(case, framework):
    model, layout = case
    found = one(model, layout, framework=framework)
    steps = training_of(global_batch_size=256)
    flops = 3 * forward_flops_per_token(model, steps.seq_len, causal=True).total * steps.tokens_per_step
    assert found.step_s[0] >= flops / (layout.world_size * device().peak_flops_per_s["bf16"])
    assert found.throughput.mfu[0] <= 1


@settings(deadline=None, max_examples=60)
@given(priced_layouts())
def test_a_degree_of_one_sends_nothing_on_its_group(case):
    model, layout = case
    parts = one(model, layout).row(0).parts
    if layout.tp == 1 and layout.etp == 1:
        assert parts["tp_s"] == 0
    if layout.cp == 1:
        assert parts["cp_s"] == 0
    if layout.ep == 1:
        assert parts["ep_s"] == 0
    if layout.pp == 1:
        assert parts["pp_s"] == parts["bubble_s"] == 0
    if layout.dp == layout.cp == 1 and layout.tp * layout.cp * layout.dp == layout.etp * layout.ep:
        assert parts["dp_s"] == 0


def state_bytes(found: Estimates) -> float:
    """Weights, gradients and optimizer states of the fullest stage."""
    memory = found.memory
    return float((memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes).max())


@settings(deadline=None, max_examples=60)
@given(priced_layouts(), frameworks)
def test_states_do_not_grow_with_the_zero_stage(case, framework):
    model, layout = case
    sizes = [state_bytes(one(model, replace(layout, zero_stage=zero), framework=framework)) for zero in range(4)]
    assert sizes == sorted(sizes, reverse=True)


@settings(deadline=None, max_examples=60)
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


@settings(deadline=None, max_examples=60)
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
@settings(deadline=None, max_examples=40)
@given(priced_layouts(), frameworks, st.sampled_from(["all", "lora"]))
def test_a_faster_part_never_slows_the_step(change, case, framework, trainable):
    model, layout = case
    cluster = cluster_of(nodes=max(1, -(-layout.world_size // 8)))
    steps = training_of(global_batch_size=256, seq_len=4096, framework=framework, trainable=trainable)
    columns = LayoutColumns.from_layouts([layout])
    before, after = (estimate(model, c, steps, columns).step_s[0] for c in (cluster, change(cluster)))
    assert after <= before * (1 + 1e-9)


@settings(deadline=None, max_examples=60)
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


@settings(deadline=None, max_examples=60)
@given(priced_layouts(), st.sampled_from([1, 2, 3]))
def test_more_tokens_in_a_microbatch_never_take_less_memory(case, factor):
    model, layout = case
    larger = replace(layout, micro_batch_size=layout.micro_batch_size * factor)
    batch = 256 * 6
    small, large = (one(model, x, global_batch_size=batch).memory for x in (layout, larger))
    assert large.peak_bytes[0] >= small.peak_bytes[0] * (1 - 1e-12)
