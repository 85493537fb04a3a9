"""[cluster] of a Job: what can be said, what is refused, and that what is written is read back.

Rows b… are those of the bad inputs, r… those of the reports.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping

import pytest
import tomli_w

from tpdpdash.cluster.catalogue import default_cluster
from tpdpdash.cluster.describe import cluster_from_fields, cluster_to_fields
from tpdpdash.cluster.detection import Detection, HostMemory
from tpdpdash.cluster.inline import device_from_fields, with_links
from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.faults import Fault
from tpdpdash.text import fault_text
from tpdpdash.units import GIB

HOST = HostMemory(total_bytes=24 * GIB, available_bytes=20 * GIB, cores=4)
FIGURES = {"memory_gib": 100, "memory_gb_per_s": 3000, "peak_bf16_tflops": 800}


def no_gpu() -> Detection:
    return Detection(devices=(), driver_version=None, problem=None, host=HOST)


def never() -> Detection:
    raise AssertionError("only 'local' looks at this machine")


def read(**fields: object) -> ClusterSpec:
    cluster, faults, _ = cluster_from_fields(fields, no_gpu)
    assert faults == []
    assert cluster is not None
    return cluster


def refused(fields: Mapping[str, object]) -> list[Fault]:
    cluster, faults, _ = cluster_from_fields(fields, never)
    assert cluster is None
    assert faults
    assert all(fault_text(fault) for fault in faults)
    return faults


def codes(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(fault.code, fault.field) for fault in refused(fields)]


def test_a_device_and_its_count_make_a_cluster() -> None:
    cluster = read(device="h200", nodes=16, price_per_device_hour=2.5)
    assert (cluster.device.name, cluster.world_size, cluster.price_per_device_hour) == ("H200-SXM-141GB", 128, 2.5)
    assert cluster.asked_device == "h200"


def test_without_a_device_this_machine_is_meant_and_without_a_gpu_its_cores() -> None:
    cluster = read()
    assert cluster.device.is_cpu
    assert cluster.world_size == 4
    assert cluster.device.memory_bytes == 24 * GIB / 4


# ---------------------------------------------------------------------------------------------------------- refusals


def test_b51_zero_gpus_are_refused_with_the_nearest_number() -> None:
    (fault,) = refused({"device": "A100-SXM4-80GB", "nodes": 2, "devices_per_node": 0})
    assert (fault.code, fault.field, fault.values["nearest"]) == ("out_of_range", "cluster.devices_per_node", 1)


def test_b55_an_unknown_gpu_asks_for_memory_and_flops() -> None:
    (fault,) = refused({"device": "H900", "nodes": 1, "devices_per_node": 8})
    assert fault.code == "unknown_device"
    assert "memory_gib" in fault_text(fault)
    assert "tflops" in fault_text(fault)


def test_b57_a_world_that_is_no_power_of_two_is_a_world() -> None:
    assert read(device="A100-SXM4-80GB", nodes=3, devices_per_node=7).world_size == 21


@pytest.mark.parametrize("key", ["network_gb_per_s", "network_gbit_per_s"])
def test_b58_a_network_of_bandwidth_0_between_two_nodes_is_refused(key: str) -> None:
    (fault,) = refused({"device": "H100-SXM5-80GB", "nodes": 2, "links": {key: 0}})
    assert (fault.code, fault.field) == ("no_bandwidth", f"cluster.links.{key}")


def test_b58_a_scale_up_link_of_bandwidth_0_between_devices_is_refused() -> None:
    assert codes({"device": "h200", "nodes": 1, "links": {"scale_up_gb_per_s": 0.0}}) == [
        ("no_bandwidth", "cluster.links.scale_up_gb_per_s")
    ]


def test_b58_a_single_node_without_a_network_is_fine() -> None:
    cluster = read(device="h200", nodes=1, links={"network_gb_per_s": 0})
    assert cluster.network.bytes_per_s == default_cluster("h200", 1).network.bytes_per_s


@pytest.mark.parametrize("nodes", [[8, 2], [{"gpus": 8}, {"gpus": 2}], [{"devices": 8}, {"devices": 2}]])
def test_r067_uneven_nodes_are_refused_and_never_averaged(nodes: object) -> None:
    (fault,) = refused({"device": "A100-SXM4-80GB", "nodes": nodes})
    assert (fault.code, fault.field) == ("uneven_nodes", "cluster.nodes")
    assert "uneven GPUs per node" in fault_text(fault)
    assert "2 nodes of 2" in fault_text(fault)


def test_r067_a_list_of_like_nodes_is_their_number() -> None:
    cluster = read(device="A100-SXM4-80GB", nodes=[{"gpus": 4}] * 3)
    assert (cluster.nodes, cluster.devices_per_node) == (3, 4)


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"device": "h200", "nodes": 1.5}, "not_whole_number", "cluster.nodes"),
        ({"device": "h200", "nodes": "two"}, "not_whole_number", "cluster.nodes"),
        ({"device": "h200", "nodes": True}, "not_whole_number", "cluster.nodes"),
        ({"device": "h200", "nodes": 0}, "out_of_range", "cluster.nodes"),
        ({"device": "h200", "nodes": -1}, "out_of_range", "cluster.nodes"),
        ({"device": "h200", "nodes": 10**30}, "out_of_range", "cluster.nodes"),
        ({"device": "h200", "nodes": [8, "x"]}, "not_whole_number", "cluster.nodes"),
        ({"device": "h200", "nodes": []}, "not_whole_number", "cluster.nodes"),
        ({"device": "h200", "devices_per_node": 10**9}, "out_of_range", "cluster.devices_per_node"),
        ({"device": "h200", "price_per_device_hour": -1.0}, "out_of_range", "cluster.price_per_device_hour"),
        ({"device": "h200", "failures_per_device_day": -1.0}, "out_of_range", "cluster.failures_per_device_day"),
        ({"device": "h200", "restart_s": -1.0}, "out_of_range", "cluster.restart_s"),
        ({"device": "h200", "price_per_device_hour": math.nan}, "not_number", "cluster.price_per_device_hour"),
        ({"device": 7, "nodes": 1}, "not_text", "cluster.device"),
        ({"device": "h200", "nodse": 1}, "unknown_key", "cluster.nodse"),
        ({"device": "h200", "links": 5}, "not_table", "cluster.links"),
        ({"device": "h200", "links": {"nvlink": 5}}, "unknown_key", "cluster.links.nvlink"),
        ({"device": "h200", "links": {"network_gb_per_s": -5}}, "out_of_range", "cluster.links.network_gb_per_s"),
        ({"device": "h200", "links": {"network_gb_per_s": "fast"}}, "not_number", "cluster.links.network_gb_per_s"),
        ({"device": "h200", "links": {"network_efficiency": 1.5}}, "out_of_range", "cluster.links.network_efficiency"),
        (
            {"device": "h200", "links": {"scale_up_domain_size": 12}},
            "not_divisible",
            "cluster.links.scale_up_domain_size",
        ),
        (
            {"device": "h200", "links": {"network_gb_per_s": 5, "network_gbit_per_s": 40}},
            "conflicting_keys",
            "cluster.links.network_gbit_per_s",
        ),
    ],
)
def test_a_wrong_key_is_named_with_its_value(fields: dict[str, object], code: str, field: str) -> None:
    assert codes(fields) == [(code, field)]


def test_all_faults_come_at_once() -> None:
    found = codes({"device": "H900", "nodes": 0, "devices_per_node": "x", "colour": 1, "price_per_device_hour": -2})
    assert {field for _, field in found} == {
        f"cluster.{key}" for key in ("device", "nodes", "devices_per_node", "colour", "price_per_device_hour")
    }


# ------------------------------------------------------------------------------------------------- described devices


def test_figures_make_a_device_and_what_was_assumed_is_said() -> None:
    device, faults = device_from_fields(FIGURES | {"name": "H900", "power_w": 800})
    assert faults == []
    assert device is not None
    assert (device.name, device.power_w) == ("H900", 800)
    assert device.peak_flops_per_s == {"bf16": 800e12}
    assert device.memory_bytes == 100 * GIB
    assert device.usable_bytes == pytest.approx(98 * GIB)
    assert device.sources["usable_bytes"].kind == "assumed"
    assert device.sources["memory_bytes"].kind == "given"
    assert device.sources["gemm_efficiency"].kind == "assumed"


def test_decimal_memory_is_decimal() -> None:
    device, _ = device_from_fields({"memory_gb": 96, "memory_gb_per_s": 1, "peak_fp16_tflops": 1})
    assert device is not None
    assert device.memory_bytes == 96e9


def test_power_that_nobody_gave_is_unknown_not_zero() -> None:
    device, _ = device_from_fields(FIGURES)
    assert device is not None
    assert math.isnan(device.power_w)


@pytest.mark.parametrize("missing", ["memory_gib", "memory_gb_per_s", "peak_bf16_tflops"])
def test_b55_no_figure_of_a_described_device_is_guessed(missing: str) -> None:
    device, faults = device_from_fields({key: value for key, value in FIGURES.items() if key != missing})
    assert device is None
    assert [(fault.code, fault.field) for fault in faults] == [("missing_figure", f"cluster.device.{missing}")]


@pytest.mark.parametrize(
    ("figures", "code", "field"),
    [
        ({"memory_gib": 0}, "out_of_range", "memory_gib"),
        ({"memory_gib": "big"}, "not_number", "memory_gib"),
        ({"memory_gb": 100}, "conflicting_keys", "memory_gb"),
        ({"usable_gib": 101}, "out_of_range", "usable_gib"),
        ({"gemm_efficiency": 1.2}, "out_of_range", "gemm_efficiency"),
        ({"peak_tflops": 3}, "unknown_key", "peak_tflops"),
        ({"like": "H100"}, "ambiguous_device", "like"),
        ({"like": "H900"}, "unknown_device", "like"),
    ],
)
def test_wrong_figures_are_named(figures: dict[str, object], code: str, field: str) -> None:
    device, faults = device_from_fields(FIGURES | figures)
    assert device is None
    assert [(fault.code, fault.field) for fault in faults] == [(code, f"cluster.device.{field}")]


def test_a_device_like_another_differs_in_what_is_given_only() -> None:
    like = read(device={"like": "H100-SXM5-80GB", "power_w": 500}, nodes=2)
    usual = default_cluster("H100-SXM5-80GB", 2)
    assert like.device.power_w == 500
    assert like.device.usable_bytes == pytest.approx(usual.device.usable_bytes)
    assert like.device.peak_flops_per_s == pytest.approx(usual.device.peak_flops_per_s)
    assert (like.scale_up, like.network, like.devices_per_node) == (usual.scale_up, usual.network, 8)
    assert like.device.sources["power_w"].kind == "given"
    assert like.device.sources["memory_bytes"].kind == "datasheet"


def test_a_device_like_another_with_more_memory_has_its_share_of_usable_memory() -> None:
    like = read(device={"like": "H100-SXM5-80GB", "memory_gib": 160}, nodes=1).device
    assert like.usable_bytes == pytest.approx(2 * 79.1 * GIB)
    assert like.sources["usable_bytes"].kind == "assumed"


def test_the_links_of_a_described_device_must_be_described_where_they_are_crossed() -> None:
    table = {"device": FIGURES, "nodes": 2, "devices_per_node": 8}
    assert codes(table) == [
        ("missing", "cluster.links.scale_up_gb_per_s"),
        ("missing", "cluster.links.network_gb_per_s"),
    ]
    links = {"scale_up_gb_per_s": 300, "network_gbit_per_s": 200}
    cluster, faults, notices = cluster_from_fields(table | {"links": links}, never)
    assert faults == []
    assert cluster is not None
    assert cluster.scale_up.bytes_per_s == 300e9
    assert cluster.network.bytes_per_s == 25e9
    assert [notice.code for notice in notices] == ["assumed_figures"]


def test_a_described_device_says_how_many_stand_in_a_node() -> None:
    assert codes({"device": FIGURES, "nodes": 1}) == [("missing", "cluster.devices_per_node")]


def test_an_assumed_network_of_a_single_node_is_said() -> None:
    table = {"device": FIGURES, "nodes": 1, "devices_per_node": 8, "links": {"scale_up_gb_per_s": 300}}
    cluster, _, notices = cluster_from_fields(table, never)
    assert cluster is not None
    assert [notice.code for notice in notices] == ["assumed_figures", "assumed_network"]
    assert all(fault_text(notice) for notice in notices)


# ------------------------------------------------------------------------------------------------------------- links


def test_overridden_links_change_only_what_is_given() -> None:
    usual = default_cluster("A100-SXM4-80GB", 4)
    links = {"network_gbit_per_s": 50, "network_latency_us": 9.0, "scale_up_domain_size": 4}
    cluster, faults = with_links(usual, links)
    assert faults == []
    assert cluster.network.bytes_per_s == pytest.approx(6.25e9)
    assert cluster.network.latency_s == pytest.approx(9e-6)
    assert cluster.network.efficiency == usual.network.efficiency
    assert [cluster.network.sources[name].kind for name in ("bytes_per_s", "latency_s")] == ["given", "given"]
    assert cluster.network.sources["efficiency"] == usual.network.sources["efficiency"]
    assert cluster.scale_up == usual.scale_up
    assert cluster.scale_up_domain_size == 4


# ----------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize(
    "table",
    [
        {"device": "A100-SXM4-80GB", "nodes": 3, "devices_per_node": 7},
        {"device": "v100-32gb", "nodes": 1, "price_per_device_hour": 0.5},
        {"device": "v100-32gb", "nodes": 1, "failures_per_device_day": 0.001, "restart_s": 600.0},
        {"device": "GB200", "nodes": 18, "links": {"network_gb_per_s": 100.0, "scale_up_efficiency": 0.9}},
        {"device": {"like": "h200", "power_w": 650.0}, "nodes": 2},
        {"device": FIGURES, "nodes": 1, "devices_per_node": 8, "links": {"scale_up_gb_per_s": 300.0}},
        {"device": "local", "nodes": 2, "devices_per_node": 3, "links": {"network_latency_us": 500.0}},
    ],
)
def test_a_written_cluster_is_read_back_as_the_same(table: dict[str, object]) -> None:
    cluster = read(**table)
    text = tomli_w.dumps(cluster_to_fields(cluster))
    again = read(**tomllib.loads(text))
    assert repr(again) == repr(cluster)


def test_a_cluster_made_by_hand_is_written_by_its_devices_name() -> None:
    cluster = default_cluster("A100-SXM4-80GB", 2)
    assert cluster_to_fields(cluster) == {"device": "A100-SXM4-80GB", "nodes": 2, "devices_per_node": 8}


def test_r067_a_list_of_nodes_that_contradicts_devices_per_node_is_refused() -> None:
    table = {"device": "A100-SXM4-80GB", "nodes": [8, 8], "devices_per_node": 4}
    assert codes(table) == [("conflicting_keys", "cluster.devices_per_node")]
