"""What NVML finds, through pynvml's real ctypes layer and a fake libnvidia-ml.so.1.

Rows r… are those of the reports of real users: each names what people hit, and what must hold.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from fake_nvml import GPU_REMOTE, FakeDriver, environment, scenario

from tpdpdash.cluster.detection import DetectedDevice, HostMemory
from tpdpdash.cluster.occupants import rank_devices
from tpdpdash.text import fault_text
from tpdpdash.units import GIB

H100_TOTAL_BYTES = 81_559 * 2**20
READINGS = (
    "total_bytes",
    "free_bytes",
    "utilisation_frac",
    "power_w",
    "power_limit_w",
    "temperature_c",
    "nvlink_links",
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDriver]:
    with FakeDriver(tmp_path_factory.mktemp("nvml")) as started:
        yield started


EIGHT_H100 = scenario([{}] * 7 + [{"power_error": "NOT_SUPPORTED", "used": 41 * GIB, "util": 97}])


def test_eight_h100_on_nvswitch_report_every_figure_but_the_one_that_is_not_supported(driver: FakeDriver) -> None:
    found = driver.detect(EIGHT_H100)
    assert found.problem is None
    assert found.driver_version == "580.95.05"
    assert len(found.devices) == len(found.healthy) == found.num_visible == 8
    assert [device.power_w for device in found.devices] == [71.0] * 7 + [None]
    last = found.devices[7]
    assert last.name == "NVIDIA H100 80GB HBM3"
    assert last.total_bytes == H100_TOTAL_BYTES
    assert last.used_bytes == 41 * GIB
    assert last.free_bytes == H100_TOTAL_BYTES - 41 * GIB - 572_522_496
    assert last.utilisation_frac == pytest.approx(0.97)
    assert (last.power_limit_w, last.temperature_c) == (700.0, 31.0)
    assert (last.nvlink_links, last.nvswitch, last.nvlink_version) == (18, True, 6)
    assert len(last.nvlink_peers or ()) == 4
    assert len({device.uuid for device in found.devices}) == 8


@pytest.mark.parametrize(
    ("refusal", "field"),
    [
        ("memory_error", "total_bytes"),
        ("util_error", "utilisation_frac"),
        ("power_error", "power_w"),
        ("limit_error", "power_limit_w"),
        ("temp_error", "temperature_c"),
        ("link_error", "nvlink_links"),
        ("mig_mode_error", "mig_mode"),
        ("uuid_error", "uuid"),
        ("name_error", "name"),
    ],
)
@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "NO_PERMISSION", "UNKNOWN"])
def test_a_refused_figure_is_unknown_and_all_others_are_still_told(
    driver: FakeDriver, refusal: str, field: str, error: str
) -> None:
    (device,) = driver.detect(scenario([{refusal: error}])).devices
    assert getattr(device, field) is None
    assert device.problem is None
    assert all(getattr(device, other) is not None for other in READINGS if other not in (field, "free_bytes"))


def test_a_virtual_gpu_shows_its_own_memory_and_what_its_host_keeps_is_unknown(driver: FakeDriver) -> None:
    refused = ("power", "limit", "temp", "link", "mig_mode", "remote_type")
    gpu = {"name": "GRID A100-20C", "total": 20 * GIB, "used": GIB, "reserved": 0, "util": 40}
    (device,) = driver.detect(scenario([{**gpu, **{f"{name}_error": "NOT_SUPPORTED" for name in refused}}])).devices
    assert (device.total_bytes, device.free_bytes, device.utilisation_frac) == (20 * GIB, 19 * GIB, 0.4)
    assert (device.power_w, device.power_limit_w, device.temperature_c) == (None, None, None)
    assert (device.nvlink_links, device.mig_mode, device.problem) == (None, None, None)
    assert device.visible


def test_a_whole_program_finds_the_fake_driver_by_its_environment(driver: FakeDriver) -> None:
    look = "import os; from tpdpdash.cluster.nvml import detect_devices as look"
    look += "; print([device.power_w for device in look(os.environ).devices])"
    command = [sys.executable, "-c", look]
    told = subprocess.run(command, env=environment(driver.library), capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str([71.0] * 7 + [None])


def test_an_older_driver_without_the_second_memory_question_still_reports_memory(driver: FakeDriver) -> None:
    (device,) = driver.detect(scenario([{"memory_v2_error": "FUNCTION_NOT_FOUND"}])).devices
    assert device.total_bytes == H100_TOTAL_BYTES
    assert device.used_bytes == 644_874_240 + 572_522_496


# ------------------------------------------------------------------------------------------------- unified memory


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param({"name": "NVIDIA GB10", "memory_error": "NOT_SUPPORTED", "power": 11170, "temp": 35}, id="r087"),
        pytest.param(
            {"name": "NVIDIA Thor", "memory_error": "NOT_SUPPORTED", "util_error": "NOT_SUPPORTED"}, id="r088"
        ),
        pytest.param({"name": "NVIDIA GB10", "memory_error": "NOT_SUPPORTED"}, id="r103"),
        pytest.param({"name": "NVIDIA GB10", "total": 0, "used": 0, "reserved": 0}, id="r105"),
        pytest.param({"name": "NVIDIA GB10", "total": 2**50}, id="r105-shim"),
    ],
)
def test_a_gpu_that_shares_the_hosts_memory_is_listed_with_unknown_memory(
    driver: FakeDriver, gpu: dict[str, object]
) -> None:
    host = HostMemory(total_bytes=127_600_748 * 1024, available_bytes=61 * GIB, cores=20)
    (device,) = driver.detect(scenario([gpu]), host=host).devices
    assert device.total_bytes is None
    assert device.unified_memory
    assert device.free_bytes == 61 * GIB
    assert device.problem is None


def test_r088_each_field_of_a_jetson_fails_alone(driver: FakeDriver) -> None:
    gpu = {"name": "Thor", "util_error": "NOT_SUPPORTED", "memory_error": "NOT_SUPPORTED", "power": 9000}
    (device,) = driver.detect(scenario([gpu])).devices
    assert (device.utilisation_frac, device.total_bytes, device.power_w) == (None, None, 9.0)


def test_a_known_gpu_with_more_memory_than_its_host_keeps_its_memory(driver: FakeDriver) -> None:
    small_host = HostMemory(total_bytes=64 * GIB, available_bytes=60 * GIB, cores=16)
    (device,) = driver.detect(scenario([{}]), host=small_host).devices
    assert device.total_bytes == H100_TOTAL_BYTES


# --------------------------------------------------------------------------------------- drivers that do not start


@pytest.mark.parametrize(
    ("error", "code", "mentions"),
    [
        pytest.param("LIB_RM_VERSION_MISMATCH", "driver_version_mismatch", ("driver", "mismatch", "reboot"), id="r096"),
        pytest.param("NO_PERMISSION", "driver_no_permission", ("permissions", "/dev/nvidia"), id="r097"),
        pytest.param("DRIVER_NOT_LOADED", "driver_not_loaded", ("not loaded",), id="not-loaded"),
        pytest.param("UNKNOWN", "driver_failed", ("NVML did not start",), id="anything-else"),
    ],
)
def test_a_driver_that_does_not_start_says_what_it_is_and_what_helps(
    driver: FakeDriver, error: str, code: str, mentions: tuple[str, ...]
) -> None:
    found = driver.detect(scenario(init=error))
    assert found.devices == ()
    assert found.problem is not None
    assert found.problem.code == code
    assert all(word in fault_text(found.problem) for word in mentions)


def test_r097_names_the_user(driver: FakeDriver) -> None:
    problem = driver.detect(scenario(init="NO_PERMISSION")).problem
    assert problem is not None
    assert problem.values["user"]


def test_a_driver_without_gpus_says_so(driver: FakeDriver) -> None:
    problem = driver.detect(scenario()).problem
    assert problem is not None
    assert problem.code == "no_gpu"


# ------------------------------------------------------------------------------------------------ GPUs in trouble


def test_r098_a_lost_gpu_is_listed_as_lost_beside_the_healthy_ones(driver: FakeDriver) -> None:
    found = driver.detect(scenario([{}, {"handle_error": "GPU_IS_LOST"}, {}]))
    assert found.lost == (1,)
    assert [device.index for device in found.healthy] == [0, 2]
    assert found.num_visible == 2
    assert [device.cuda_index for device in found.devices] == [0, None, 1]
    assert found.devices[1].problem is not None
    assert "lost" in fault_text(found.devices[1].problem)


def test_a_gpu_that_is_lost_between_two_questions_is_lost(driver: FakeDriver) -> None:
    found = driver.detect(scenario([{}, {"every_error": "GPU_IS_LOST"}]))
    assert found.lost == (1,)
    assert found.num_visible == 1


def test_a_gpu_that_does_not_answer_says_why(driver: FakeDriver) -> None:
    found = driver.detect(scenario([{"handle_error": "UNKNOWN"}, {}]))
    assert (found.lost, found.num_visible) == ((), 1)
    assert found.devices[0].problem is not None
    assert "Unknown Error" in fault_text(found.devices[0].problem)


def test_r095_gpus_without_load_under_wsl_show_their_memory(driver: FakeDriver) -> None:
    quadro = {"name": "Quadro RTX 8000", "total": 51_539_607_552, "util_error": "NOT_SUPPORTED", "reserved": 0}
    found = driver.detect(scenario([quadro | {"used": 465_567_744}, quadro | {"used": 2_613_051_392}]))
    assert [device.used_bytes for device in found.devices] == [465_567_744, 2_613_051_392]
    assert [device.utilisation_frac for device in found.devices] == [None, None]


# ---------------------------------------------------------------------------------------------------------- links


def test_r101_links_are_counted_up_to_the_first_invalid_argument(driver: FakeDriver) -> None:
    gpu = {"name": "NVIDIA GB200", "links": 18, "link_end": 18, "link_end_error": "INVALID_ARGUMENT"}
    (device,) = driver.detect(scenario([gpu])).devices
    assert device.nvlink_links == 18


def test_links_that_are_down_are_not_counted(driver: FakeDriver) -> None:
    (device,) = driver.detect(scenario([{"links": 5, "link_end": 12}])).devices
    assert device.nvlink_links == 5


def test_a_card_whose_links_are_all_down_has_none_and_not_unknown_many(driver: FakeDriver) -> None:
    (device,) = driver.detect(scenario([{"name": "NVIDIA H100 PCIe", "links": 0, "link_end": 12}])).devices
    assert (device.nvlink_links, device.nvlink_peers) == (0, ())


def test_bridged_gpus_name_each_other_as_peers(driver: FakeDriver) -> None:
    first, second = "00000000:01:00.0", "00000000:02:00.0"
    bridge = {"name": "NVIDIA RTX A6000", "links": 4, "link_end": 4, "link_version": 5, "remote_type": GPU_REMOTE}
    gpus = [
        bridge | {"pci": mine, "peer": [f"{link} {other}" for link in range(4)]}
        for mine, other in ((first, second), (second, first))
    ]
    found = driver.detect(scenario(gpus)).devices
    assert [device.nvlink_peers for device in found] == [(second,), (first,)]
    assert [device.nvswitch for device in found] == [False, False]


# ------------------------------------------------------------------------------------------------------------ MIG


def test_r091_a_mig_uuid_makes_one_slice_visible(driver: FakeDriver) -> None:
    uuid = "MIG-feee0c61-26ec-5616-bb59-b6d777cc4f34"
    gpu = {"uuid": "GPU-5a88edbe-90c4-2449-8c43-70c57591cca1", "mig": f"{uuid} 10200547328"}
    found = driver.detect(scenario([gpu]), {"CUDA_VISIBLE_DEVICES": uuid})
    assert found.num_visible == 1
    (slice_,) = found.devices[0].mig
    assert (slice_.uuid, slice_.total_bytes, slice_.visible) == (uuid, 10_200_547_328, True)


@pytest.mark.parametrize("util", [{"util_error": "NOT_SUPPORTED"}, {"util": 0}], ids=["r104", "r104-reported-as-0"])
def test_r104_the_load_of_a_gpu_in_slices_is_unknown_not_zero(driver: FakeDriver, util: dict[str, object]) -> None:
    found = driver.detect(scenario([{"name": "NVIDIA A100-SXM4-40GB", "mig": "MIG-x 42505273344"} | util]))
    assert found.devices[0].mig_mode is True
    assert found.devices[0].utilisation_frac is None


# --------------------------------------------------------------------------------- which of them CUDA would show


def indices(devices: tuple[DetectedDevice, ...]) -> list[int | None]:
    return [device.cuda_index for device in devices]


def test_cuda_counts_gpus_of_one_kind_by_pci_id(driver: FakeDriver) -> None:
    gpus = [{"pci": f"00000000:{bus}:00.0"} for bus in ("9B", "1B", "5B")]
    assert indices(driver.detect(scenario(gpus)).devices) == [2, 0, 1]


def test_r108_a_run_takes_the_gpus_that_slurm_assigned_by_their_uuids(driver: FakeDriver) -> None:
    """Another user's job has 0-3: nothing counts them as this run's first four."""
    assigned = {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "SLURM_JOB_GPUS": "4,5,6,7"}
    found = driver.detect(scenario([{}] * 8), assigned)
    assert rank_devices(found, 4) == tuple(device.uuid for device in found.devices[4:])
    assert found.num_visible == 4


def test_cuda_visible_devices_chooses_and_reorders(driver: FakeDriver) -> None:
    found = driver.detect(scenario([{}] * 4), {"CUDA_VISIBLE_DEVICES": "3,1"})
    assert indices(found.devices) == [None, 1, None, 0]
    assert [device.visible for device in found.devices] == [False, True, False, True]
    assert (found.num_visible, found.visible_devices) == (2, "3,1")


# Source: torch 2.13, torch.cuda._parse_visible_devices and _transform_uuid_to_ordinals, run on these strings.
@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("", []),
        ("-1", []),
        ("0,-1,2", [0]),
        ("0,9,2", [0]),
        ("9", []),
        ("1,1", []),
        (" 2 , 0", [2, 0]),
        ("1gpu,2", [1, 2]),
        ("gpu1,2", []),
        ("GPU-3ceb0000", [0]),
        ("GPU-3ceb2222-0000,GPU-3ceb0000", [2, 0]),
        ("GPU-3ceb", []),
        ("GPU-3ceb1111,GPU-nothing,GPU-3ceb0000", [1]),
        ("GPU-3ceb1111,0", [1]),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(driver: FakeDriver, text: str, visible: list[int]) -> None:
    found = driver.detect(scenario([{}] * 4), {"CUDA_VISIBLE_DEVICES": text})
    shown = {device.cuda_index: device.index for device in found.devices if device.visible}
    assert [shown[position] for position in sorted(key for key in shown if key is not None)] == visible
    assert found.num_visible == len(visible)


MIXED = scenario([{"pci": "00000000:90:00.0"}, {"name": "NVIDIA GeForce RTX 3090", "pci": "00000000:10:00.0"}])


def test_the_order_of_different_gpus_is_by_pci_id_only_when_cuda_is_told_so(driver: FakeDriver) -> None:
    by_pci = driver.detect(MIXED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"})
    assert [device.visible for device in by_pci.devices] == [False, True]
    fastest_first = driver.detect(MIXED, {"CUDA_VISIBLE_DEVICES": "0"})
    assert [device.visible for device in fastest_first.devices] == [None, None]
    assert fastest_first.num_visible == 1


def test_different_gpus_are_all_visible_without_a_list_though_their_order_is_unknown(driver: FakeDriver) -> None:
    found = driver.detect(MIXED)
    assert [device.visible for device in found.devices] == [True, True]
    assert indices(found.devices) == [None, None]
