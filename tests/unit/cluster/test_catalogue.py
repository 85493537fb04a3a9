"""The catalogue: every device with every figure and its source, found by any spelling that fits only one."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from tpdpdash.cluster.catalogue import (
    CPU,
    catalogue_device,
    default_cluster,
    device_names,
    devices_by_nvml_name,
    domain_size,
    find_device,
    matching_devices,
)
from tpdpdash.cluster.spec import DeviceSpec
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.faults import InvalidInputError
from tpdpdash.text import fault_text
from tpdpdash.units import GIB

# The names of the reference runs and of the design, to the letter.
NAMED = (
    *("V100-SXM2-16GB", "V100-SXM2-32GB", "A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIe-80GB", "A800-SXM4-80GB"),
    *("H100-SXM5-80GB", "H100-SXM-96GB-HBM2e-500W", "H800-SXM5-80GB", "H200-SXM-141GB", "B200-SXM-180GB"),
    *("B300-SXM-288GB", "GB200-NVL72-186GB", "GB300-NVL72-288GB", "MI325X-256GB", "MI355X-288GB"),
)

NO_FIGURES = ("name", "is_cpu", "architecture", "sources")
FIGURE_FIELDS = [name for name in DeviceSpec.__dataclass_fields__ if name not in NO_FIGURES]


def raw() -> dict[str, dict[str, dict[str, object]]]:
    return tomllib.loads((files("tpdpdash.cluster") / "catalogue.toml").read_text(encoding="utf-8"))


def test_the_devices_of_the_reference_are_named_as_there() -> None:
    assert set(NAMED) <= set(device_names())


@pytest.mark.parametrize("name", device_names())
def test_every_figure_of_a_device_has_a_source(name: str) -> None:
    device = catalogue_device(name)
    assert set(FIGURE_FIELDS) <= set(device.sources)
    assert {f"peak_flops_per_s.{p}" for p in device.peak_flops_per_s} <= set(device.sources)
    assert all(len(source.source) >= 7 for source in device.sources.values())


@pytest.mark.parametrize("name", device_names())
def test_figures_are_possible(name: str) -> None:
    device = catalogue_device(name)
    assert 0.9 * device.memory_bytes <= device.usable_bytes < device.memory_bytes
    peaks = device.peak_flops_per_s
    assert peaks.get("fp8", 2 * peaks.get("bf16", 0)) == pytest.approx(2 * peaks.get("bf16", 0), rel=0.02)
    assert 0 < device.gemm_efficiency <= 1
    reached = device.attention_efficiency * framework_habits("megatron-core").attention_frac
    assert 0 < reached <= device.gemm_efficiency  # Megatron's GEMMs define the other
    assert 0 < device.memory_efficiency <= 1


@pytest.mark.parametrize("name", device_names())
def test_the_default_cluster_of_a_device_has_links_with_sources(name: str) -> None:
    cluster = default_cluster(name, 2)
    assert cluster.world_size == 2 * cluster.devices_per_node
    assert cluster.scale_up_domain_size % cluster.devices_per_node == 0
    for link in (cluster.scale_up, cluster.network):
        assert link.bytes_per_s > 0
        assert 0 < link.efficiency <= 1
        assert set(link.sources) == {"bytes_per_s", "latency_s", "efficiency"}
        assert all(source.source for source in link.sources.values())
    assert cluster.network.kind == "network"
    assert cluster.scale_up.kind in ("nvlink", "pcie", "xgmi", "shared-memory")
    assert cluster.network.bytes_per_s <= cluster.scale_up.bytes_per_s


# Source of each: NVIDIA's and AMD's datasheets, dense peaks (half of what is printed "with sparsity").
@pytest.mark.parametrize(
    ("name", "peak_bf16_tflops", "memory_gb_per_s", "power_w", "scale_up_gb_per_s", "network_gb_per_s"),
    [
        ("A100-SXM4-80GB", 312, 2039, 400, 300, 25),
        ("A100-SXM4-40GB", 312, 1555, 400, 300, 25),
        ("A800-SXM4-80GB", 312, 2039, 400, 200, 25),
        ("H100-SXM5-80GB", 989.4, 3352, 700, 450, 50),
        ("H800-SXM5-80GB", 989.4, 3352, 700, 200, 50),
        ("H200-SXM-141GB", 989.4, 4800, 700, 450, 50),
        ("B200-SXM-180GB", 2250, 7672, 1000, 900, 50),
        ("GB200-NVL72-186GB", 2500, 8000, 1200, 900, 50),
        ("GH200-96GB", 989.4, 4000, 1000, 450, 25),
        ("GH200-144GB", 989.4, 4900, 1000, 450, 25),
        ("H20-SXM-96GB", 148, 4000, 400, 450, 50),
        ("A40-48GB", 149.7, 696, 300, 31.5, 3.125),
        ("MI300X-192GB", 1307.4, 5300, 750, 448, 50),
        ("RTX-4090-24GB", 165.2, 1008, 450, 31.5, 0.625),
    ],
)
def test_figures_are_those_of_the_datasheets(
    name: str, peak_bf16_tflops: float, memory_gb_per_s: float, power_w: float, scale_up_gb_per_s: float,
    network_gb_per_s: float,
) -> None:  # fmt: skip
    cluster = default_cluster(name, 1)
    assert cluster.device.peak_flops_per_s["bf16"] == pytest.approx(peak_bf16_tflops * 1e12)
    assert cluster.device.memory_bytes_per_s == pytest.approx(memory_gb_per_s * 1e9)
    assert cluster.device.power_w == power_w
    assert cluster.scale_up.bytes_per_s == pytest.approx(scale_up_gb_per_s * 1e9)
    assert cluster.network.bytes_per_s == pytest.approx(network_gb_per_s * 1e9)


# Source: the total that PyTorch reports on such a device.
@pytest.mark.parametrize(
    ("name", "usable_gib"),
    [("A100-SXM4-80GB", 79.2), ("H100-SXM5-80GB", 79.1), ("H200-SXM-141GB", 139.7), ("B200-SXM-180GB", 178.3)],
)
def test_planned_memory_is_what_cuda_can_hand_out(name: str, usable_gib: float) -> None:
    assert catalogue_device(name).usable_bytes == pytest.approx(usable_gib * GIB)


def test_volta_and_turing_have_no_bf16() -> None:
    for name in ("V100-SXM2-16GB", "V100-SXM2-32GB", "TITAN-RTX-24GB", "T4-16GB"):
        assert set(catalogue_device(name).peak_flops_per_s) == {"fp32", "fp16"}


def test_an_nvl72_rack_is_one_domain_of_nodes_of_four() -> None:
    cluster = default_cluster("GB200-NVL72-186GB", 36)
    assert (cluster.devices_per_node, cluster.scale_up_domain_size) == (4, 72)
    assert domain_size(72, 5) == 70
    assert domain_size(None, 7) == 7


def test_constants_hold_every_figure_once_inheritance_is_followed() -> None:
    keys = {
        "gemm_efficiency",
        "gemm_half_k",
        "gemm_half_area",
        "attention_efficiency",
        "portable_attention_efficiency",
        "memory_efficiency",
        "launch_us",
        "overhead_gib",
    }
    keys |= {"communicator_gib", "host_gb_per_s", "cublas_workspace_mib", "te_workspace_mib"}
    for name, table in raw()["constants"].items():
        given = set(table) - {"like", "sources"}
        assert given <= keys | given
        assert given == set(table["sources"]), name
        assert "like" in table or keys <= given, name


def test_every_document_and_link_is_used() -> None:
    tables = raw()
    devices = tables["devices"].values()
    assert {device["document"] for device in devices if "document" in device} == set(tables["documents"])
    used = {device[key] for device in devices for key in ("scale_up", "network")}
    assert used == set(tables["links"])


# ---------------------------------------------------------------------------------------------------------- finding


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("a100-sxm4-80gb", "A100-SXM4-80GB"),
        ("A100 SXM 80GB", "A100-SXM4-80GB"),
        ("a100 sxm4 80 GB", "A100-SXM4-80GB"),
        ("A100 PCIe", "A100-PCIe-80GB"),
        ("a800", "A800-SXM4-80GB"),
        ("v100-32gb", "V100-SXM2-32GB"),
        ("h200", "H200-SXM-141GB"),
        ("H100 80GB HBM3", "H100-SXM5-80GB"),
        ("h100-96gb", "H100-SXM-96GB-HBM2e-500W"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("H100 NVL", "H100-NVL-94GB"),
        ("b200", "B200-SXM-180GB"),
        ("GB200", "GB200-NVL72-186GB"),
        ("GB300 NVL72", "GB300-NVL72-288GB"),
        ("RTX 4090", "RTX-4090-24GB"),
        ("rtx4090", "RTX-4090-24GB"),
        ("GeForce RTX 5090", "RTX-5090-32GB"),
        ("RTX 6000 Ada", "RTX-6000-Ada-48GB"),
        ("A6000", "RTX-A6000-48GB"),
        ("l40s", "L40S-48GB"),
        ("L4", "L4-24GB"),
        ("GH200 96GB", "GH200-96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("h20", "H20-SXM-96GB"),
        ("NVIDIA A40", "A40-48GB"),
        ("Tesla T4", "T4-16GB"),
        ("AMD Instinct MI300X", "MI300X-192GB"),
        ("Titan RTX", "TITAN-RTX-24GB"),
        ("cpu", "CPU"),
    ],
)
def test_a_spelling_that_fits_one_device_finds_it(spelling: str, name: str) -> None:
    assert find_device(spelling).name == name


@pytest.mark.parametrize(
    ("spelling", "candidates"),
    [
        ("a100-80gb", {"A100-SXM4-80GB", "A100-PCIe-80GB"}),
        ("A100", {"A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIe-80GB"}),
        ("H100", {"H100-SXM5-80GB", "H100-SXM-96GB-HBM2e-500W", "H100-PCIe-80GB", "H100-NVL-94GB"}),
        ("V100", {"V100-SXM2-16GB", "V100-SXM2-32GB"}),
        ("RTX 6000", {"RTX-6000-Ada-48GB", "RTX-PRO-6000-Blackwell-96GB"}),
    ],
)
def test_a_spelling_that_fits_several_lists_them(spelling: str, candidates: set[str]) -> None:
    with pytest.raises(InvalidInputError) as raised:
        find_device(spelling)
    (fault,) = raised.value.faults
    assert fault.code == "ambiguous_device"
    assert set(fault.values["candidates"]) == candidates  # type: ignore[call-overload]
    assert all(candidate in fault_text(fault) for candidate in candidates)


@pytest.mark.parametrize("spelling", ["H900", "", "RTX 4090 Laptop GPU", "RTX 3090 Ti", "Quadro RTX 6000", "x" * 300])
def test_b55_an_unknown_device_asks_for_its_figures(spelling: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        find_device(spelling)
    (fault,) = raised.value.faults
    assert fault.code == "unknown_device"
    assert all(figure in fault_text(fault) for figure in ("memory_gib", "memory_gb_per_s", "peak_bf16_tflops"))


@pytest.mark.parametrize(
    ("nvml_name", "total_gib", "names"),
    [
        ("NVIDIA A100-SXM4-80GB", None, ("A100-SXM4-80GB",)),
        ("NVIDIA A100 80GB PCIe", None, ("A100-PCIe-80GB",)),
        ("NVIDIA H100 80GB HBM3", None, ("H100-SXM5-80GB",)),
        ("NVIDIA H100 PCIe", None, ("H100-PCIe-80GB",)),
        ("NVIDIA H100", 95.6, ("H100-SXM-96GB-HBM2e-500W",)),
        ("NVIDIA H100", 93.6, ("H100-SXM-96GB-HBM2e-500W", "H100-NVL-94GB")),
        ("Tesla V100-SXM2-32GB", None, ("V100-SXM2-32GB",)),
        ("NVIDIA L40S", 44.99, ("L40S-48GB",)),
        ("NVIDIA B300 SXM6 AC", 268.6, ("B300-SXM-288GB",)),
        ("NVIDIA H200 NVL", None, ()),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None, ()),
        ("NVIDIA GB10", None, ()),
    ],
)
def test_a_drivers_name_finds_its_device(nvml_name: str, total_gib: float | None, names: tuple[str, ...]) -> None:
    assert devices_by_nvml_name(nvml_name, None if total_gib is None else total_gib * GIB) == names


@pytest.mark.parametrize("name", device_names())
def test_every_name_and_every_drivers_name_find_their_own_device(name: str) -> None:
    assert matching_devices(name) == (name,)
    for nvml_name in raw()["devices"][name]["nvml_names"]:  # type: ignore[attr-defined]
        assert devices_by_nvml_name(nvml_name) == (name,)


def test_r100_a_96_gb_card_is_planned_with_at_most_95_gib() -> None:
    cards = [catalogue_device(name) for name in matching_devices("96GB card")]
    assert len(cards) == 4
    assert all(card.usable_bytes <= 95.0 * GIB and card.memory_bytes == 96 * GIB for card in cards)


def test_a_cpu_rank_is_marked_as_assumed() -> None:
    device = catalogue_device(CPU)
    assert device.is_cpu
    assert {source.kind for source in device.sources.values()} == {"assumed"}
