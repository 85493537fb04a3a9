"""This machine as a cluster: detected GPUs, or the CPU over gloo."""

from __future__ import annotations

import pickle
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpdpdash.cluster.catalogue import catalogue_device, default_cluster
from tpdpdash.cluster.detection import DetectedDevice, Detection, HostMemory, MigInstance
from tpdpdash.cluster.host import host_memory
from tpdpdash.cluster.local import cpu_cluster, read_local, with_ranks
from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cluster.topology import joined_by_nvlink, link_matrix
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.text import fault_text
from tpdpdash.units import GIB

HOST = HostMemory(total_bytes=1000 * GIB, available_bytes=900 * GIB, cores=64)
SWITCHES = ("00000000:C0:00.0", "00000000:C1:00.0")


def gpu(index: int, name: str, total_gib: float | None, **facts: object) -> DetectedDevice:
    total = None if total_gib is None else int(total_gib * GIB)
    device = DetectedDevice(index=index, name=name, total_bytes=total, pci_bus_id=f"00000000:{index:02X}:00.0")
    return replace(device, **({"visible": True, "cuda_index": index} | facts))  # type: ignore[arg-type]


def h100(index: int, **facts: object) -> DetectedDevice:
    links = {"nvlink_links": 18, "nvlink_version": 6, "nvlink_peers": SWITCHES, "nvswitch": True}
    return gpu(index, "NVIDIA H100 80GB HBM3", 79.65, **(links | facts))


def detection(*devices: DetectedDevice, host: HostMemory = HOST) -> Detection:
    visible = sum(device.visible is True for device in devices)
    return Detection(devices=devices, driver_version="580", problem=None, host=host, num_visible=visible)


def local_cluster(found: Detection, **sizes: int) -> ClusterSpec:
    return read_local(found, **sizes).cluster


def refused(found: Detection, **sizes: int) -> Fault:
    with pytest.raises(InvalidInputError) as raised:
        local_cluster(found, **sizes)
    (fault,) = raised.value.faults
    assert fault_text(fault)
    return fault


# -------------------------------------------------------------------------------------------------------------- GPUs


def test_detected_gpus_have_the_catalogues_figures_and_the_drivers_memory() -> None:
    cluster = local_cluster(detection(*map(h100, range(8))))
    assert (cluster.device.name, cluster.world_size, cluster.asked_device) == ("H100-SXM5-80GB", 8, "local")
    assert cluster.device.memory_bytes == int(79.65 * GIB)
    assert cluster.device.usable_bytes == pytest.approx(79.1 * GIB)
    assert cluster.device.sources["memory_bytes"].kind == "detected"
    assert cluster.scale_up.bytes_per_s == pytest.approx(450e9)
    assert cluster.scale_up.source.kind == "detected"
    assert cluster.scale_up.sources["latency_s"].kind == "datasheet"


def test_the_power_limit_that_is_set_is_what_energy_is_counted_with() -> None:
    cluster = local_cluster(detection(h100(0, power_limit_w=500.0)))
    assert cluster.device.power_w == 500.0
    assert cluster.device.sources["power_w"].kind == "detected"


def test_several_machines_like_this_one_are_planned_with() -> None:
    assert local_cluster(detection(*map(h100, range(8))), nodes=4, devices_per_node=4).world_size == 16


def test_more_devices_than_are_visible_are_refused() -> None:
    fault = refused(detection(h100(0), h100(1, visible=False)), devices_per_node=2)
    assert (fault.code, fault.values["nearest"]) == ("more_than_detected", 1)


def test_hidden_and_lost_gpus_are_not_planned_with() -> None:
    lost = Fault(code="gpu_lost", field="devices", value=1)
    devices = (h100(0), DetectedDevice(index=1, lost=True, visible=False, problem=lost), h100(2, visible=False))
    assert local_cluster(detection(*devices)).devices_per_node == 1


def test_r075_pcie_cards_without_nvlink_are_joined_by_pcie() -> None:
    cards = [gpu(i, "NVIDIA H100 PCIe", 79.6, nvlink_links=0, nvlink_peers=()) for i in range(2)]
    cluster = local_cluster(detection(*cards))
    assert cluster.device.name == "H100-PCIe-80GB"
    assert "PCIe" in cluster.scale_up.name
    assert cluster.scale_up.bytes_per_s == pytest.approx(63e9)


def test_r075_an_sxm_name_with_no_active_link_is_not_planned_with_nvlink() -> None:
    facts = {"nvlink_links": 0, "nvlink_peers": (), "pcie_generation": 5, "pcie_width": 8}
    cluster = local_cluster(detection(h100(0, **facts), h100(1, **facts)))
    assert cluster.scale_up.name == "PCIe 5 x8"
    assert cluster.scale_up.bytes_per_s == pytest.approx(31.5e9)


