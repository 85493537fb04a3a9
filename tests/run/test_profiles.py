"""A deep profile of one step of real runs: the built-in worker, a script with two lines, a script with none."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from live_runs import START_S, wait_for
from rank_records import records

from tpdpdash.run.archive import archive_run, delete_run
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.history import read_state
from tpdpdash.run.stop import stop_run
from tpdpdash.telemetry.profile_file import kept_profiles, read_profile
from tpdpdash.telemetry.profile_table import ProfileTable, profile_table
from tpdpdash.telemetry.reader import RunReader

SCRIPT = Path(__file__).with_name("profiled_script.py")
JOB = """
[model]
name = "tiny"
num_layers = 2
hidden_size = 64
num_attention_heads = 4
num_kv_heads = 4
head_dim = 16
ffn_hidden_size = 128
vocab_size = 256
[cluster]
device = "CPU"
nodes = 1
devices_per_node = 2
[training]
seq_len = 32
global_batch_size = 4
steps = 8
precision = "fp32"
framework = "builtin"
[layout]
tp = 2
"""


def cli(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command, to its end."""
    command = [sys.executable, "-m", "tpdpdash", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=250, check=False)


def tables(folder: RunFolder) -> dict[tuple[int, int], ProfileTable]:
    """What each profile of a run says, by step and rank."""
    return {
        (kept.step, kept.rank): profile_table(read_profile(kept.path), top=1000) for kept in kept_profiles(folder.path)
    }


def test_a_step_of_the_built_in_worker_is_profiled_on_the_asked_ranks_and_merged_into_the_trace(
    tmp_path: Path, runs_root: Path
) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    ended = cli("run", "job.toml", "--profile-step", "5", "--profile-ranks", "0,1", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    folder = RunFolder(runs_root / ended.stdout.strip())
    found = tables(folder)
    assert sorted(found) == [(5, 0), (5, 1)]
    for shown in found.values():
        phases = {row.phase: row for row in shown.phases}
        assert phases["forward"].kind_s["gemm"] > 0
        assert phases["backward"].kind_s["gemm"] > 0
        assert phases["tp"].kind_s["communication"] > 0
        assert phases["tp"].kind_s["gemm"] == 0
    told = RunReader(folder.path, 2)
    told.refresh()
    assert told.snapshot().undisturbed().steps.tolist() == [1, 2, 3, 4, 7, 8]
    assert len(records(folder.path, "step", 1)) == 8

    shown_again = cli("show", folder.run_id)
    assert shown_again.stdout.count("step-5.json.gz") == 2
    document = json.loads(cli("show", folder.run_id, "--json").stdout)
    assert [(each["rank"], each["step"]) for each in document["profiles"]] == [(0, 5), (1, 5)]

    out = tmp_path / "all.json.gz"
    traced = cli("trace", folder.run_id, "--out", str(out))
    assert "2 deep profiles of a step" in traced.stdout
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    processes = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    deep = processes["rank 1, step 5: deep profile"]
    (step_5,) = [e for e in events if e["name"] == "step 5" and e["tid"] == 2]
    products = [e for e in events if e["pid"] == deep and e["name"] == "aten::mm"]
    assert products
    assert all(step_5["ts"] <= e["ts"] and e["ts"] + e["dur"] <= step_5["ts"] + step_5["dur"] for e in products)

    archive = archive_run(folder, tmp_path / "kept")
    names = subprocess.run(["tar", "tzf", str(archive.path)], capture_output=True, text=True, check=True).stdout
    assert "profiles/rank-00001.step-5.json.gz" in names
    assert not folder.path.exists()


@pytest.mark.parametrize("kind", ["watched", "unasked"])
def test_a_plain_script_is_profiled_while_it_runs_and_goes_on(kind: str, tmp_path: Path, runs_root: Path) -> None:
    started = cli("run", "--nproc", "2", "--detach", "--", str(SCRIPT), kind, "100000", cwd=tmp_path)
    folder = RunFolder(runs_root / started.stdout.strip())
    try:
        wait_for(lambda: read_state(folder).status.last_step is not None, START_S)
        asked = cli("profile", folder.run_id, "--ranks", "1")
        assert asked.returncode == 0, asked.stderr
        assert "aten::mm" in asked.stdout
        (step,) = {step for step, _ in tables(folder)}
        assert list(tables(folder)) == [(step, 1)]
        if kind == "watched":
            phases = {row.phase: row for row in tables(folder)[step, 1].phases}
            assert phases["dp"].kind_s["communication"] > 0
            assert phases["optimizer"].wall_s > 0
            refused = cli("profile", folder.run_id, "--ranks", "2", "--step", "1")
            assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 2)
        else:
            again = cli("profile", folder.run_id, "--ranks", "0,1", "--json")
            assert [each["rank"] for each in json.loads(again.stdout)] == [0, 1]
        wait_for(lambda: (read_state(folder).status.last_step or 0) > step + 5, START_S)
    finally:
        stop_run(folder, by="test")
    over = cli("profile", folder.run_id)
    assert (over.returncode, over.stdout) == (2, "")
    assert "only a run that goes on can be profiled" in over.stderr
    delete_run(folder)
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--profile-step", "5", "--profile-ranks", "0;1"), "must be ranks with commas"),
        (("--profile-step", "1"), "--profile-step is 1"),
        (("--profile-step", "5", "--profile-ranks", "4"), "there is no rank 4"),
    ],
)
def test_a_wrong_request_starts_nothing(words: tuple[str, ...], said: str, tmp_path: Path, runs_root: Path) -> None:
    ended = cli("run", "--nproc", "2", *words, "--", str(SCRIPT), "watched", "1", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert not runs_root.exists()
