"""Cluster measures this machine, Watch lets a finished run correct the figures; both are undone by a click."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_runs import fake_run
from screens import open_page, texts
from streamlit.testing.v1 import AppTest

from tpdpdash import start_token as token
from tpdpdash.cluster.measured import MeasuredFile, config_path, read_measured, write_measured
from tpdpdash.cluster.spec import RankSpeed
from tpdpdash.telemetry.measurements import Measurement, Measurements, write_measurements
from tpdpdash.ui import services

FILE = MeasuredFile(
    v=1, date="2026-11-30 17:41", run="20261130-174004-calibrate-gdem", device="CPU",
    cores=len(os.sched_getaffinity(0)), figures={"peak_fp32_tflops": 0.09, "launch_us": 8.5},
    links={"scale_up_gb_per_s": 1.5},
    speeds=(
        RankSpeed(ranks=1, compute_frac=1.0, memory_frac=1.0),
        RankSpeed(ranks=2, compute_frac=0.9, memory_frac=0.5),
    ),
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    services.detection.clear()


def button(at: AppTest, label: str) -> Any:
    return next(each for each in at.button if each.label == label)


def test_before_anything_is_measured_the_button_offers_it() -> None:
    at = open_page("cluster", token=token.start_token())
    assert not at.exception
    assert not button(at, "Measure this machine").disabled


def test_who_may_not_start_may_not_measure() -> None:
    at = open_page("cluster")
    assert button(at, "Measure this machine").disabled


def test_what_is_measured_stands_beside_the_catalogue_with_its_date() -> None:
    write_measured(config_path(), FILE)
    at = open_page("cluster", token=token.start_token())
    assert not at.exception
    assert "Measured on 2026-11-30 17:41" in texts(at)
    assert "2 ranks at once: 90.0 %" in texts(at)
    assert not button(at, "Measure again").disabled


def test_forgetting_goes_back_to_the_catalogue() -> None:
    write_measured(config_path(), FILE)
    at = open_page("cluster", token=token.start_token())
    button(at, "Forget what was measured").click().run()
    assert not at.exception
    assert read_measured(config_path()) == (None, ())
    assert "Measured on 2026-11-30" not in texts(at)


def test_a_damaged_file_is_named_and_can_be_measured_anew() -> None:
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text("v = 77\n")
    at = open_page("cluster", token=token.start_token())
    assert not at.exception
    assert "is ignored" in texts(at)
    assert not button(at, "Measure this machine").disabled


def test_a_finished_measurement_is_taken_over(runs_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fake_run(runs_root, "finished", run_id="20261130-180000-calibrate-aaaa")
    shapes = ((64, 64, 64), (128, 256, 512), (512, 512, 512))
    taken = [Measurement(what="gemm", sizes=s, busy=1, seconds=2e-11 * s[0] * s[1] * s[2]) for s in shapes]
    taken += [Measurement(what="attention_forward", sizes=(128, 4, 64), busy=1, seconds=2.5e-4)]
    taken += [Measurement(what="update", sizes=(10**6,), busy=1, seconds=4e-3)]
    taken += [Measurement(what="layer_both", sizes=(256, 688, 4, 128), busy=1, seconds=1.2e-2)]
    write_measurements(folder.path, Measurements(is_cpu=True, world_size=2, taken=tuple(taken)))
    monkeypatch.setattr(
        "tpdpdash.run.calibrate.start_calibration", lambda *_, **__: SimpleNamespace(run_id=folder.run_id)
    )
    at = open_page("cluster", token=token.start_token())
    button(at, "Measure this machine").click().run()
    assert not at.exception
    file, _ = read_measured(config_path())
    assert file is not None
    assert file.run == folder.run_id


def test_a_finished_run_corrects_the_figures_and_cluster_undoes_it(runs_root: Path) -> None:
    folder = fake_run(runs_root, "finished", steps=15)
    write_measured(config_path(), FILE)
    at = open_page("watch", token=token.start_token(), run=folder.run_id)
    assert not at.exception
    button(at, "Correct the figures").click().run()
    assert not at.exception
    file, _ = read_measured(config_path())
    assert file is not None
    assert [each.run for each in file.corrections] == [folder.run_id]
    assert "This run corrects the figures" in texts(at)
    cluster = open_page("cluster", token=token.start_token())
    assert "computation ×" in texts(cluster)
    button(cluster, "Undo").click().run()
    assert not cluster.exception
    assert read_measured(config_path()) == (FILE, ())


def test_a_live_run_and_an_unmeasured_machine_offer_no_trust(runs_root: Path) -> None:
    finished, running = fake_run(runs_root, "finished"), fake_run(runs_root, run_id="20261130-101500-other-bbbb")
    at = open_page("watch", token=token.start_token(), run=finished.run_id)
    assert "Correct the figures" not in [each.label for each in at.button]
    write_measured(config_path(), FILE)
    at = open_page("watch", token=token.start_token(), run=running.run_id)
    assert "Correct the figures" not in [each.label for each in at.button]


def test_plan_says_that_figures_of_this_machine_were_measured() -> None:
    write_measured(config_path(), FILE)
    services.detection.clear()
    at = open_page("plan", model="gpt2", device="local")
    assert not at.exception
    assert "figures of this machine were measured on 2026-11-30 17:41" in texts(at)
