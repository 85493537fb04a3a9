"""The trace of a run folder: its Job's predicted schedule beside the ranks, its device samples, or a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpdpdash.compare.run_trace import device_samples, predicted_spans, write_run_trace
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.faults import InvalidInputError
from tpdpdash.job import read_job
from tpdpdash.run.folder import RunFolder, new_run_folder, write_json
from tpdpdash.telemetry.record import RecordWriter, rank_file

JOB = """
[model]
preset = "llama-3-8b"
[cluster]
device = "H100-SXM5-80GB"
[training]
seq_len = 4096
global_batch_size = 16
[layout]
tp = 4
pp = 2
dp = 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of one rank that told one step, with its Job and the estimate of it."""
    made = new_run_folder(tmp_path, "demo")
    made.job.write_text(JOB)
    write_json(made.prediction, estimate_job(read_job(made.job)).to_json())
    writer = RecordWriter(rank_file(made.path, 0), 0, clock=lambda: 100.0)
    who = {"pid": 1, "start_time": 1.0, "host": "a", "world_size": 1, "coords": {"pp": 0}}
    writer.write("hello", who)
    writer.write("step", {"step": 2, "step_s": 1.0, "phase_s": {"forward": 0.5}})
    writer.write("timeline", {"step": 2, "actions": [["F", 0, 0, 0.0, 0.5]]})
    writer.close()
    return made


def test_every_action_of_the_predicted_step_is_a_span_and_the_last_ends_with_the_step(folder: RunFolder) -> None:
    estimate = estimate_job(read_job(folder.job))
    spans = predicted_spans(folder)
    microbatches = estimate.num_microbatches
    assert [sum(s.kind[0] == kind and s.stage == 1 for s in spans) for kind in "FB"] == [microbatches] * 2
    assert max(s.start_s + s.duration_s for s in spans) == pytest.approx(estimate.step_s, rel=0.02)


def test_an_estimate_that_is_no_longer_the_stored_one_is_not_drawn(folder: RunFolder) -> None:
    write_json(folder.prediction, {"time": {"step_s": 1.5 * estimate_job(read_job(folder.job)).step_s}})
    assert predicted_spans(folder) == ()
    folder.job.unlink()
    assert predicted_spans(folder) == ()


def test_the_file_holds_measured_and_predicted_and_device_figures(folder: RunFolder, tmp_path: Path) -> None:
    cpu = {"kind": "cpu", "node": 0, "t": 100.5, "cpu_frac": 0.5, "used_bytes": 2**31}
    gpu = {"index": 0, "utilisation_frac": None, "used_bytes": 2**30, "power_w": 300.0}
    records = [cpu, {"kind": "gpu", "node": 0, "t": 100.5, "devices": [gpu]}]
    (folder.devices / "node-000.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records) + "torn\n")
    written = write_run_trace(folder, tmp_path / "out.json")
    events = json.loads(written.path.read_text())["traceEvents"]
    assert len(events) == written.num_events
    assert (written.num_ranks, written.num_steps, written.has_prediction) == (1, 1, True)
    assert {e["name"] for e in events if e["pid"] == 1 and e["ph"] == "X" and e["tid"] == 1} == {"step 2", "F 0"}
    counted = {e["name"]: e["args"]["value"] for e in events if e["ph"] == "C"}
    assert counted == {"cpu busy, share": 0.5, "memory, GiB": 2.0, "gpu 0 memory, GiB": 1.0, "gpu 0 power, W": 300.0}


def test_damaged_device_samples_hide_no_others(folder: RunFolder) -> None:
    good = {"kind": "cpu", "node": 0, "t": 1.0, "cpu_frac": 0.5, "used_bytes": 2**30}
    bad = [{}, {**good, "node": "x"}, {**good, "cpu_frac": "much"}, {"kind": "gpu", "node": 0, "t": 1.0, "devices": 3}]
    (folder.devices / "node-000.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*bad, [], good]))
    assert [s.name for s in device_samples(folder)].count("cpu busy, share") == 1


def test_a_run_that_told_nothing_or_a_place_that_cannot_be_written_is_a_sentence(
    folder: RunFolder, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        write_run_trace(folder, tmp_path / "nowhere" / "out.json")
    assert [fault.code for fault in refused.value.faults] == ["not_written"]
    rank_file(folder.path, 0).unlink()
    with pytest.raises(InvalidInputError) as refused:
        write_run_trace(folder, tmp_path / "out.json")
    assert [fault.code for fault in refused.value.faults] == ["nothing_told"]
    assert not (tmp_path / "out.json").exists()
