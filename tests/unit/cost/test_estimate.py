"""Estimates of single jobs: JSON, messages, timeline, budget, and how figures move."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from strategies import cluster_of, dense_model, device, moe_model, training_of

from tpdpdash.cost.estimate import estimate_job
from tpdpdash.cost.figures import TIME_PARTS
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.messages import collectives_of
from tpdpdash.cost.result import MEMORY_PARTS, Estimate
from tpdpdash.cost.timeline import step_timeline
from tpdpdash.faults import InvalidInputError
from tpdpdash.job import Job
from tpdpdash.layout.layout import LayoutPins

ZERO_COST = 1e-12


MLA = {"kv_lora_rank": 128, "q_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}


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
    "modules that run again": job_of(
        model=moe_model(shared_expert_ffn_hidden_size=512),
        tp=2,
        ep=8,
        etp=1,
        recompute="selective",
        recompute_modules=("shared_experts",),
    ),
    "compressed attention": job_of(model=dense_model(**MLA), tp=4, recompute="full"),
    "zero 3": job_of(zero_stage=3, framework="fsdp2"),
    "zero 3 in a pipeline": job_of(pp=2, zero_stage=3, framework="fsdp2"),
    "hybrid shards": job_of(zero_stage=3, dp_shard_size=8, framework="fsdp2"),
    "gathered by slices": job_of(framework="internevo", zero_stage=1),
    "tied": job_of(model=dense_model(tied_embeddings=True), pp=4),
    "without sequence parallelism": job_of(tp=8, sequence_parallel=False),
    "zb-1p": job_of(pp=4, schedule="zb-1p"),
    "zb-2p": job_of(pp=4, schedule="zb-2p", framework="jax"),
    "zb-v": job_of(pp=2, schedule="zb-v", framework="fsdp2", zero_stage=1),
    "dualpipe-v, experts": job_of(model=moe_model(), pp=2, ep=8, schedule="dualpipe-v"),
    "dualpipe, tied": job_of(model=dense_model(tied_embeddings=True), pp=4, schedule="dualpipe"),
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
    assert found["time"]["error_frac"] > 0
    assert set(found["budget"].values()) == {None, 1.0}, "nothing is known without tokens, but that nothing is lost"
    assert found["budget"]["goodput_frac"] == 1.0
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
        assert shown[group] == pytest.approx(getattr(found.time, f"{group}_s"), abs=ZERO_COST), group
    assert shown["pp"] <= found.time.pp_s * (1 + 1e-9)
    assert shown["dp"] <= found.time.dp_s * (1 + 1e-9)


def test_the_timeline_ends_with_the_step(case):
    job, found = case
    drawn = step_timeline(job, found)
    assert 0.98 * found.step_s <= drawn.total_s <= 1.02 * (found.step_s + drawn.skew_s)
    assert (drawn.skew_s > 0) == (job.pins.schedule in ("zb-1p", "zb-2p"))
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
    seconds = 1e12 / found.throughput.tokens_per_s
    assert found.budget.days == pytest.approx(seconds / 86400)
    assert found.budget.device_hours == pytest.approx(16 * seconds / 3600)
    assert found.budget.energy_kwh == pytest.approx(found.budget.device_hours * 0.4)
    assert found.budget.cost == pytest.approx(2 * found.budget.device_hours)


def test_without_a_price_the_cost_is_unknown_and_the_days_are_not():
    found = estimate_job(job_of(tokens=1e12)).to_json()["budget"]
    assert found["cost"] is None
    assert found["days"] > 0


def test_full_recompute_costs_a_forward_pass_and_its_messages():
    plain, full = (estimate_job(job_of(tp=8, recompute=how)) for how in ("none", "full"))
    layers = plain.time.compute_s
    assert 0.2 * layers < full.time.recompute_s < 0.45 * layers
    assert full.time.tp_s > 1.3 * plain.time.tp_s
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


def test_a_share_of_the_optimizer_states_can_stay_on_the_device():
    """Megatron's --optimizer-offload-fraction: memory in proportion, the device's share updated beside the host's."""
    whole, moved, half = (
        estimate_job(job_of(offload_optimizer=o, optimizer_offload_fraction=f))
        for o, f in ((False, 1.0), (True, 1.0), (True, 0.5))
    )
    at = [each.stages[0].optimizer_bytes for each in (moved, half, whole)]
    assert at[1] - at[0] == pytest.approx(at[2] - at[1])
    assert at[1] == pytest.approx(at[2] / 2)
    fixed = framework_habits("megatron-core").step_s
    took = [each.time.optimizer_s - fixed for each in (moved, half)]
    assert took[1] == pytest.approx(took[0] / 2)


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
    job = job_of(framework="megatron-deepspeed", tp=2)
    roomy = estimate_job(job)
    held = roomy.peak_bytes - roomy.stages[0].overhead_bytes
    assert roomy.stages[0].overhead_bytes == pytest.approx(1e9 + 0.12 * held)
    tight = replace(job, cluster=replace(job.cluster, device=device(usable_bytes=held + 1.05e9)))
    assert estimate_job(tight).fits
    assert estimate_job(tight).peak_bytes == pytest.approx(held + 1.05e9)


