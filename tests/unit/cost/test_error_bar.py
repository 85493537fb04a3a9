"""Error bars: from the nearest kind of measured run, wider where nothing like the estimate was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from strategies import cluster_of, dense_model, device, moe_model, training_of

from tpdpdash.cluster.spec import Measured
from tpdpdash.cost.comparison import comparison_frac, tie_frac
from tpdpdash.cost.error_bar import (
    COVERED_FRAC,
    FULL_SOURCE_ROWS,
    MIN_SOURCES,
    ErrorBar,
    error_bar,
    error_fracs,
    nearest_runs,
    quantile_level,
)
from tpdpdash.cost.estimate import estimate, estimate_job, estimate_layout
from tpdpdash.cost.residuals import (
    Residual,
    Residuals,
    RunKind,
    packaged_residuals,
    residuals_from_text,
    residuals_text,
    run_kind,
)
from tpdpdash.job import job_from_tables
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.layout.resolve import resolve_layout
from tpdpdash.model.presets import preset

AMPERE = RunKind(framework="megatron-core", architecture="ampere", is_moe=False, is_low_precision=False, is_lora=False)
ENOUGH = math.ceil(MIN_SOURCES)
MODEL, TRAINING = dense_model(), training_of()
CLUSTER = cluster_of(device=device(architecture="ampere"))


def run(source: str, miss: float, kind: RunKind = AMPERE, **changes: Any) -> Residual:
    """A measured run that took `miss` longer than its estimate of one second."""
    facts: dict[str, Any] = {
        "row": 0, "model": "m", "layout": "tp1-pp1-dp8", "device": "A100", "world_size": 64, "tokens_per_step": 1e6,
        "cp": 1, "ep": 1, "schedule": "none", "predicted": 1.0, "measured": 1.0 + miss,
    }  # fmt: skip
    return Residual(source=source, kind=kind, **facts | changes)


def runs(misses: list[float], kind: RunKind = AMPERE, sources: int = ENOUGH) -> list[Residual]:
    """Runs of several sources, each with the same errors."""
    return [run(f"s{s}", miss, kind) for s in range(sources) for miss in misses]


def table(*found: Residual) -> Residuals:
    return Residuals(date="2026-01-01", commit="abc", time=found, memory=found)


def test_a_run_whose_microbatch_is_guessed_makes_no_bar():
    known, guessed = runs([0.1] * 8), [run("guess", 9.0, is_stated=False) for _ in range(8)]
    assert nearest_runs([*known, *guessed], AMPERE) == nearest_runs(known, AMPERE)


def columns(**pins: Any) -> LayoutColumns:
    return LayoutColumns.from_layouts([resolve_layout(LayoutPins(**pins), MODEL, TRAINING, None)])


def bar(found: Residuals, model=MODEL, cluster=CLUSTER, training=TRAINING, **pins: Any) -> ErrorBar | None:
    return error_bar("time", model, cluster, training, columns(**pins), found)


ALL_ALIKE = table(*runs([0.1] * FULL_SOURCE_ROWS))


def test_a_bar_comes_from_runs_of_the_same_kind_where_there_are_enough():
    hopper = replace(AMPERE, architecture="hopper")
    found = bar(table(*runs([0.1] * FULL_SOURCE_ROWS), *runs([0.9] * FULL_SOURCE_ROWS, hopper)))
    assert found == ErrorBar(frac=pytest.approx(0.1), kind=AMPERE, rows=32, sources=4, wider=1.0)


def test_too_few_runs_or_sources_of_a_kind_give_way_to_a_wider_kind():
    hopper = replace(AMPERE, architecture="hopper")
    many = runs([0.5] * FULL_SOURCE_ROWS, hopper)
    few = runs([0.1] * (FULL_SOURCE_ROWS - 2)), runs([0.1] * FULL_SOURCE_ROWS, sources=ENOUGH - 1)
    for own in few:
        found = nearest_runs([*own, *many], AMPERE)
        assert found is not None
        assert found.kind == replace(AMPERE, architecture=None)
        assert found.rows == len(own) + len(many)
        assert nearest_runs(own, AMPERE) is None


def test_kinds_widen_one_step_at_a_time_and_each_holds_the_one_before():
    kinds = list(AMPERE.wider())
    assert kinds[0] == AMPERE
    assert kinds[-1] == RunKind()
    assert len(set(kinds)) == len(kinds)
    assert all(kind.holds(AMPERE) for kind in kinds)
    assert not AMPERE.holds(replace(AMPERE, is_moe=True))
    assert [kind.framework for kind in kinds].index(None) == 4, "what shares the framework counts first"


def test_a_source_with_many_rows_does_not_decide_alone():
    loud = [run("loud", 0.01)] * 500
    found = nearest_runs([*loud, *runs([0.3] * FULL_SOURCE_ROWS, sources=3)], AMPERE)
    assert found is not None
    assert found.frac == pytest.approx(0.3)


def test_a_source_of_one_row_does_not_decide_either():
    many = runs([0.1] * FULL_SOURCE_ROWS)
    found = nearest_runs([*many, run("odd", 5.0)], AMPERE)
    assert found is not None
    assert found.frac == pytest.approx(0.1)


def test_the_quantile_is_higher_where_few_sources_were_seen():
    assert quantile_level(1) == 1.0
    levels = [quantile_level(k) for k in (2, 3, 10, 1000)]
    assert levels == sorted(levels, reverse=True)
    assert levels[-1] == pytest.approx(COVERED_FRAC, abs=1e-3)
    misses = [i / 100 for i in range(100)]
    found = nearest_runs(runs(misses, sources=4), AMPERE)
    assert found is not None
    assert found.frac == pytest.approx(0.9, abs=0.011)


def test_the_bar_is_measured_from_the_estimate():
    assert run("s", 0.25).miss_frac == pytest.approx(0.25)
    assert run("s", -0.25).miss_frac == pytest.approx(0.25)
    assert run("s", 0.25).error == pytest.approx(-0.2)


def test_an_unknown_framework_takes_the_nearest_and_a_wider_bar():
    known = bar(ALL_ALIKE)
    unknown = bar(ALL_ALIKE, training=replace(TRAINING, framework="megatron-corp"))
    assert known is not None
    assert unknown is not None
    assert unknown.kind == known.kind
    assert unknown.wider == 1.25
    assert unknown.frac == pytest.approx(1.25 * known.frac)


def test_a_device_of_no_measured_family_has_a_wider_bar():
    unknown = bar(ALL_ALIKE, cluster=cluster_of(device=device()))
    assert unknown is not None
    assert unknown.kind.architecture is None
    assert unknown.frac == pytest.approx(0.125)


def test_a_schedule_that_was_never_measured_widens_the_bar():
    plain, one_f_one_b = bar(ALL_ALIKE), bar(ALL_ALIKE, pp=2)
    assert plain is not None
    assert one_f_one_b is not None
    assert one_f_one_b.frac == pytest.approx(1.25 * plain.frac)


def test_each_doubling_beyond_the_largest_measured_run_widens_the_bar():
    fracs = []
    for dp in (64, 128, 256):
        layouts = LayoutColumns.from_layouts(
            [resolve_layout(LayoutPins(dp=dp), MODEL, training_of(global_batch_size=256), None)]
        )
        fracs.append(float(error_fracs("time", MODEL, CLUSTER, TRAINING, layouts, ALL_ALIKE)[0]))
    assert fracs == pytest.approx([0.1, 0.11, 0.121])
    contexts = bar(ALL_ALIKE, cp=4)
    assert contexts is not None
    assert contexts.frac == pytest.approx(0.1 * 1.1**2)


def test_no_error_is_known_on_a_cpu_or_of_the_built_in_worker():
    assert bar(ALL_ALIKE, cluster=cluster_of(device=device(is_cpu=True))) is None
    assert bar(ALL_ALIKE, training=replace(TRAINING, framework="builtin")) is None
    fracs = error_fracs("time", MODEL, CLUSTER, replace(TRAINING, framework="builtin"), columns(), ALL_ALIKE)
    assert np.isnan(fracs).all()


def test_the_columns_agree_with_the_single_layout():
    layouts = [columns(tp=2, pp=pp).layout(0) for pp in (1, 2, 4)]
    together = LayoutColumns.from_layouts(layouts)
    fracs = error_fracs("memory", MODEL, CLUSTER, TRAINING, together, ALL_ALIKE)
    for i, layout in enumerate(layouts):
        one = error_bar("memory", MODEL, CLUSTER, TRAINING, LayoutColumns.from_layouts([layout]), ALL_ALIKE)
        assert one is not None
        assert one.frac == fracs[i]


def test_a_mixture_of_experts_in_fp8_is_a_kind_of_its_own():
    assert run_kind(moe_model(), CLUSTER, training_of(precision="mxfp8", framework="fsdp2")) == RunKind(
        framework="fsdp2", architecture="ampere", is_moe=True, is_low_precision=True, is_lora=False
    )
    assert run_kind(MODEL, None, TRAINING).architecture == ""


def test_the_file_reads_back_what_was_written():
    found = table(run("s", 0.123456789), run("t", 0.5, replace(AMPERE, is_moe=True)))
    again = residuals_from_text(residuals_text(found))
    assert [r.kind for r in again.time] == [r.kind for r in found.time]
    assert again.memory[0].measured == 1.1235
    assert (again.date, again.commit) == ("2026-01-01", "abc")
    with pytest.raises(ValueError, match="another version"):
        residuals_from_text(residuals_text(found).replace('"world_size"', '"devices"'))


def test_the_packaged_runs_give_every_framework_but_the_built_in_a_bar():
    packaged = packaged_residuals()
    assert len(packaged.time) > 1000
    assert len(packaged.memory) > 300
    for framework in ("megatron-core", "megatron-deepspeed", "fsdp1", "fsdp2", "jax", "nanotron", "internevo"):
        for model in (MODEL, moe_model()):
            found = estimate_layout(model, CLUSTER, replace(TRAINING, framework=framework), columns(tp=2))
            assert found.error_frac is not None
            assert 0.01 < found.error_frac < 3
            assert found.memory_error_frac is not None


def test_a_peak_within_its_error_of_the_capacity_is_tight():
    cluster = cluster_of(device=device(architecture="ampere"))
    found = estimate_layout(MODEL, cluster, TRAINING, columns(tp=2))
    assert found.memory_error_frac is not None
    for share, tight, fits in ((0.999, True, False), (1.001, True, True), (100.0, False, True), (0.01, False, False)):
        changed = replace(found, capacity_bytes=found.peak_bytes * share)
        assert (changed.is_tight, changed.fits) == (tight, fits)
        assert changed.to_json()["memory"]["tight"] is tight


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp2", "megatron-core"])
def test_r011_zero_3_of_8b_on_eight_24_gb_cards_is_tight_or_does_not_fit(framework):
    """hiyouga/LlamaFactory issue 5977: it ran out of memory, with 15-17 of 23.7 GiB for states alone."""
    job = job_from_tables(
        {
            "model": {"preset": "llama-3-8b"},
            "cluster": {"device": "RTX-3090-24GB", "nodes": 1, "devices_per_node": 8},
            "training": {"seq_len": 1024, "global_batch_size": 8, "precision": "fp16", "framework": framework},
            "layout": {"zero_stage": 3, "recompute": "full"},
        }
    )
    found = estimate_job(job)
    assert found.is_tight or not found.fits


def test_experts_that_are_not_forced_to_be_even_have_a_wider_bar():
    """Most published runs of mixtures force an even load; a dense model has no router."""
    for model, wider in ((preset("mixtral-8x7b"), 1.25), (MODEL, 1.0)):
        trained, forced = (
            error_bar("time", model, CLUSTER, replace(TRAINING, expert_load_cv=cv), columns(tp=2)) for cv in (0.1, 0.0)
        )
        assert trained.frac == pytest.approx(wider * forced.frac)


def test_many_estimates_have_the_bars_of_single_ones():
    many = estimate(MODEL, CLUSTER, TRAINING, columns(tp=2))
    assert many.error_frac[0] == many.row(0).error_frac
    assert many.memory_error_frac[0] == many.row(0).memory_error_frac


def test_the_json_says_what_a_bar_is_known_from():
    document = estimate_layout(MODEL, CLUSTER, TRAINING, columns(tp=2)).to_json()["time"]
    assert set(document["error_from"]) == {"shared", "rows", "sources", "wider"}
    assert document["error_from"]["rows"] >= FULL_SOURCE_ROWS
    assert document["error_from"]["sources"] >= MIN_SOURCES
    assert None not in document["error_from"]["shared"].values()


def test_comparisons_within_a_job_err_by_what_its_runs_do_not_share():
    """Both runs twice as slow as estimated: their ratio is right. One 10 % further off: so is the ratio."""
    same = [run("s", 1.0, predicted=p, measured=2 * p) for p in (1.0, 1.1)]
    assert comparison_frac(same * FULL_SOURCE_ROWS) is None, "two distinct estimates are one comparison"
    jobs = [
        run("s", 0, world_size=8 * job, predicted=p, measured=m)
        for job in range(1, FULL_SOURCE_ROWS + 1)
        for p, m in ((1.0, 2.0), (1.5, 3.3))
    ]
    assert comparison_frac(jobs) == pytest.approx(0.1)
    assert tie_frac() is not None


def measured_cpu(*misses: float):
    """A job of the built-in worker on a CPU machine whose calibration missed its own runs of two ranks by as much."""
    job = job_from_tables({
        "model": {
            "name": "m", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 256,
            "vocab_size": 128,
        },
        "cluster": {"device": "CPU", "nodes": 1, "devices_per_node": 4},
        "training": {"seq_len": 64, "global_batch_size": 8, "precision": "fp32", "framework": "builtin"},
        "layout": {"dp": 4},
    })  # fmt: skip
    measured = Measured(date="d", run_id="r", cores=4, miss_fracs=misses, checked_ranks=2)
    return replace(job, cluster=replace(job.cluster, measured=measured))


def test_a_machine_that_checked_itself_has_its_own_bar_wider_with_more_ranks():
    found = estimate_job(measured_cpu(0.1, 0.02, 0.2, 0.05)).time_error
    assert found is not None
    assert found.is_of_this_machine
    assert (found.rows, found.sources) == (4, 1)
    assert found.wider == pytest.approx(1.1), "four ranks, where two were checked"
    assert found.frac == pytest.approx(1.1 * 0.2), "the largest of four holds the next in four of five cases"
    job = measured_cpu(0.1, 0.02, 0.2, 0.05)
    columns = LayoutColumns.from_layouts([job.layout()])
    fracs = error_fracs("time", job.model, job.cluster, job.training, columns)
    assert fracs == pytest.approx([found.frac])


@pytest.mark.parametrize("count", [9, 14])
def test_of_many_checks_the_one_counts_below_which_four_fifths_lie(count):
    misses = tuple(0.01 * n for n in range(1, count + 1))
    found = estimate_job(measured_cpu(*misses)).time_error
    assert found is not None
    assert found.frac == pytest.approx(1.1 * 0.01 * math.ceil(0.8 * (count + 1)))


@pytest.mark.parametrize("misses", [(), (0.1, 0.1, 0.1)])
def test_fewer_than_four_checks_say_nothing(misses):
    assert estimate_job(measured_cpu(*misses)).time_error is None


def test_checks_say_nothing_of_memory_or_of_another_framework():
    job = measured_cpu(0.1, 0.1, 0.1, 0.1)
    assert estimate_job(job).memory_error is None
    other = replace(job, training=replace(job.training, framework="megatron-core"))
    assert estimate_job(other).time_error is None
