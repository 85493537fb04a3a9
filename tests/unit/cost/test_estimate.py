"""Estimates of single jobs: JSON, messages, timeline, budget, and how figures move."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from strategies import cluster_of, dense_model, device, moe_model, training_of

from tpdpdash.cost.estimate import estimate_job
from tpdpdash.cost.messages import collectives_of
from tpdpdash.cost.result import MEMORY_PARTS, TIME_PARTS, Estimate
from tpdpdash.cost.timeline import step_timeline
from tpdpdash.faults import InvalidInputError
from tpdpdash.job import Job
from tpdpdash.layout.layout import LayoutPins

ZERO_COST = 1e-12


def job_of(nodes: int = 2, model: Any = None, price: float | None = None, **given: Any) -> Job:
    """A job on nodes of eight; keys of LayoutPins are pins, others belong to training."""
    pins = {k: v for k, v in given.items() if k in LayoutPins.__dataclass_fields__}
    training = {k: v for k, v in given.items() if k not in pins}
    return Job(
        name="small",
        model=model or dense_model(),
        cluster=cluster_of(nodes, price_per_device_hour=price),
        training=training_of(**training),
        pins=LayoutPins(**pins),
    )


JOBS = {
    "tensor and pipeline": job_of(tp=4, pp=2, recompute="full"),
    "interleaved": job_of(tp=2, pp=4, num_model_chunks=2),
    "context": job_of(tp=2, cp=2, seq_len=4096),
    "experts": job_of(model=moe_model(), tp=2, ep=8, etp=1, pp=2),
    "zero 3": job_of(zero_stage=3, framework="fsdp2"),
    "hybrid shards": job_of(zero_stage=3, dp_shard_size=8, framework="fsdp2"),
    "tied": job_of(model=dense_model(tied_embeddings=True), pp=4),
    "without sequence parallelism": job_of(tp=8, sequence_parallel=False),
}


@pytest.fixture(params=JOBS.values(), ids=JOBS.keys())
def case(request: pytest.FixtureRequest) -> tuple[Job, Estimate]:
    """A job and its estimate."""
    return request.param, estimate_job(request.param)


def test_json_has_the_keys_of_the_contract(case):
    found = json.loads(json.dumps(case[1].to_json(), allow_nan=False))
    assert list(found) == ["layout", "fits", "reasons", "memory", "time", "throughput", "budget"]
    assert set(found["memory"]["stages"][0]) == {"stage", *MEMORY_PARTS, "total_bytes"}
    assert set(found["time"]["parts"]) == set(TIME_PARTS)
    assert found["time"]["step_s"] == sum(found["time"]["parts"].values())
    assert found["time"]["error_frac"] is None
    assert set(found["budget"].values()) == {None}
    assert found["fits"] is True
    assert found["reasons"] == []
    assert found["layout"]["layers_per_stage"] == list(case[1].layout.layers_per_stage)


def test_messages_of_the_critical_stage_add_up_to_its_parts(case):
    job, found = case
    stage = max(found.stages, key=lambda s: s.forward_s + s.backward_s).stage
    rank = stage * found.layout.world_size // found.layout.pp
    shown: Counter[str] = Counter()
    for message in collectives_of(job, found, rank):
        assert 0 <= message.exposed_s <= message.seconds * (1 + 1e-9)
        assert message.bytes_each > 0
        shown[message.group] += message.exposed_s
    for group in ("tp", "cp", "ep"):
        assert shown[group] == pytest.approx(found.parts[f"{group}_s"], abs=ZERO_COST), group
    assert shown["pp"] <= found.parts["pp_s"] * (1 + 1e-9)
    assert shown["dp"] <= found.parts["dp_s"] * (1 + 1e-9)


def test_the_timeline_ends_with_the_step(case):
    job, found = case
    drawn = step_timeline(job, found)
    assert drawn.total_s == pytest.approx(found.step_s, rel=0.02)
    assert {bar.stage for bar in drawn.bars if bar.part == "optimizer"} == set(range(found.layout.pp))


def test_a_rank_alone_sends_nothing():
    job = job_of(1, framework="builtin", precision="fp32")
    alone = replace(job, cluster=cluster_of(1, 1))
    assert collectives_of(alone, estimate_job(alone)) == []


def test_faults_of_the_layout_are_raised_together():
    with pytest.raises(InvalidInputError) as raised:
        estimate_job(job_of(tp=4, micro_batch_size=7, num_model_chunks=3, pp=2))
    assert len(raised.value.faults) > 1


def test_what_does_not_fit_says_so():
    job = job_of()
    found = estimate_job(replace(job, cluster=replace(job.cluster, device=device(usable_bytes=1e9))))
    assert not found.fits
    assert found.to_json()["reasons"] == ["out_of_memory"]


def test_the_budget_follows_from_tokens_power_and_price():
    found = estimate_job(job_of(tokens=1e12, price=2.0))
    seconds = 1e12 / found.throughput["tokens_per_s"]
    assert found.budget["days"] == pytest.approx(seconds / 86400)
    assert found.budget["device_hours"] == pytest.approx(16 * seconds / 3600)
    assert found.budget["energy_kwh"] == pytest.approx(found.budget["device_hours"] * 0.4)
    assert found.budget["cost"] == pytest.approx(2 * found.budget["device_hours"])


def test_without_a_price_the_cost_is_unknown_and_the_days_are_not():
    found = estimate_job(job_of(tokens=1e12)).to_json()["budget"]
    assert found["cost"] is None
    assert found["days"] > 0


def test_full_recompute_costs_a_forward_pass_and_its_messages():
    plain, full = (estimate_job(job_of(tp=8, recompute=how)) for how in ("none", "full"))
    layers = plain.parts["compute_s"]
    assert 0.2 * layers < full.parts["recompute_s"] < 0.45 * layers
    assert full.parts["tp_s"] > 1.3 * plain.parts["tp_s"]
    assert full.stages[0].activations_bytes < 0.5 * plain.stages[0].activations_bytes


def test_selective_recompute_saves_next_to_nothing_with_fused_attention():
    """r030: the scores are already gone; a planner must not subtract them twice."""
    plain, selective = (estimate_job(job_of(recompute=how)) for how in ("none", "selective"))
    assert selective.peak_bytes > 0.85 * plain.peak_bytes


def test_attention_without_fusion_keeps_its_scores():
    """r002: 5 a s² bytes a layer and sample with dropout, in 16 bits."""
    job = job_of(dropout=0.1)
    fused, naive = (estimate_job(replace(job, training=replace(job.training, attention=a))) for a in ("flash", "naive"))
    more = naive.stages[0].activations_bytes - fused.stages[0].activations_bytes
    assert more == pytest.approx(8 * 16 * (5 * 1024 - 4) * 1024)


def test_sharding_over_more_ranks_frees_states_only():
    """r018, r037: from 8 to 16 ranks half of the states goes; activations and logits stay."""
    few, many = (estimate_job(job_of(n, zero_stage=3, framework="fsdp2")) for n in (1, 2))
    few_states, many_states = (sum(getattr(x.stages[0], p) for p in MEMORY_PARTS[:3]) for x in (few, many))
    assert few_states == pytest.approx(2 * many_states)
    assert few.stages[0].activations_bytes == many.stages[0].activations_bytes
    assert few.peak_bytes - many.peak_bytes == pytest.approx(many_states)


def test_logits_of_a_wide_vocabulary_are_counted():
    """r034: 32k tokens of a vocabulary of 151,936 take 18.55 GiB a fp32 copy, and the loss holds several."""
    model = dense_model(vocab_size=151936)
    found = estimate_job(job_of(model=model, seq_len=32768, global_batch_size=16))
    assert found.stages[-1].logits_bytes > 18.5 * 2**30


def test_offloaded_optimizer_states_leave_the_device():
    kept, moved = (estimate_job(job_of(offload_optimizer=o)) for o in (False, True))
    assert moved.stages[0].optimizer_bytes == 0 < kept.stages[0].optimizer_bytes


def test_gpipe_holds_every_microbatch_and_1f1b_as_many_as_stages():
    one, all_of = (estimate_job(job_of(pp=4, schedule=s, dp=4)) for s in ("1f1b", "gpipe"))
    """Besides what is kept a stage holds the gradients inside one layer."""
    ratio = all_of.stages[0].activations_bytes / one.stages[0].activations_bytes
    assert 0.85 * one.num_microbatches / 4 < ratio <= one.num_microbatches / 4


def test_what_an_allocator_reserves_besides_decides_no_fit():
    """It gives reserved blocks back before it fails: the reserve fills what room there is, and no more."""
    job = job_of(framework="megatron-deepspeed", gradient_dtype="fp16", precision="fp16", tp=2)
    roomy = estimate_job(job)
    held = roomy.peak_bytes - roomy.stages[0].overhead_bytes
    assert roomy.stages[0].overhead_bytes == pytest.approx(1e9 + 0.12 * held)
    tight = replace(job, cluster=replace(job.cluster, device=device(usable_bytes=held + 1.05e9)))
    assert estimate_job(tight).fits
    assert estimate_job(tight).peak_bytes == pytest.approx(held + 1.05e9)


def test_more_ranks_wait_for_a_slower_slowest_one():
    """A fit to weak-scaling runs: 0.3 % with each doubling, beside the messages that grow."""
    few, many = (estimate_job(job_of(n, tp=8, global_batch_size=64 * n, zero_stage=0)).parts for n in (1, 8))
    assert many["compute_s"] > few["compute_s"]


def test_heads_whose_width_is_no_multiple_of_8_slow_unfused_attention_down():
    """BigScience tr11: heads of 108 and 150 took a fifth to a quarter longer a step than those of 112 and 144."""
    steps = [
        estimate_job(job_of(model=dense_model(head_dim=d), attention="naive", seq_len=4096)).step_s for d in (104, 108)
    ]
    assert steps[1] > 1.3 * steps[0]
