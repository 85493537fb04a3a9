"""The search against a loop over every layout, one at a time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from strategies import cluster_of, dense_model, device, moe_model, training_of

from tpdpdash.cost.estimate import estimate_layout
from tpdpdash.cost.result import OUT_OF_MEMORY, Estimate
from tpdpdash.job import Job
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import Layout, LayoutPins
from tpdpdash.layout.resolve import draft_layout
from tpdpdash.layout.rules import check_layout
from tpdpdash.search.plan import KEPT_ROWS, Plan, plan
from tpdpdash.units import divisors


def job_of(nodes: int = 1, moe: bool = False, usable_bytes: float = 78e9, **given: Any) -> Job:
    """A small job: 8 layers, 16 heads on nodes of four."""
    pins = LayoutPins(**{k: v for k, v in given.items() if k in LayoutPins.__dataclass_fields__})
    training = {k: v for k, v in given.items() if k not in LayoutPins.__dataclass_fields__}
    return Job(
        name="small",
        model=moe_model() if moe else dense_model(),
        cluster=cluster_of(nodes, 4, device=device(usable_bytes=usable_bytes)),
        training=training_of(**{"global_batch_size": 16, **training}),
        pins=pins,
    )


SPLITS = {
    1: [((8,), False, False)],
    2: [((4, 4), False, False), ((5, 3), False, True)],
    4: [((2, 2, 2, 2), False, False), ((2, 2, 3, 1), False, True), ((1, 3, 3, 1), True, True),
        ((1, 2, 3, 2), True, False)],
    8: [((1,) * 8, False, False)],
}  # fmt: skip
"""Stage splits of eight layers whose head is worth two of them, and what counts as a layer."""


LIGHTER_LAST = {2: [((6, 2), False, False), ((7, 1), False, False)]}
"""And of the model with experts, whose head is worth four and a half."""


SCHEDULES = {
    "megatron-core": ("1f1b", "interleaved"),
    "fsdp2": ("gpipe", "1f1b", "interleaved", "zb-1p", "zb-v", "dualpipe-v"),
    "builtin": ("gpipe", "1f1b", "interleaved", "zb-1p", "zb-v", "dualpipe-v"),
}
"""Schedules that each framework has."""
FOLDED = {2: [((4, 4), 0, 0), ((3, 5), 0, 1)], 4: [((2, 2, 2, 2), 0, 0), ((1, 2, 2, 3), 0, 1)], 8: SPLITS[8]}
"""Splits of a schedule that puts both ends of the model on the first rank."""


def pipelines(pp: int, framework: str, moe: bool) -> list[dict[str, Any]]:
    """Every schedule, split and number of chunks on pp ranks."""
    found = []
    for schedule in SCHEDULES[framework] if pp > 1 else ("none",):
        is_v = schedule in ("zb-v", "dualpipe-v")
        lighter = LIGHTER_LAST.get(pp, []) if moe else []
        for layers, embedding, loss in FOLDED[pp] if is_v else SPLITS[pp] + lighter:
            units = math.gcd(layers[0] + embedding, *layers[1:-1], layers[-1] + loss)
            chunks = divisors(units)[1:] if schedule == "interleaved" else [2] if is_v else [1]
            keys = {
                "layers_per_stage": layers,
                "account_for_embedding": bool(embedding),
                "account_for_loss": bool(loss),
            }
            found += [keys | {"schedule": schedule, "num_model_chunks": v} for v in chunks]
    return found


def recomputes(pp: int, megatron: bool) -> list[dict[str, Any]]:
    """Every form, and with Megatron a quarter, half and three quarters of a stage's layers, or two and four at once."""
    found: list[dict[str, Any]] = [{"recompute": how} for how in ("none", "selective", "full")]
    some = {2 * 8 // pp // 8, 4 * 8 // pp // 8, 6 * 8 // pp // 8} - {0} if megatron else set()
    block = {"recompute": "full", "recompute_method": "block"}
    uniform = {"recompute": "full", "recompute_method": "uniform"}
    several = [number for number in (2, 4) if number < 8 // pp] if megatron else []
    return [
        *found,
        *(uniform | {"recompute_num_layers": number} for number in several),
        *(block | {"recompute_num_layers": number} for number in some),
    ]


def shards(dp: int, pp: int, tp: int, job: Job) -> list[dict[str, Any]]:
    """ZeRO over all replicas, and over those of one node of four."""
    whole = job.training.framework in ("megatron-core", "builtin") and pp > 1 and job.pins.zero_stage is None
    stages = (1,) if dp == 1 else (0, 1) if whole else (0, 1, 2, 3)
    sizes = [dp] + ([4 // tp] if 1 < 4 // tp < dp and job.training.framework != "builtin" else [])
    return [{"zero_stage": z, "dp_shard_size": size} for z in stages for size in sizes if z or size == dp]


def every_layout(job: Job) -> list[Layout]:
    """The whole space by nested loops, written apart from the search."""
    model, pins, world, found = job.model, job.pins, job.cluster.world_size, []
    framework = job.training.framework
    for pp, tp in itertools.product(divisors(world), divisors(world)):
        if world % (pp * tp) or pp > model.num_layers or tp > model.num_attention_heads:
            continue
        dp = world // (pp * tp)
        share = job.training.global_batch_size // dp
        sizes = divisors(share) if share * dp == job.training.global_batch_size else [1]
        experts = [(ep, etp) for ep in divisors(16) for etp in sorted({1, tp}) if tp * dp % (ep * etp) == 0]
        for (ep, etp), size, split, how, pipeline, shard in itertools.product(
            experts if model.is_moe else [(1, tp)], sizes, (True, False) if tp > 1 else (False,),
            recomputes(pp, framework == "megatron-core"),
            pipelines(pp, framework, model.is_moe), shards(dp, pp, tp, job),
        ):  # fmt: skip
            keys = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "etp": etp, "micro_batch_size": size,
                    "sequence_parallel": split, **how, **pipeline, **shard}  # fmt: skip
            # On nodes of four, pipelines inside a node need fewer than four ranks before them.
            orders = ["tp-cp-ep-dp-pp"]
            if world > 4 and tp < 4 and pp > 1 and dp > 1 and not model.is_moe:
                orders.append("tp-cp-ep-pp-dp")
            for order in orders:
                keys["rank_order"] = order
                if all(getattr(pins, key) in (None, value) for key, value in keys.items()):
                    draft = draft_layout(LayoutPins(**pins.given() | keys), model, job.training, world).layout
                    found.append(with_legal_groups(draft, job.training.global_batch_size))
    return found


def with_legal_groups(layout: Layout, batch: int) -> Layout:
    """Where pp microbatches in a group leave a rest that Megatron refuses, the next size that leaves none."""
    count, pp = batch / (layout.micro_batch_size * layout.dp), layout.pp
    if layout.schedule != "interleaved" or count <= pp or count % 1 or count % pp == 0:
        return layout
    legal = next(g for g in range(pp, int(count) + 1) if count % g == 0 or count % g >= pp)
    return replace(layout, microbatch_group_size_per_vp_stage=legal)


def by_force(job: Job) -> tuple[list[Layout], list[Estimate], dict[str, int]]:
    """(all layouts, feasible estimates, refusals by reason), each layout asked alone."""
    layouts, feasible, refused = every_layout(job), [], {}
    for layout in layouts:
        faults = check_layout(job.model, job.training, job.cluster, layout)
        reason = faults[0].code if faults else None
        if reason is None:
            found = estimate_layout(job.model, job.cluster, job.training, LayoutColumns.from_layouts([layout]))
            reason = None if found.fits else OUT_OF_MEMORY
            if reason is None:
                feasible.append(found)
        if reason is not None:
            refused[reason] = refused.get(reason, 0) + 1
    return layouts, feasible, refused


CASES = {
    "one node": job_of(),
    "two nodes that just fit": job_of(2, usable_bytes=3e9, zero_stage=1),
    "experts": job_of(moe=True, recompute="none"),
    "pins": job_of(2, tp=2, recompute="full"),
    "fsdp": job_of(framework="fsdp2", micro_batch_size=1),
    "the built-in worker": job_of(framework="builtin", precision="fp32"),
    "a batch that few replicas divide": job_of(global_batch_size=6),
    "groups that leave a rest": job_of(global_batch_size=12, recompute="none", zero_stage=1),
    "pipelines over nodes": job_of(2, micro_batch_size=1, recompute="full", tp=1),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def both(request: pytest.FixtureRequest) -> tuple[Job, Plan, tuple[list[Layout], list[Estimate], dict[str, int]]]:
    """A job, its plan, and the same by brute force."""
    return request.param, plan(request.param, top=1000), by_force(request.param)


def test_the_search_considers_every_layout_once(both):
    _, found, (layouts, feasible, _) = both
    assert len(set(layouts)) == len(layouts)
    assert (found.considered, found.feasible) == (len(layouts), len(feasible))
    assert found.considered == found.feasible + sum(found.refused.values())


def test_refusals_are_counted_by_the_same_reasons(both):
    assert both[1].refused == both[2][2]


def simpler(estimate: Estimate) -> tuple[Any, ...]:
    """What ranks near-equal layouts, written apart from the search."""
    of = estimate.layout
    degrees = (of.tp, of.cp, of.pp, of.ep)
    schedules = ("none", "1f1b", "gpipe", "interleaved", "zb-1p", "zb-2p", "zb-v", "dualpipe-v")
    number = of.recompute_num_layers or 0
    how = ("none", "selective", "full").index(of.recompute) + (of.recompute_num_layers is not None)
    return (
        of.offload_optimizer + of.offload_activations, sum(degree > 1 for degree in degrees), of.tp * of.cp * of.pp,
        schedules.index(of.schedule), of.num_model_chunks, of.microbatch_group_size_per_vp_stage != of.pp, how,
        of.zero_stage, of.dp_shard_size < of.dp, max(of.layers_per_stage) - min(of.layers_per_stage),
        of.account_for_embedding + of.account_for_loss, of.ep,
        of.rank_order != "tp-cp-ep-dp-pp", of.sequence_parallel, estimate.peak_bytes, of.pp, of.tp, of.etp,
        of.micro_batch_size, of.dp_shard_size, number, of.recompute_method == "block",
    )  # fmt: skip


def in_order(feasible: list[Estimate]) -> list[Estimate]:
    """The fastest first, equal ones by simplicity."""
    return sorted(feasible, key=lambda estimate: (estimate.step_s, simpler(estimate)))


def simplest_near(feasible: list[Estimate]) -> Estimate:
    """The simplest of those at most half a per cent slower than the fastest."""
    least_s = min(estimate.step_s for estimate in feasible)
    return min((each for each in feasible if each.step_s <= least_s * (1 + 0.005)), key=simpler)


def test_layouts_are_those_of_brute_force_in_its_order_to_the_last_bit(both):
    _, found, (_, feasible, _) = both
    expected = in_order(feasible)[:KEPT_ROWS]
    listed = [found.ranked.columns.layout(row) for row in range(len(expected))]
    assert listed == [estimate.layout for estimate in expected]
    np.testing.assert_array_equal(found.ranked.step_s[: len(expected)], [estimate.step_s for estimate in expected])


def test_the_pick_is_the_simplest_layout_near_the_fastest(both):
    _, found, (_, feasible, _) = both
    assert found.picked.layout == simplest_near(feasible).layout == found.ranked.columns.layout(found.pick)
    assert found.near == sum(each.step_s <= 1.005 * found.ranked.step_s[0] for each in feasible)


def test_no_layout_beats_the_front_in_memory_and_speed(both):
    _, found, (_, feasible, _) = both
    front = [(found.ranked.step_s[i], found.ranked.peak_bytes[i]) for i in found.front]
    for estimate in feasible:
        assert any(step <= estimate.step_s and peak <= estimate.peak_bytes for step, peak in front)
    for (step, peak), (next_step, next_peak) in itertools.pairwise(front):
        assert step <= next_step
        assert peak > next_peak


def test_each_combination_of_degrees_has_its_simplest_variant_near_its_fastest(both):
    _, found, (_, feasible, _) = both
    by_degrees: dict[tuple[int, ...], list[Estimate]] = {}
    for estimate in feasible:
        of = estimate.layout
        by_degrees.setdefault((of.tp, of.cp, of.ep, of.pp, of.dp), []).append(estimate)
    best = {degrees: simplest_near(each) for degrees, each in by_degrees.items()}
    pick = found.picked.layout
    best[pick.tp, pick.cp, pick.ep, pick.pp, pick.dp] = found.picked
    expected = [each.layout for each in in_order(list(best.values()))]
    assert [found.ranked.columns.layout(int(i)) for i in found.variants] == expected


@pytest.mark.parametrize(("chunk_rows", "threads"), [(1, 1), (7, 2), (500, 3), (16384, 1)])
def test_the_answer_depends_on_neither_chunks_nor_threads(chunk_rows, threads, monkeypatch):
    job = job_of(2, usable_bytes=3e9)
    whole = plan(job)
    monkeypatch.setattr("tpdpdash.search.plan.CHUNK_ROWS", chunk_rows)
    monkeypatch.setattr("tpdpdash.search.plan.THREADS", threads)
    parts = plan(job)
    assert (whole.refused, whole.considered, whole.feasible) == (parts.refused, parts.considered, parts.feasible)
    assert [one.layout for one in whole.top(200)] == [one.layout for one in parts.top(200)]
    np.testing.assert_array_equal(whole.ranked.step_s, parts.ranked.step_s)
    np.testing.assert_array_equal(whole.variants, parts.variants)
    np.testing.assert_array_equal(whole.front, parts.front)


def test_where_nearly_nothing_fits_the_optimizer_goes_to_host_memory():
    tight = job_of(usable_bytes=1.85e9, micro_batch_size=1, tp=1, pp=4)
    without = by_force(tight)
    with_it = by_force(replace(tight, pins=replace(tight.pins, offload_optimizer=True)))
    assert len(without[1]) < 10 < len(with_it[1])
    found = plan(tight)
    assert found.considered == len(without[0]) + len(with_it[0])
    assert found.feasible == len(without[1]) + len(with_it[1])
    assert not plan(replace(tight, pins=replace(tight.pins, offload_optimizer=False))).feasible > len(without[1])