def test_r101_18_links_of_a_gb200_are_nvlink() -> None:
    facts = {"nvlink_links": 18, "nvlink_version": 7, "nvlink_peers": SWITCHES, "nvswitch": True}
    cluster = local_cluster(detection(*(gpu(i, "NVIDIA GB200", 185.0, **facts) for i in range(4))))
    assert "NVLink" in cluster.scale_up.name
    assert cluster.scale_up.bytes_per_s == pytest.approx(900e9)


def bridged(pairs: dict[int, int]) -> list[DetectedDevice]:
    return [
        gpu(i, "NVIDIA RTX A6000", 47.99, nvlink_links=4, nvlink_version=5, nvswitch=False,
            nvlink_peers=(f"00000000:{other:02X}:00.0",))
        for i, other in pairs.items()
    ]  # fmt: skip


def test_two_bridged_cards_have_the_bridges_bandwidth() -> None:
    cluster = local_cluster(detection(*bridged({0: 1, 1: 0})))
    assert cluster.scale_up.bytes_per_s == pytest.approx(56.25e9)


def test_bridges_that_join_only_pairs_are_not_counted_and_that_is_said() -> None:
    found = read_local(detection(*bridged({0: 1, 1: 0, 2: 3, 3: 2})))
    assert "PCIe" in found.cluster.scale_up.name
    assert [notice.code for notice in found.notices] == ["partial_nvlink"]
    assert fault_text(found.notices[0])


def test_links_that_are_not_reported_leave_the_catalogues_word() -> None:
    unknown = {"nvlink_links": None, "nvlink_version": None, "nvlink_peers": None, "nvswitch": None}
    cluster = local_cluster(detection(h100(0, **unknown), h100(1, **unknown)))
    assert cluster.scale_up == default_cluster("H100-SXM5-80GB", 1).scale_up


def test_the_link_matrix_tells_switch_bridge_and_bus_apart() -> None:
    pair = bridged({0: 1, 1: 0, 2: 3, 3: 2})
    assert link_matrix(pair)[0] == (None, "nvlink", "pcie", "pcie")
    assert link_matrix([h100(0), h100(1)]) == ((None, "nvswitch"), ("nvswitch", None))
    older = {"nvswitch": None}
    assert link_matrix([h100(0, **older), h100(1, **older)])[0][1] == "nvswitch"


def test_a_mesh_in_which_each_gpu_reaches_the_others_over_peers_is_joined() -> None:
    ring = [
        gpu(i, "Tesla V100-SXM2-32GB", 32, nvlink_links=2, nvlink_version=2, nvswitch=False,
            nvlink_peers=tuple(f"00000000:{(i + step) % 4:02X}:00.0" for step in (1, 3)))
        for i in range(4)
    ]  # fmt: skip
    assert joined_by_nvlink(ring) is True


def test_b56_mixed_gpus_are_planned_with_the_smallest_and_that_is_said() -> None:
    big = [gpu(i, "NVIDIA A100-SXM4-80GB", 80, nvlink_links=12, nvlink_version=4, nvswitch=True) for i in range(4)]
    small = [gpu(i, "NVIDIA A100-SXM4-40GB", 40, nvlink_links=12, nvlink_version=4, nvswitch=True) for i in range(4, 8)]
    found = read_local(detection(*big, *small))
    assert (found.cluster.device.name, found.cluster.world_size) == ("A100-SXM4-40GB", 8)
    (notice,) = found.notices
    assert notice.code == "mixed_devices"
    assert "4 × A100-SXM4-80GB" in fault_text(notice)


def test_mixed_gpus_of_which_cuda_shows_unknown_ones_count_as_many_as_it_shows() -> None:
    devices = [replace(gpu(i, name, size), visible=None) for i, (name, size) in enumerate(
        [("NVIDIA A100-SXM4-80GB", 80), ("NVIDIA A100-SXM4-40GB", 40), ("NVIDIA A100-SXM4-80GB", 80)]
    )]  # fmt: skip
    cluster = local_cluster(replace(detection(*devices), num_visible=2))
    assert (cluster.device.name, cluster.devices_per_node) == ("A100-SXM4-40GB", 2)


def test_a_gpu_that_the_catalogue_does_not_know_asks_for_its_figures_with_what_was_detected() -> None:
    fault = refused(detection(gpu(0, "NVIDIA H900", 200.0)))
    assert (fault.code, fault.value, fault.values["total_bytes"]) == (
        "detected_device_unknown",
        "NVIDIA H900",
        200 * GIB,
    )
    assert "200.0 GiB" in fault_text(fault)
    assert "peak_bf16_tflops" in fault_text(fault)


