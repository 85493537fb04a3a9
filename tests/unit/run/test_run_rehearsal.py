"""A rehearsal keeps the layout, shrinks the model, and lists every difference."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tpdpdash.cluster.detection import Detection, HostMemory
from tpdpdash.cluster.local import read_local
from tpdpdash.faults import InvalidInputError
from tpdpdash.job import Job, parse_job, write_job
from tpdpdash.layout.rules import check_layout
from tpdpdash.run.change import REASONS
from tpdpdash.run.preflight import failed, preflight
from tpdpdash.run.rehearsal import MAX_RANKS, Rehearsal, rehearse
from tpdpdash.text import fault_lines
from tpdpdash.units import GIB

HOST = HostMemory(total_bytes=23 * GIB, available_bytes=20 * GIB, cores=2)
NO_GPU = Detection(devices=(), driver_version=None, problem=None, host=HOST)
HERE = read_local(NO_GPU).cluster


def job_of(preset: str, nodes: int = 1, seq_len: int = 1024, batch: int = 64, layout: str = "", more: str = "") -> Job:
    text = (
        f'[model]\npreset = "{preset}"\n[cluster]\ndevice = "H100-SXM5-80GB"\nnodes = {nodes}\n'
        f"[training]\nseq_len = {seq_len}\nglobal_batch_size = {batch}\n{more}\n[layout]\n{layout}\n"
    )
    return parse_job(text, detect=lambda: NO_GPU)


def changed(rehearsal: Rehearsal) -> dict[str, tuple[object, object]]:
    return {change.key: (change.asked, change.rehearsed) for change in rehearsal.changes}


def test_up_to_16_ranks_tp_pp_and_dp_stay_as_asked() -> None:
    job = job_of("llama-3-8b", layout="tp = 2\npp = 2\ndp = 2", more="steps = 7")
    rehearsal = rehearse(job, HERE)
    layout, training = rehearsal.job.layout(), rehearsal.job.training
    assert (layout.tp, layout.pp, layout.dp, layout.schedule) == (2, 2, 2, "1f1b")
    assert training.steps == 7
    assert (training.precision, training.framework, training.seq_len) == ("fp32", "builtin", 128)
    assert training.global_batch_size == 16 * 2  # 32 microbatches a replica were asked: 16 are kept
    assert rehearsal.job.cluster.device.is_cpu
    assert rehearsal.job.cluster.world_size == 8
    assert "training.steps" not in changed(rehearsal)


@pytest.mark.parametrize(
    ("degrees", "nodes", "rehearsed"),
    [
        ("tp = 2\npp = 2", 4, (2, 2, 4)),  # dp 8 gives way first
        ("tp = 4\npp = 8", 4, (4, 4, 1)),  # then pp
        ("tp = 8\npp = 4", 4, (8, 2, 1)),
        ("tp = 16\npp = 2", 4, (16, 1, 1)),
        ("tp = 32\npp = 1", 4, (16, 1, 1)),  # then tp
        ("tp = 1\npp = 1", 4, (1, 1, 16)),
    ],
)
def test_above_16_ranks_dp_is_reduced_first_then_pp_then_tp(
    degrees: str, nodes: int, rehearsed: tuple[int, int, int]
) -> None:
    layout = rehearse(job_of("llama-3-8b", nodes=nodes, layout=degrees), HERE).job.layout()
    assert (layout.tp, layout.pp, layout.dp) == rehearsed
    assert layout.world_size <= MAX_RANKS


SHAPES = [
    ("llama-3-8b", "tp = 2\npp = 2"),
    ("llama-3.1-405b", "tp = 16\npp = 4"),
    ("mixtral-8x7b", "tp = 2\npp = 2\nep = 2"),
    ("deepseek-v3", "tp = 4\npp = 8"),
    ("gpt3-175b", "tp = 8\npp = 4\nnum_model_chunks = 3"),
    ("gpt2-xl", "tp = 1\npp = 4\nschedule = 'gpipe'"),
    ("qwen3-235b-a22b", "tp = 4\npp = 2"),
    ("llama-3-8b", "tp = 2\nzero_stage = 3\nrecompute = 'full'"),
    ("llama-3-8b", "cp = 4\ntp = 2"),
    ("llama-3-8b", "tp = 2\nmicro_batch_size = 2\noffload_optimizer = true"),
]


@pytest.mark.parametrize(("preset", "layout"), SHAPES, ids=[f"{p}-{i}" for i, (p, _) in enumerate(SHAPES)])
def test_every_rehearsal_is_small_legal_for_the_worker_and_lists_each_difference(preset: str, layout: str) -> None:
    job = job_of(preset, nodes=16, batch=512, layout=layout)
    rehearsal = rehearse(job, HERE)
    run = rehearsal.job
    assert check_layout(run.model, run.training, run.cluster, run.layout()) == []
    assert run.model.vocab_size <= 1024
    assert run.training.seq_len <= 128
    assert run.model.num_layers <= 2 * run.layout().pp
    assert run.model.hidden_size <= 512
    asked_count = job.layout().num_microbatches(512)
    assert run.layout().num_microbatches(run.training.global_batch_size) == min(16, asked_count)
    told = changed(rehearsal)
    for table, before, after in (("model", job.model, run.model), ("training", job.training, run.training)):
        for field in fields(before):
            pair = getattr(before, field.name), getattr(after, field.name)
            assert pair[0] == pair[1] or field.name == "source" or told[f"{table}.{field.name}"] == pair
    for degree in ("tp", "pp", "dp", "cp", "ep", "zero_stage", "schedule", "layers_per_stage"):
        pair = getattr(job.layout(), degree), getattr(run.layout(), degree)
        assert told.get(f"layout.{degree}", pair) == pair
        assert (f"layout.{degree}" in told) == (pair[0] != pair[1])
    assert {change.reason for change in rehearsal.changes} <= set(REASONS)


@pytest.mark.parametrize(("preset", "layout"), SHAPES[:6])
def test_a_rehearsed_job_reads_back_from_its_file(preset: str, layout: str) -> None:
    run = rehearse(job_of(preset, nodes=16, batch=512, layout=layout), HERE).job
    back = parse_job(write_job(run), detect=lambda: NO_GPU)
    assert (back.model, back.training, back.layout()) == (run.model, run.training, run.layout())
    assert back.cluster.world_size == run.cluster.world_size


def test_steps_that_were_not_given_become_20_and_that_is_said() -> None:
    rehearsal = rehearse(job_of("llama-3-8b", layout="tp = 2"), HERE)
    assert changed(rehearsal)["training.steps"] == (None, 20)


def test_with_fewer_microbatches_than_stages_the_schedule_becomes_gpipe() -> None:
    """Megatron runs it, torch's 1F1B refuses it."""
    rehearsal = rehearse(job_of("llama-3-8b", batch=4, layout="tp = 1\npp = 4\ndp = 2"), HERE)
    assert rehearsal.job.layout().schedule == "gpipe"
    assert changed(rehearsal)["layout.schedule"] == ("1f1b", "gpipe")


