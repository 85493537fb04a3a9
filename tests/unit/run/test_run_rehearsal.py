"""A rehearsal keeps the layout, shrinks the model, and lists every difference."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from tpdpdash.cluster.detection import Detection, HostMemory
from tpdpdash.cluster.local import read_local
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.job import Job, parse_job, write_job
from tpdpdash.layout.rules import check_layout
from tpdpdash.run.change import Reason
from tpdpdash.run.preflight import failed, preflight
from tpdpdash.run.rehearsal import MAX_RANKS, Rehearsal, rehearse
from tpdpdash.text import fault_lines
from tpdpdash.training import Training
from tpdpdash.units import GIB

HOST = HostMemory(total_bytes=23 * GIB, available_bytes=20 * GIB, cores=2)
NO_GPU = Detection(devices=(), driver_version=None, problem=None, host=HOST)
HERE = read_local(NO_GPU).cluster


def job_of(
    preset: str,
    nodes: int = 1,
    seq_len: int = 1024,
    batch: int = 64,
    layout: str = "",
    more: str = "",
    device: str = "H100-SXM5-80GB",
) -> Job:
    text = (
        f'[model]\npreset = "{preset}"\n[cluster]\ndevice = "{device}"\nnodes = {nodes}\n'
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
    ("llama-3-8b", "tp = 2\npp = 8\nschedule = 'dualpipe-v'"),
    ("llama-3-8b", "tp = 2\npp = 4\nschedule = 'dualpipe'"),
    ("gpt3-175b", "tp = 8\npp = 3\nschedule = 'zb-2p'"),
    ("gpt3-175b", "tp = 8\npp = 16\nschedule = 'zb-v'"),
]


@pytest.mark.parametrize(("preset", "layout"), SHAPES, ids=[f"{p}-{i}" for i, (p, _) in enumerate(SHAPES)])
def test_every_rehearsal_is_small_legal_for_the_worker_and_lists_each_difference(preset: str, layout: str) -> None:
    job = job_of(preset, nodes=12 if "pp = 3" in layout else 16, batch=512, layout=layout)
    rehearsal = rehearse(job, HERE)
    run = rehearsal.job
    assert check_layout(run.model, run.training, run.cluster, run.layout()) == []
    assert run.model.vocab_size <= 1024
    assert run.training.seq_len <= 128
    assert run.model.num_layers <= max(2, run.layout().num_model_chunks) * run.layout().pp
    assert run.model.hidden_size <= 512
    asked_count = job.layout().num_microbatches(512)
    assert run.layout().num_microbatches(run.training.global_batch_size) == min(16, asked_count)
    told = changed(rehearsal)
    for table, before, after in (("model", job.model, run.model), ("training", job.training, run.training)):
        for field in fields(before):
            pair = getattr(before, field.name), getattr(after, field.name)
            assert pair[0] == pair[1] or field.name == "source" or told[f"{table}.{field.name}"] == pair
    for degree in ("tp", "pp", "dp", "cp", "ep", "zero_stage", "schedule", "num_model_chunks", "layers_per_stage"):
        pair = getattr(job.layout(), degree), getattr(run.layout(), degree)
        assert told.get(f"layout.{degree}", pair) == pair
        assert (f"layout.{degree}" in told) == (pair[0] != pair[1])
    assert {change.reason for change in rehearsal.changes} <= set(get_args(Reason))


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


@pytest.mark.parametrize(
    "layout",
    [
        "tp = 2\npp = 2\nnum_model_chunks = 2",
        "pp = 4\nnum_model_chunks = 4\nmicro_batch_size = 2",
        "pp = 4\nschedule = 'zb-1p'",
        "tp = 2\npp = 4\nschedule = 'zb-v'",
        "tp = 2\npp = 2\nschedule = 'dualpipe-v'",
        "tp = 2\nzero_stage = 2",
        "tp = 2\nzero_stage = 3\ndp_shard_size = 2",
    ],
)
def test_chunks_and_sharding_are_rehearsed_as_asked(layout: str) -> None:
    told = changed(rehearse(job_of("llama-3-8b", batch=128, layout=layout), HERE))
    kept = ("schedule", "num_model_chunks", "zero_stage", "dp_shard_size", "micro_batch_size", "tp", "pp", "dp")
    assert [name for name in kept if f"layout.{name}" in told] == []


@pytest.mark.parametrize(("asked", "rehearsed"), [("zb-2p", "zb-1p"), ("dualpipe", "dualpipe-v")])
def test_a_schedule_that_torch_has_not_becomes_the_nearest_that_it_has(asked: str, rehearsed: str) -> None:
    told = changed(rehearse(job_of("llama-3-8b", batch=128, layout=f"pp = 4\nschedule = '{asked}'"), HERE))
    assert told["layout.schedule"] == (asked, rehearsed)


def test_a_schedule_in_rounds_keeps_whole_rounds() -> None:
    """Of 18 microbatches on 3 stages, which are six rounds, 16 would be kept: they do not divide into five."""
    job = job_of("gpt3-175b", batch=72, layout="tp = 2\npp = 3\nnum_model_chunks = 2", nodes=3)
    layout = rehearse(job, HERE).job
    assert layout.layout().num_microbatches(layout.training.global_batch_size) == 15


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
    """8 devices do not divide into TP groups of 3 (r068); a fault names what would."""
    checks = preflight(job_of("llama-3-8b", layout="tp = 3"), host=HOST)
    assert (checks[0].code, checks[0].level) == ("layout", "failed")
    assert any("8" in line and "nearest" in line for line in fault_lines(checks[0].faults))


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


def test_preflight_refuses_gpus_that_others_use_unless_they_are_to_be_shared() -> None:
    job = job_of("llama-3-8b", layout="tp = 8")
    taken = Fault(code="devices_held_by_run", field="devices", value="GPU 0", values={"run": "20261130-000000-a-abcd"})

    def level(**options: object) -> str:
        return {check.code: check.level for check in preflight(job, host=HOST, **options)}["in_use"]  # type: ignore[arg-type]

    assert level() == "ok"
    assert level(in_use=(taken,)) == "failed"
    assert taken in failed(preflight(job, host=HOST, in_use=(taken,)))
    assert level(in_use=(taken,), share_devices=True) == "warning"
    assert taken not in failed(preflight(job, host=HOST, in_use=(taken,), share_devices=True))
    assert "in_use" not in {check.code for check in preflight(rehearse(job, HERE).job, host=HOST, in_use=(taken,))}


def test_what_only_gpus_and_other_frameworks_have_is_left_out_and_said() -> None:
    more = 'cuda_graphs = "step"\ndeterministic = true\nfp8_activation_inputs = true\nlaunch_blocking = true'
    rehearsal = rehearse(job_of("deepseek-v3", layout="ep = 8", more=more), HERE)
    found = changed(rehearsal)
    assert found["training.mtp_num_layers"] == (None, 0)
    assert found["training.cuda_graphs"] == ("step", "none")
    flags = ("deterministic", "fp8_activation_inputs", "launch_blocking")
    assert {found[f"training.{flag}"] for flag in flags} == {(True, False)}
    assert list(failed(preflight(rehearsal.job, host=HOST))) == []


def every_choice() -> list[str]:
    """Each value of each key of [training] that is a choice or a flag."""
    lines = []
    for name, hint in get_type_hints(Training).items():
        said = [choice for kind in (hint, *get_args(hint)) for choice in get_args(kind) if isinstance(choice, str)]
        lines += [f'{name} = "{choice}"' for choice in dict.fromkeys(said)]
        lines += [f"{name} = {flag}" for flag in ("true", "false") if bool in (hint, *get_args(hint))]
    return lines


@pytest.mark.parametrize("line", every_choice())
def test_no_choice_of_training_is_refused_in_a_rehearsal(line: str) -> None:
    job = job_of("llama-3-8b", layout="tp = 2", more=line, device="B200-SXM-180GB")
    assert list(failed(preflight(rehearse(job, HERE).job, host=HOST))) == []
