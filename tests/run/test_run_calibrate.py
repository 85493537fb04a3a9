"""The microbenchmarks run under torchrun as a run of their own, tiny, and become a cluster file."""

from __future__ import annotations

from tpdpdash.cluster.detection import Detection, HostMemory
from tpdpdash.cluster.measured import read_measured, write_measured
from tpdpdash.compare.calibration import cluster_file
from tpdpdash.run.calibrate import start_calibration
from tpdpdash.run.follow import follow
from tpdpdash.run.stop import stop_run
from tpdpdash.telemetry.measurements import read_measurements

HERE = Detection(
    devices=(), driver_version=None, problem=None, host=HostMemory(total_bytes=None, available_bytes=None, cores=2)
)


def test_two_ranks_measure_and_a_cluster_file_can_be_written(runs_root, tmp_path):
    folder = start_calibration(HERE, tiny=True, root=runs_root)
    try:
        last = list(follow(folder))[-1].view
    finally:
        stop_run(folder, by="test")
    assert last.state == "finished", folder.agent_log.read_text()
    assert last.status.last_step == last.status.steps == 4
    measured = read_measurements(folder.path)
    assert (measured.is_cpu, measured.world_size) == (True, 2)
    found = {(each.what, each.busy) for each in measured.taken}
    computed = {"gemm", "attention_forward", "attention_backward", "layer_forward", "layer_both", "update"}
    sent = {"all_reduce", "all_gather", "reduce_scatter", "send"}
    steps = {("step", busy) for busy in (1, 2)}
    assert found == {(what, busy) for what in computed for busy in (1, 2)} | {(what, 2) for what in sent} | steps
    assert min(each.seconds for each in measured.taken) > 0
    file, _ = cluster_file(folder.path, run_id=folder.run_id, device="CPU", cores=2, date="2026-11-30 17:41")
    assert [(each.layout, each.ranks) for each in file.checks] == [("tp1", 1), ("tp2", 2), ("pp2", 2), ("dp2", 2)]
    write_measured(tmp_path / "cluster.toml", file)
    assert read_measured(tmp_path / "cluster.toml") == (file, ())
