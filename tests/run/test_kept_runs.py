"""A real run's records: the supervisor's rollup, the trace, the archive and the way back."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
from live_runs import LiveRun

from tpdpdash.compare.run_trace import write_run_trace
from tpdpdash.run.archive import archive_run
from tpdpdash.run.history import list_runs
from tpdpdash.run.restore import restore_run
from tpdpdash.telemetry import files as files_module
from tpdpdash.telemetry.reader import RunReader, Telemetry
from tpdpdash.telemetry.rollup import rollup_dir
from tpdpdash.telemetry.rollup_reader import read_rollup

STEPS = 20


def read(folder: Path) -> tuple[Telemetry, int]:
    """What a reader says, and how many lines it parsed for it."""
    parsed = 0
    parse = files_module.parse_line

    def counting(line: bytes, world_size: int | None) -> dict[str, object]:
        nonlocal parsed
        parsed += 1
        return parse(line, world_size)

    files_module.parse_line = counting
    try:
        reader = RunReader(folder, 2)
        reader.refresh()
    finally:
        files_module.parse_line = parse
    return reader.snapshot(), parsed


def test_a_run_is_opened_by_its_rollup_traced_archived_and_restored(runs_root: Path, tmp_path: Path) -> None:
    run = LiveRun(runs_root, str(STEPS), "0.05")
    assert run.until_over(60).state == "finished"
    run.until_gone()
    rollup = read_rollup(run.folder.telemetry, 2)
    assert rollup is not None
    seen, parsed = read(run.folder.path)
    rollup_dir(run.folder.telemetry).rename(tmp_path / "rollup")
    plain, all_lines = read(run.folder.path)
    np.testing.assert_array_equal(seen.step_s, plain.step_s)
    np.testing.assert_array_equal(seen.phase_s, plain.phase_s)
    assert (seen.events, seen.ranks, seen.num_steps) == (plain.events, plain.ranks, plain.num_steps)
    assert parsed <= all_lines - 2 * STEPS, "no step is parsed again"

    trace = write_run_trace(run.folder, tmp_path / "trace.json.gz").path
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    lanes = {event["tid"] for event in events if event["ph"] == "X" and event["cat"] == "step"}
    assert (lanes, sum(event["ph"] == "X" and event["cat"] == "step" for event in events)) == ({1, 2}, 2 * STEPS)

    archived = archive_run(run.folder, tmp_path / "archive")
    assert archived.path.is_file()
    assert list_runs(runs_root) == []
    back = restore_run(archived.path, runs_root)
    assert (back.num_files, [view.state for view in list_runs(runs_root)]) == (archived.num_files, ["finished"])
    assert back.folder.rank_outputs(1).keys() == {"stdout.log", "stderr.log"}, "torchrun's folders, by their links"
