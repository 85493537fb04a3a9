"""A finished run corrects the cluster file by what was measured over what is estimated; it is undone by its name."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tpdpdash.cluster.measured import Correction, MeasuredFile, config_path, read_measured, write_measured
from tpdpdash.cluster.spec import RankSpeed
from tpdpdash.compare.recalibrate import take_over, undo
from tpdpdash.compare.trust import distrusted, trusted
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.faults import InvalidInputError
from tpdpdash.job import read_job
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.history import ReaderState, RunView
from tpdpdash.telemetry.record import RecordWriter, rank_file

JOB = """
[model]
name = "small"
num_layers = 2
hidden_size = 64
num_attention_heads = 4
num_kv_heads = 4
head_dim = 16
ffn_hidden_size = 128
vocab_size = 256
[cluster]
device = "local"
[training]
seq_len = 32
global_batch_size = 8
precision = "fp32"
framework = "builtin"
[layout]
tp = 2
"""
CORES = len(os.sched_getaffinity(0))
FILE = MeasuredFile(
    v=1, date="2026-11-30 17:41", run="r0", device="CPU", cores=CORES,
    figures={"peak_fp32_tflops": 0.09, "launch_us": 8.0, "memory_gb_per_s": 20.0},
    links={"scale_up_gb_per_s": 1.5, "scale_up_latency_us": 200.0},
    speeds=(RankSpeed(ranks=1, compute_frac=1.0, memory_frac=1.0),),
)  # fmt: skip


@pytest.fixture(autouse=True)
def measured_machine(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    write_measured(config_path(), FILE)


def run_of(folder: Path, *, compute: float, messages: float, steps: int = 12, job: str = JOB) -> Path:
    """A finished run whose computation and messages took so many times what is estimated; rank 1 waits in tp."""
    (folder / "telemetry").mkdir(parents=True)
    (folder / "job.toml").write_text(job)
    parts = estimate_job(read_job(folder / "job.toml")).time
    for rank in range(2):
        writer = RecordWriter(rank_file(folder, rank), rank)
        who = {"pid": 1 + rank, "start_time": 1.0, "host": "here", "boot_id": "b", "local_rank": rank, "world_size": 2}
        writer.write(
            "hello", {**who, "coords": {"tp": rank}, "backend": "gloo", "device": "cpu", "region_cost_s": 1e-6}
        )
        for step in range(1, steps + 1):
            own_s = compute * parts.compute_s * (1 if rank == 0 else 0.5)
            phase_s = {"forward": own_s / 3, "backward": own_s * 2 / 3, "tp": messages * parts.tp_s + 9.0 * rank}
            writer.write(
                "step", {"step": step, "step_s": sum(phase_s.values()), "phase_s": phase_s, "tokens": 256, "loss": 5.0}
            )
        writer.close()
    return folder


def view(folder: Path, state: ReaderState = "finished") -> RunView:
    return RunView(folder=RunFolder(folder), state=state, status=None)


def test_a_run_that_took_longer_makes_estimates_longer(tmp_path):
    folder = run_of(tmp_path / "r1", compute=1.5, messages=2.0)
    before = estimate_job(read_job(folder / "job.toml")).time
    file, figures = take_over(view(folder))
    assert figures is None
    (correction,) = file.corrections
    assert correction.run == "r1"
    assert (correction.compute, correction.messages) == pytest.approx((1.5, 2.0), rel=0.01)
    after = estimate_job(read_job(folder / "job.toml")).time
    assert after.compute_s == pytest.approx(1.5 * before.compute_s, rel=0.02)
    assert after.tp_s == pytest.approx(2.0 * before.tp_s, rel=0.05)


def test_to_trust_a_run_twice_changes_nothing_more(tmp_path):
    folder = run_of(tmp_path / "r1", compute=1.5, messages=2.0)
    take_over(view(folder))
    second = take_over(view(folder))[0].corrections[-1]
    assert (second.compute, second.messages) == pytest.approx((1.0, 1.0), rel=0.05)


def test_undoing_a_run_gives_the_former_figures_back(tmp_path):
    take_over(view(run_of(tmp_path / "r1", compute=1.5, messages=2.0)))
    assert undo("r1") == FILE
    assert read_measured(config_path()) == (FILE, ())
    with pytest.raises(InvalidInputError) as refused:
        undo("r1")
    assert refused.value.faults[0].code == "trust_not_in_file"


def test_only_the_named_run_is_undone():
    both = replace(FILE, corrections=(Correction(run="r1", date="d", compute=2.0), Correction(run="r2", date="d")))
    assert [each.run for each in distrusted(both, "r1").corrections] == ["r2"]


def test_what_is_no_basis_for_a_correction_is_refused_by_name(tmp_path):
    def code(state="finished", **made):
        folder = run_of(tmp_path / str(len(list(tmp_path.iterdir()))), **{"compute": 1.0, "messages": 1.0, **made})
        with pytest.raises(InvalidInputError) as refused:
            take_over(view(folder, state))
        return refused.value.faults[0].code

    assert code("failed") == "trust_not_finished"
    assert code(steps=6) == "trust_too_few_steps"
    assert code(compute=1000.0) == "out_of_range"
    assert code(job=JOB.replace('"local"', '"CPU"\nnodes = 1\ndevices_per_node = 2')) == "trust_not_measured"
    assert read_measured(config_path()) == (FILE, ())


def test_a_script_without_a_job_is_refused(tmp_path):
    with pytest.raises(InvalidInputError) as refused:
        trusted(FILE, tmp_path, run_id="r1", date="d")
    assert refused.value.faults[0].code == "trust_no_job"


def test_without_a_measured_machine_there_is_nothing_to_correct():
    config_path().unlink()
    with pytest.raises(InvalidInputError) as refused:
        undo("r1")
    assert refused.value.faults[0].code == "trust_not_measured"


def test_a_file_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    folder = run_of(tmp_path / "r1", compute=1.5, messages=2.0)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tpdpdash.compare.recalibrate.write_measured", full)
    with pytest.raises(InvalidInputError) as refused:
        take_over(view(folder))
    assert refused.value.faults[0].code == "measured_file_unwritable"