def test_a_virtual_gpu_is_not_taken_for_the_whole_one() -> None:
    fault = refused(detection(gpu(0, "GRID A100-20C", 20.0)))
    assert (fault.code, fault.values["total_bytes"]) == ("detected_device_unknown", 20 * GIB)


def test_a_name_that_fits_several_devices_lists_them() -> None:
    assert refused(detection(gpu(0, "NVIDIA H100", 79.6))).code == "ambiguous_device"
    cluster = local_cluster(detection(gpu(0, "NVIDIA H100", 95.6)))
    assert cluster.device.name == "H100-SXM-96GB-HBM2e-500W"


def test_a_mig_slice_asks_for_its_figures() -> None:
    slice_ = MigInstance(uuid="MIG-x", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", total_bytes=10 * GIB, visible=True)
    found = replace(detection(h100(0, visible=False, mig_mode=True, mig=(slice_,))), num_visible=1)
    fault = refused(found)
    assert (fault.code, fault.values["total_bytes"]) == ("detected_device_unknown", 10 * GIB)


@pytest.mark.parametrize("row", ["r087", "r103", "r105"])
def test_unified_memory_is_asked_for_and_at_most_what_the_host_has_available_is_offered(row: str) -> None:
    host = HostMemory(total_bytes=int(121.7 * GIB), available_bytes=61 * GIB, cores=20)
    fault = refused(detection(gpu(0, "NVIDIA GB10", None, unified_memory=True), host=host))
    assert (row, fault.code) == (row, "unified_memory_device")
    assert fault.values["available_bytes"] == 61 * GIB
    assert "61.0 GiB" in fault_text(fault)


def test_a_detection_can_be_kept_sent_and_taken_apart() -> None:
    lost = Fault(code="gpu_lost", field="devices", value=1, values={"reason": "GPU is lost"})
    found = detection(h100(0), DetectedDevice(index=1, lost=True, visible=False, problem=lost))
    assert pickle.loads(pickle.dumps(found)) == found
    assert asdict(found.devices[1])["problem"]["code"] == "gpu_lost"
    assert pickle.loads(pickle.dumps(local_cluster(found))) == local_cluster(found)


# --------------------------------------------------------------------------------------------------------------- CPU


def test_without_a_gpu_there_is_one_cpu_rank_a_core() -> None:
    host = HostMemory(total_bytes=23 * GIB, available_bytes=20 * GIB, cores=2)
    cluster = local_cluster(detection(host=host))
    assert cluster.device.is_cpu
    assert (cluster.nodes, cluster.devices_per_node) == (1, 2)
    assert "gloo" in cluster.scale_up.name


@given(ranks=st.integers(1, 64), cores=st.integers(1, 64))
def test_cpu_ranks_share_what_the_machine_has(ranks: int, cores: int) -> None:
    host = HostMemory(total_bytes=64 * GIB, available_bytes=48 * GIB, cores=cores)
    device = cpu_cluster(host, ranks=ranks).device
    one_core = catalogue_device("CPU").peak_flops_per_s["fp32"]
    assert ranks * device.memory_bytes == pytest.approx(64 * GIB)
    assert ranks * device.usable_bytes == pytest.approx(48 * GIB)
    assert ranks * device.peak_flops_per_s["fp32"] == pytest.approx(min(ranks, cores) * one_core)


@given(cores=st.integers(1, 16), ranks=st.integers(1, 32))
def test_another_number_of_ranks_gives_the_same_as_asking_for_it(cores: int, ranks: int) -> None:
    host = HostMemory(total_bytes=64 * GIB, available_bytes=48 * GIB, cores=cores)
    changed, asked = with_ranks(cpu_cluster(host, ranks=cores), ranks), cpu_cluster(host, ranks=ranks)
    assert changed.device.usable_bytes == pytest.approx(asked.device.usable_bytes)
    assert changed.device.peak_flops_per_s == pytest.approx(asked.device.peak_flops_per_s)
    assert (changed.devices_per_node, changed.scale_up_domain_size) == (ranks, ranks)


def test_memory_that_is_not_known_leaves_the_assumed_one() -> None:
    host = HostMemory(total_bytes=None, available_bytes=None, cores=2)
    assert cpu_cluster(host, ranks=2).device.sources["memory_bytes"].kind == "assumed"


def test_a_container_has_the_memory_that_its_limit_leaves(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{64 * 2**20}\n")
    (tmp_path / "memory.current").write_text(f"{16 * 2**20}\n")
    limited = host_memory(tmp_path)
    assert (limited.total_bytes, limited.available_bytes) == (64 * 2**20, 48 * 2**20)
    (tmp_path / "memory.max").write_text("max\n")
    whole = host_memory(tmp_path)
    assert whole.total_bytes is not None
    assert whole.total_bytes > 2**30
    assert whole.cores >= 1
