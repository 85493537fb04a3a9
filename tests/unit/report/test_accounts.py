"""A run taken to account, in the terminal and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from tpdpdash.cli import app
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.job import parse_job
from tpdpdash.run.folder import RunFolder, new_run_folder, write_json
from tpdpdash.run.status import RunStatus
from tpdpdash.telemetry.record import RecordWriter, rank_file

JOB = """
[model]
preset = "llama-3.2-1b"
[cluster]
device = "A100-SXM4-80GB"
nodes = 1
devices_per_node = 2
[training]
seq_len = 1024
global_batch_size = 8
framework = "builtin"
[layout]
dp = 2
"""


def finished_run(root: Path, *, steps: int = 12) -> RunFolder:
    """DP 2: rank 1 takes 0.3 s longer in backward, rank 0 waits for it in dp."""
    folder = new_run_folder(root, "told")
    folder.job.write_text(JOB)
    write_json(folder.prediction, estimate_job(parse_job(JOB).resolved()).to_json())
    about = {"engine": "local", "host": "here", "boot_id": "b", "created": 1.0, "supervisor_pid": 1}
    status = RunStatus(state="finished", supervisor_start_time=1.0, world_size=2, last_step=steps, **about)
    write_json(folder.status, status.to_json())
    for rank in range(2):
        writer = RecordWriter(rank_file(folder.path, rank), rank)
        writer.write("hello", {"pid": 1, "host": "a", "world_size": 2, "coords": {"dp": rank, "pp": 0}})
        phases = {"forward": 0.3, "backward": 0.6 + 0.3 * rank, "dp": 0.4 - 0.3 * rank}
        for step in range(1, steps + 1):
            figures = {"step": step, "step_s": 1.3, "phase_s": phases, "tokens": 4096, "loss": 5.0 - step / 10}
            writer.write("step", {**figures, "memory_bytes": 4 << 30, "peak_memory_bytes": 5 << 30})
        writer.close()
    return folder


def show(folder: RunFolder, *options: str) -> str:
    return CliRunner().invoke(app, ["show", folder.run_id, *options], catch_exceptions=False).stdout


def test_show_tells_figures_verdict_and_each_part_beside_its_prediction(runs_root: Path) -> None:
    told = show(finished_run(runs_root))
    assert "step 1.30 s, 6,302 tokens/s, loss 3.800" in told
    assert "Rank 1 is slow." in told
    assert "300 ms longer a step (+ 33 %)" in told
    assert "Most of the gap is in compute" in told
    rows = {line.split("  ")[0]: line.split() for line in told.splitlines() if "  " in line}
    assert rows["DP messages"][-5:-3] == ["100", "ms"]
    assert "waiting for other ranks" in rows


def test_the_document_has_the_same(runs_root: Path) -> None:
    document = json.loads(show(finished_run(runs_root), "--json"))
    assert document["state"] == "finished"
    assert document["measured"]["step_s"] == 1.3
    assert document["measured"]["loss"] == 3.8
    assert (document["verdict"]["code"], document["verdict"]["slow_ranks"][0]["rank"]) == ("slow_rank", 1)
    assert document["verdict"]["text"].startswith("Rank 1 is slow.")
    parts = document["prediction"]["parts"]
    assert abs(sum(part["measured_s"] for part in parts.values()) - 1.3) < 1e-6
    assert abs(sum(part["predicted_s"] for part in parts.values()) - document["prediction"]["predicted_step_s"]) < 1e-6
    assert document["prediction"]["memory"][0]["predicted_bytes"] > 1e9


def test_before_the_first_step_there_is_no_account(runs_root: Path) -> None:
    document = json.loads(show(finished_run(runs_root, steps=0), "--json"))
    assert (document["measured"], document["verdict"], document["prediction"]) == (None, None, None)