def test_more_ranks_wait_for_a_slower_slowest_one():
    """A fit to weak-scaling runs: 0.3 % with each doubling, beside the messages that grow."""
    few, many = (estimate_job(job_of(n, tp=8, global_batch_size=64 * n, zero_stage=0)).time for n in (1, 8))
    assert many.compute_s > few.compute_s


def test_heads_whose_width_is_no_multiple_of_8_slow_unfused_attention_down():
    """BigScience tr11: heads of 108 and 150 took a fifth to a quarter longer a step than those of 112 and 144."""
    steps = [
        estimate_job(job_of(model=dense_model(head_dim=d), attention="naive", seq_len=4096)).step_s for d in (104, 108)
    ]
    assert steps[1] > 1.3 * steps[0]


def test_weights_that_are_gathered_slice_by_slice_cost_launches_for_every_rank_and_parameter():
    """InternEvo's and nanotron's ZeRO 1: 8 layers of 9 parameters, 16 ranks, 2 launches of 5 µs each; sharding over a
    node has fewer."""
    wide, narrow = (estimate_job(job_of(framework="internevo", dp_shard_size=n)).time.dp_s for n in (16, 8))
    assert 0.8 < (wide - narrow) / (8 * 9 * (16 - 8) * 2 * 5e-6) < 1.2


def test_gradients_that_are_cast_before_they_are_reduced_take_half_of_the_messages():
    jobs = [job_of(framework=framework, zero_stage=3) for framework in ("fsdp1", "fsdp2")]
    sizes = [m.bytes_each for job in jobs for m in collectives_of(job, estimate_job(job)) if m.what == "reduce-scatter"]
    assert 2 * sizes[0] == sizes[1]


def test_packed_sequences_meet_their_own_keys_only():
    """Attention of 256 of 4,096 tokens is a sixteenth; scores that are written out are masked, not skipped."""
    keys = {"seq_len": 4096, "framework": "fsdp2"}
    model = dense_model(num_attention_heads=64, num_kv_heads=64)
    found = {
        (packed, attention): estimate_job(job_of(model=model, packed_seq_len=packed, attention=attention, **keys))
        for packed in (None, 256, 128)
        for attention in ("flash", "naive")
    }
    saved = [found[a, "flash"].time.compute_s - found[b, "flash"].time.compute_s for a, b in ((None, 256), (256, 128))]
    assert saved[0] == pytest.approx(saved[1] * (4096 - 256) / (256 - 128), rel=0.01)
    assert found[None, "naive"].time == found[256, "naive"].time
    assert found[None, "flash"].throughput.model_flops_per_s_per_device > 0
    flops = [found[p, "naive"].throughput.mfu for p in (None, 256)]
    assert flops[1] < flops[0]


def test_tokens_that_go_out_in_8_bits_and_come_back_in_16_save_a_quarter_of_the_exchange():
    """DeepSeek-V3, section 3.3.3: one byte and a scale for 128 against two; each way has its latency besides."""
    model, keys = moe_model(), {"ep": 16, "nodes": 2, "framework": "fsdp2"}
    both, one = (estimate_job(job_of(model=model, fp8_dispatch=f, **keys)) for f in (False, True))
    share = one.time.ep_s / both.time.ep_s
    assert share == pytest.approx((1 + (1 + 4 / 128) / 2) / 2, abs=0.03)


def test_context_parallel_messages_are_as_long_as_what_they_send_and_hide():
    """A ring hides beside attention; gathered keys do not; divided heads send each token once."""
    keys = {"cp": 8, "seq_len": 32768, "global_batch_size": 2, "tp": 1}
    ring, gathered, divided = (estimate_job(job_of(cp_comm_type=kind, **keys)) for kind in ("p2p", "all_gather", "a2a"))
    assert ring.time.cp_s < gathered.time.cp_s
    assert divided.time.cp_s < gathered.time.cp_s
    for found, what in ((gathered, "all-gather (keys, values)"), (divided, "all-to-all (heads)")):
        job = job_of(cp_comm_type="a2a" if found is divided else "all_gather", **keys)
        sent = [m for m in collectives_of(job, found) if m.group == "cp"]
        assert {m.what for m in sent} == {what}
        assert sum(m.exposed_s for m in sent) == pytest.approx(found.time.cp_s)


