"""The search against a loop over every layout, one at a time."""

from __future__ import annotations

import itertools
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
from tpdpdash.search.plan import Plan, plan
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


def every_layout(job: Job) -> list[Layout]:
    """The whole space by nested loops, written apart from the search."""
    model, pins, world, found = job.model, job.pins, job.cluster.world_size, []
    for pp, tp in itertools.product(divisors(world), divisors(world)):
        if world % (pp * tp) or pp > model.num_layers or tp > model.num_attention_heads:
            continue
        dp = world // (pp * tp)
        share = job.training.global_batch_size // dp
        sizes = divisors(share) if share * dp == job.training.global_batch_size else [1]
        chunks = divisors(model.num_layers // pp) if pp > 1 and model.num_layers % pp == 0 else [1]
        experts = [(ep, etp) for ep in divisors(16) for etp in sorted({1, tp}) if tp * dp % (ep * etp) == 0]
        whole = job.training.framework == "megatron-core" and pp > 1 and pins.zero_stage is None
        stages = (1,) if dp == 1 else (0, 1) if whole else (0, 1, 2, 3)
        for (ep, etp), size, v, zero, how, split in itertools.product(
            experts if model.is_moe else [(1, tp)], sizes, chunks, stages,
            ("none", "selective", "full"), (True, False) if tp > 1 else (False,),
        ):  # fmt: skip
            keys = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "etp": etp, "micro_batch_size": size, "num_model_chunks": v,
                    "zero_stage": zero, "recompute": how, "sequence_parallel": split}  # fmt: skip
            if all(getattr(pins, key) in (None, value) for key, value in keys.items()):
                found.append(draft_layout(LayoutPins(**keys), model, job.training, world).layout)
    return found


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


def test_the_best_is_that_of_brute_force_to_the_last_bit(both):
    _, found, (_, feasible, _) = both
    best = min(estimate.step_s for estimate in feasible)
    assert found.best is not None
    assert found.best.step_s == best
    assert found.best.layout in [estimate.layout for estimate in feasible if estimate.step_s == best]
    count = min(1000, len(feasible))
    steps = sorted(estimate.step_s for estimate in feasible)[:count]
    np.testing.assert_array_equal(found.ranked.step_s[:count], steps)


def test_no_layout_beats_the_front_in_memory_and_speed(both):
    _, found, (_, feasible, _) = both
    front = [(found.ranked.step_s[i], found.ranked.peak_bytes[i]) for i in found.front]
    for estimate in feasible:
        assert any(step <= estimate.step_s and peak <= estimate.peak_bytes for step, peak in front)
    for (step, peak), (next_step, next_peak) in itertools.pairwise(front):
        assert step <= next_step
        assert peak > next_peak


def test_each_combination_of_degrees_has_its_best_variant(both):
    _, found, (_, feasible, _) = both
    best: dict[tuple[int, ...], float] = {}
    for estimate in feasible:
        of = estimate.layout
        degrees = (of.tp, of.cp, of.ep, of.pp, of.dp)
        best[degrees] = min(best.get(degrees, np.inf), estimate.step_s)
    layouts = [found.ranked.columns.layout(int(i)) for i in found.variants]
    steps = found.ranked.step_s[found.variants]
    assert {(x.tp, x.cp, x.ep, x.pp, x.dp): s for x, s in zip(layouts, steps, strict=True)} == best


@pytest.mark.parametrize("chunk_rows", [1, 7, 500])
def test_the_answer_does_not_depend_on_the_chunks(chunk_rows, monkeypatch):
    job = job_of(2, usable_bytes=3e9)
    whole = plan(job)
    monkeypatch.setattr("tpdpdash.search.plan.layout_space", _in_chunks_of(chunk_rows))
    parts = plan(job)
    assert replace(whole, seconds=0, ranked=None).refused == replace(parts, seconds=0, ranked=None).refused
    np.testing.assert_array_equal(whole.ranked.step_s, parts.ranked.step_s)
    np.testing.assert_array_equal(whole.front, parts.front)


def _in_chunks_of(rows):
    from tpdpdash.search.space import layout_space

    return lambda job, grids: layout_space(job, grids, chunk_rows=rows)
