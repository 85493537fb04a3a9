"""The cluster file: written, read back, used by device "local", undone, and refused where it is wrong."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from tpdpdash.cluster.detection import Detection, HostMemory
from tpdpdash.cluster.local import read_local, with_ranks
from tpdpdash.cluster.measured import (
    Check,
    Correction,
    MeasuredFile,
    config_path,
    forget_measured,
    read_measured,
    with_measured,
    write_measured,
)
from tpdpdash.cluster.spec import RankSpeed

FILE = MeasuredFile(
    v=1,
    date="2026-11-30 17:41",
    run="20261130-174004-calibrate-gdem",
    device="CPU",
    cores=2,
    figures={"peak_fp32_tflops": 0.09, "gemm_efficiency": 0.95, "launch_us": 8.0, "memory_gb_per_s": 20.0},
    links={
        "scale_up_gb_per_s": 1.5,
        "scale_up_latency_us": 200.0,
        "scale_up_message_us": 600.0,
        "scale_up_efficiency": 1.0,
    },
    speeds=(
        RankSpeed(ranks=1, compute_frac=1.0, memory_frac=1.0),
        RankSpeed(ranks=2, compute_frac=0.8, memory_frac=0.5),
    ),
)
HERE = Detection(
    devices=(),
    driver_version=None,
    problem=None,
    host=HostMemory(total_bytes=8 << 30, available_bytes=6 << 30, cores=2),
)


def local(file: MeasuredFile | None = FILE, **host: int):
    return read_local(replace(HERE, measured=file, host=replace(HERE.host, **host)))


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "new" / "cluster.toml"
    written = replace(
        FILE,
        corrections=(Correction(run="r1", date="2026-11-30 18:00", compute=1.1, messages=0.9),),
        checks=(Check(layout="tp2", hidden_size=256, ranks=2, predicted_s=0.4, measured_s=0.5),),
    )
    write_measured(path, written)
    assert read_measured(path) == (written, ())
    assert [each.name for each in path.parent.iterdir()] == ["cluster.toml"]
    assert pickle.loads(pickle.dumps(written)) == written  # the dashboard keeps what was detected


def test_without_a_file_nothing_is_measured_and_nothing_is_said(tmp_path):
    assert read_measured(tmp_path / "cluster.toml") == (None, ())
    assert local(None).notices == ()
    assert local(None).cluster.measured is None


def test_the_file_is_in_the_users_config_directory(tmp_path):
    assert config_path() == tmp_path / "config" / "tpdpdash" / "cluster.toml"


def test_forgetting_removes_it_and_says_whether_it_was_there(tmp_path):
    path = tmp_path / "cluster.toml"
    write_measured(path, FILE)
    assert forget_measured(path)
    assert not forget_measured(path)
    assert read_measured(path) == (None, ())


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("v = 1\n", "cluster file.date"),
        ("v = 9\n", "cluster file.v"),
        ("[device_figures]\ngemm_efficiency = 7\n", "cluster file.device_figures.gemm_efficiency"),
        ("[links]\nspeed = 1\n", "cluster file.links.speed"),
        ("links = 3\n", "cluster file.links"),
        ("speeds = 3\n", "cluster file.speeds"),
        ("[[checks]]\nlayout='tp2'\npredicted_s=0\n", "cluster file.checks.predicted_s"),
        ("[[corrections]]\nrun='r'\ndate='d'\ncompute=0\n", "cluster file.corrections.compute"),
    ],
)
def test_a_wrong_file_is_ignored_and_every_fault_is_named(tmp_path: Path, text, field):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    found, faults = read_measured(path)
    assert found is None
    assert faults[0].code == "measured_file_wrong"
    assert field in {fault.field for fault in faults}


@pytest.mark.parametrize("content", [b"not toml at all", b"\xff\xfe", b"#" * (1 << 21)])
def test_a_file_that_is_no_toml_is_ignored(tmp_path, content):
    path = tmp_path / "cluster.toml"
    path.write_bytes(content)
    found, faults = read_measured(path)
    assert found is None
    assert [fault.code for fault in faults] == ["measured_file_wrong"]
    assert local_with_faults(faults).notices == faults


def local_with_faults(faults):
    return read_local(replace(HERE, measured_faults=faults))


def test_local_uses_the_measured_figures_and_says_since_when():
    found = local()
    device = found.cluster.device
    assert [notice.code for notice in found.notices] == ["measured_here"]
    assert device.gemm_efficiency == 0.95
    assert device.sources["gemm_efficiency"].kind == "measured"
    assert "2026-11-30 17:41" in device.sources["gemm_efficiency"].source
    assert found.cluster.scale_up.latency_s == pytest.approx(200e-6)
    assert found.cluster.scale_up.message_s == pytest.approx(600e-6)
    assert found.cluster.scale_up.source.kind == "measured"
    assert found.cluster.network.source.kind != "measured"
    assert found.cluster.measured is not None
    assert found.cluster.measured.run_id == FILE.run


@pytest.mark.parametrize("host", [{"cores": 4}, {"cores": 1}])
def test_a_file_of_another_machine_is_ignored_and_that_is_said(host):
    found = local(**host)
    assert [notice.code for notice in found.notices] == ["measured_elsewhere"]
    assert found.cluster.measured is None
    assert local(replace(FILE, device="A100-SXM4-80GB")).notices[0].code == "measured_elsewhere"


def test_ranks_share_the_machine_as_it_was_measured():
    two = local().cluster
    one, four = with_ranks(two, 1), with_ranks(two, 4)
    assert one.device.peak_flops_per_s["fp32"] == pytest.approx(0.09e12)
    assert two.device.peak_flops_per_s["fp32"] == pytest.approx(0.8 * 0.09e12)
    assert four.device.peak_flops_per_s["fp32"] == pytest.approx(0.4 * 0.09e12)
    assert [c.device.memory_bytes_per_s for c in (one, two, four)] == pytest.approx([20e9, 10e9, 5e9])
    assert [c.device.launch_s for c in (one, two, four)] == pytest.approx([8e-6, 10e-6, 20e-6])
    assert with_ranks(four, 2).device.peak_flops_per_s == pytest.approx(two.device.peak_flops_per_s)


def test_corrections_multiply_and_name_their_runs():
    corrections = (
        Correction(run="r1", date="d1", compute=2.0, messages=1.0),
        Correction(run="r2", date="d2", compute=1.5, messages=4.0),
    )
    plain, corrected = local().cluster, with_measured(local(None).cluster, replace(FILE, corrections=corrections))
    assert corrected.measured is not None
    assert corrected.measured.corrected_by == ("r1", "r2")
    assert corrected.device.peak_flops_per_s["fp32"] == pytest.approx(0.09e12 / 3)
    assert corrected.device.launch_s == pytest.approx(24e-6)
    assert corrected.scale_up.bytes_per_s == pytest.approx(plain.scale_up.bytes_per_s / 4)
    assert corrected.scale_up.latency_s == pytest.approx(plain.scale_up.latency_s * 4)
    assert corrected.scale_up.message_s == pytest.approx(plain.scale_up.message_s * 4)
    assert "r1, r2" in corrected.device.sources["launch_s"].source


def test_short_runs_tell_how_far_the_figures_are_off():
    checks = (
        Check(layout="tp1", hidden_size=256, ranks=1, predicted_s=0.4, measured_s=0.3),
        Check(layout="tp2", hidden_size=256, ranks=2, predicted_s=0.4, measured_s=0.5),
    )
    found = local(replace(FILE, checks=checks)).cluster.measured
    assert found is not None
    assert found.miss_fracs == pytest.approx((0.25, 0.25))
    assert found.checked_ranks == 2