def test_torchs_ring_adds_up_its_parts_once_less_than_it_has_ranks():
    """32 and 8 bytes an element forward, 11.5 and 47 backward, of queries and of keys repeated for every head."""
    keys = {"seq_len": 32768, "global_batch_size": 1, "framework": "fsdp2", "cp": 8, "nodes": 1}
    ring, gathered = (estimate_job(job_of(cp_comm_type=kind, **keys)) for kind in ("p2p", "all_gather"))
    elements = 32768 / 8 * 1024
    merged = 8 * 7 * elements * (32 + 8 + 11.5 + 47) / (2e12 * 0.8)
    assert ring.time.cp_s == pytest.approx(merged, rel=0.2)
    assert gathered.time.cp_s != ring.time.cp_s


def test_where_launches_wait_nothing_runs_beside_another():
    usual, waiting = (estimate_job(job_of(tp=4, launch_blocking=waits)).time for waits in (False, True))
    assert waiting.tp_s > usual.tp_s
    assert waiting.dp_s > usual.dp_s
    assert waiting.compute_s > usual.compute_s


def _compute_s(rows: int, **given: Any) -> float:
    return estimate_job(job_of(model=dense_model(vocab_size=rows), **given)).time.compute_s


@pytest.mark.parametrize("given", [{"framework": "fsdp1"}, {"framework": "fsdp2", "compiled": False}])
def test_a_vocabulary_of_odd_rows_makes_the_head_slow(given):
    assert _compute_s(50303, **given) > 1.1 * _compute_s(50304, **given)


def test_a_compiler_pads_a_vocabulary_of_odd_rows():
    assert _compute_s(50303, framework="fsdp2") == pytest.approx(_compute_s(50304, framework="fsdp2"), rel=1e-3)


def test_a_compiled_loss_reads_logits_in_16_bits_three_times_and_writes_their_gradient():
    """An eager one reads and writes each operator's fp32 tensors."""
    habits = framework_habits("fsdp2")
    assert (habits.loss_traffic_bytes(True), habits.loss_traffic_bytes(False)) == (3 * 2 + 2, 9 * 4)
    own = framework_habits("megatron-core")
    assert own.loss_traffic_bytes(True) == own.loss_traffic_bytes(False) == own.logit_traffic_bytes
    more = [_compute_s(65536, framework="fsdp2", compiled=each) for each in (True, False)]
    less = [_compute_s(64000, framework="fsdp2", compiled=each) for each in (True, False)]
    compiled, eager = (many - few for many, few in zip(more, less, strict=True))
    rates = job_of().cluster.device
    job = job_of(framework="fsdp2")
    tokens = job.training.global_batch_size * job.training.seq_len / job.layout().dp
    moved = (36 - 8) * tokens * 1536 / (rates.memory_bytes_per_s * rates.memory_efficiency)
    assert eager - compiled == pytest.approx(moved, rel=0.03)


@pytest.mark.parametrize(
    ("framework", "whole"), [("megatron-core", 0), ("nanotron", 0), ("deepspeed", 2), ("megatron-deepspeed", 2)]
)
def test_deepspeed_reduces_whole_gradients_up_to_zero_2(framework, whole):
    """Twice the bytes of a reduce-scatter, and named so."""
    jobs = [job_of(framework=framework, zero_stage=zero, dp=16) for zero in range(4)]
    names = [
        next(m.what for m in collectives_of(job, estimate_job(job)) if m.group == "dp" and m.when == "backward")
        for job in jobs
    ]
    assert names == ["all-reduce" if zero <= whole else "reduce-scatter" for zero in range(4)]


def test_deepspeeds_update_waits_for_its_gather():
    """Up to ZeRO 2 nothing runs beside it, asked or not; ZeRO 3 prefetches."""

    def gained(framework, zero):
        plain, beside = (
            estimate_job(job_of(framework=framework, zero_stage=zero, dp=16, overlap_param_gather=overlap)).time.dp_s
            for overlap in (False, True)
        )
        return plain - beside

    assert gained("deepspeed", 1) == 0
    assert gained("deepspeed", 3) > 0
    assert gained("megatron-core", 1) > 0
