"""Cluster opens whatever NVML says, names what is here, and never shows 0 for what is not reported."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from screens import open_page, texts
from streamlit.testing.v1 import AppTest

from tpdpdash.cluster.catalogue import default_cluster
from tpdpdash.cluster.detection import DetectedDevice, Detection, HostMemory
from tpdpdash.faults import Fault
from tpdpdash.ui import cluster_view

GB = 10**9
HOST = HostMemory(total_bytes=23 * GB, available_bytes=20 * GB, cores=2)
A100 = default_cluster("A100-SXM4-80GB", 1, 8)
NOTHING = Detection(devices=(), driver_version=None, problem=None, host=HOST)
GPU = DetectedDevice(
    index=0, cuda_index=0, uuid="GPU-3ceb3ffd-0000", name="NVIDIA H100 80GB HBM3", pci_bus_id="0000:01:00.0",
    total_bytes=85_520_809_984, used_bytes=600_000_000, free_bytes=84_920_809_984, utilisation_frac=0.5, power_w=71.0,
    temperature_c=31.0, nvlink_links=18, nvswitch=True, visible=True,
)  # fmt: skip


def cluster_with(detection: Detection, **params: str) -> AppTest:
    """The screen on a machine where this is detected."""
    with patch("tpdpdash.job.detect_devices", return_value=detection):
        return open_page("cluster", **params)


def test_a_machine_without_a_gpu_says_what_it_has() -> None:
    at = cluster_with(NOTHING)
    assert not at.exception
    assert "No NVIDIA driver here: CPU, 2 cores, 21.4 GiB." in texts(at)
    assert "rehearse on the CPU" in texts(at)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        pytest.param("driver_version_mismatch", "mismatch", id="r096"),
        pytest.param("driver_no_permission", "permissions for user ada", id="r097"),
        pytest.param("driver_not_loaded", "modprobe", id="not loaded"),
        pytest.param("driver_failed", "did not start", id="unknown error"),
        pytest.param("no_gpu", "shows no GPU", id="no GPU"),
        pytest.param("no_driver", "No NVIDIA driver here", id="no driver"),
    ],
)
def test_it_opens_under_every_fault_of_the_driver_and_names_it(code: str, word: str) -> None:
    at = cluster_with(
        replace(NOTHING, problem=Fault(code=code, field="devices", values={"reason": "x", "user": "ada"}))
    )
    assert not at.exception
    assert at.title[0].value == "Cluster"
    assert word in texts(at)
    assert "CPU, 2 cores" in texts(at)


def test_every_gpu_is_listed_and_what_is_not_reported_is_unknown() -> None:
    silent = replace(GPU, index=1, uuid=None, used_bytes=None, free_bytes=None, total_bytes=None, power_w=None,
                     utilisation_frac=None, temperature_c=None, nvlink_links=None)  # fmt: skip
    at = cluster_with(replace(NOTHING, devices=(GPU, silent), driver_version="580.95", num_visible=2))
    assert not at.exception
    rows = at.dataframe[0].value
    assert len(rows) == 2
    assert rows.iloc[0]["Memory"] == "0.6 of 79.6 GiB"
    assert set(rows.iloc[1][["UUID", "Load", "Power", "Temperature", "Links"]]) == {"unknown"}
    assert rows.iloc[1]["Memory"] == "not reported by the driver"
    assert any(metric.label == "Power" and "1 of 2 report" in str(metric.proto) for metric in at.metric)


def test_the_answer_says_which_gpu_is_in_use_and_how_they_are_joined() -> None:
    busy = replace(GPU, index=3, used_bytes=41_000_000_000)
    at = cluster_with(replace(NOTHING, devices=(GPU, busy), driver_version="580.95", num_visible=2))
    assert "2 × NVIDIA H100 80GB HBM3, all joined by NVSwitch." in texts(at)
    assert "1 free; GPU 3 holds 38.2 GiB." in texts(at)


def test_a_lost_gpu_does_not_take_the_others_with_it() -> None:
    lost = DetectedDevice(index=1, lost=True)
    at = cluster_with(replace(NOTHING, devices=(GPU, lost, replace(GPU, index=2)), driver_version="1", num_visible=2))
    assert not at.exception
    assert "lost: GPU 1" in texts(at)
    assert len(at.dataframe[0].value) == 3


def test_the_link_matrix_tells_switch_peer_and_bus_apart() -> None:
    switched = cluster_view.link_table((GPU, replace(GPU, index=1)))
    assert switched.iloc[0].tolist() == ["GPU 0", "·", "NVSwitch"]
    pair = replace(GPU, nvswitch=False, nvlink_peers=("0000:02:00.0",))
    others = (
        pair,
        replace(pair, index=1, pci_bus_id="0000:02:00.0"),
        replace(pair, index=2, pci_bus_id="0000:03:00.0"),
    )
    assert cluster_view.link_table(others).iloc[0].tolist() == ["GPU 0", "·", "NVLink", "PCIe"]
    one_sided = (replace(others[0], nvlink_peers=()), others[1])
    bridged = (one_sided[0], replace(one_sided[1], nvlink_peers=("0000:01:00.0",)))
    assert cluster_view.link_table(bridged).iloc[0, 2] == "NVLink", "a bridge that one side reports"
    silent = replace(GPU, nvswitch=None, nvlink_peers=None, nvlink_links=None)
    assert cluster_view.link_table((silent, replace(silent, index=1))).iloc[0, 2] == "unknown"


def test_gpus_of_two_kinds_are_planned_with_the_smaller_one_and_it_is_said() -> None:
    smaller = replace(GPU, index=1, name="NVIDIA A100-SXM4-80GB")
    at = cluster_with(replace(NOTHING, devices=(GPU, smaller), driver_version="1", num_visible=2))
    assert not at.exception
    assert "planned with the smallest" in texts(at)


def test_a_power_limit_that_nobody_gave_is_unknown() -> None:
    assert (
        cluster_view.figures_table(replace(A100, device=replace(A100.device, power_w=float("nan"))))
        .set_index("Figure")
        .loc["Power limit", "Value"]
        == "unknown"
    )


def test_each_peak_has_the_source_of_its_own_precision() -> None:
    shown = cluster_view.figures_table(default_cluster("CPU", 1, 2)).set_index("Figure")["Source"]
    assert "AVX2" in shown["Peak fp32 (TF32 where it has it), dense"]
    assert shown["Peak bf16, dense"] == "no bf16 units: as fp32"


def test_r133_a_device_name_is_shown_as_text() -> None:
    name = "<img src=x onerror=alert(1)>"
    at = cluster_with(replace(NOTHING, devices=(replace(GPU, name=name),), driver_version="1", num_visible=1))
    assert f"1 × {name}" in texts(at)
    assert "\\<img" in at.success[0].value


def test_a_described_cluster_shows_each_figure_with_its_source() -> None:
    at = cluster_with(NOTHING, show="described", device="A100-SXM4-80GB", nodes="128", price="2")
    assert not at.exception
    assert at.metric[0].value == "1,024"
    table = at.table[0].value
    assert set(table["From"].iloc[:10]) <= {"datasheet", "fitted", "assumed"}
    assert (table["Source"].iloc[:10] != "").all()


def test_an_unknown_device_in_the_address_is_a_sentence() -> None:
    at = cluster_with(NOTHING, show="described", device="A100")
    assert not at.exception
    assert "A100-SXM4-80GB" in texts(at)