def test_more_tp_ranks_than_kv_heads_get_a_head_each_since_the_worker_does_not_replicate() -> None:
    rehearsal = rehearse(job_of("llama-3-8b", nodes=2, layout="tp = 16"), HERE)
    assert rehearsal.job.model.num_kv_heads == 16
    (change,) = [change for change in rehearsal.changes if change.key == "model.num_kv_heads"]
    assert change.reason == "worker"


def test_a_job_that_is_not_legal_itself_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        rehearse(job_of("llama-3-8b", layout="tp = 3"), HERE)


# ------------------------------------------------------------------------------------------------ preflight


def codes(job: Job, **options: object) -> dict[str, str]:
    return {check.code: check.level for check in preflight(job, host=HOST, **options)}  # type: ignore[arg-type]


def test_preflight_of_a_rehearsal_warns_of_shared_cores_and_fails_nothing(runs_root: object) -> None:
    run = rehearse(job_of("llama-3-8b", layout="tp = 2\npp = 2\ndp = 2"), HERE).job
    found = codes(run)
    assert set(found.values()) == {"ok", "warning"}
    assert [code for code, level in found.items() if level == "warning"] == ["cores"]
    assert not runs_root.exists()  # type: ignore[attr-defined]  # it writes nothing


def test_preflight_of_the_job_itself_says_what_the_worker_cannot_run_and_that_it_needs_more_machines() -> None:
    checks = preflight(job_of("mixtral-8x7b", nodes=2, layout="tp = 2\nep = 8"), host=HOST)
    levels = {check.code: check.level for check in checks}
    assert (levels["layout"], levels["world_size"]) == ("failed", "failed")
    faults = failed(checks)
    assert {"builtin_no_experts", "builtin_no_expert_parallel", "preflight_world_size"} <= {f.code for f in faults}
    assert len(fault_lines(faults)) == len(faults)


def test_preflight_of_an_illegal_layout_gives_its_faults() -> None:
    """r068: 8 devices do not divide into TP groups of 3; the fault names the nearest sizes."""
    checks = preflight(job_of("llama-3-8b", layout="tp = 3"), host=HOST)
    assert (checks[0].code, checks[0].level) == ("layout", "failed")
    assert checks[0].faults


def test_preflight_compares_the_predicted_memory_of_all_ranks_with_what_is_free() -> None:
    run = rehearse(job_of("llama-3-8b", layout="tp = 2\npp = 2\ndp = 2"), HERE).job
    assert codes(run, prediction={"memory": {"peak_bytes": 3 * GIB}})["memory"] == "failed"
    assert codes(run, prediction={"memory": {"peak_bytes": 1 * GIB}})["memory"] == "ok"
    faults = failed(preflight(run, host=HOST, prediction={"memory": {"peak_bytes": 3 * GIB}}))
    assert fault_lines(faults) == ["the ranks need more memory than is free here: 24.0 GiB of 20.0 GiB"]


def test_preflight_asks_for_the_gpus_that_the_job_names_and_for_their_memory() -> None:
    job = job_of("llama-3-8b", layout="tp = 8")
    alone = {check.code: check for check in preflight(job, host=HOST)}
    assert alone["devices"].level == "failed"
    assert "this machine has: CPU" in fault_lines(failed([alone["devices"]]))[0]
    too_large = {"memory": {"peak_bytes": 90 * GIB}}
    here = {check.code: check.level for check in preflight(job, host=HOST, here=job.cluster, prediction=too_large)}
    assert (here["devices"], here["fits"]) == ("ok", "failed")
    assert "devices" not in {check.code for check in preflight(rehearse(job, HERE).job, host=HOST)}
