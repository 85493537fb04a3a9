"""A profile's file, and the two tables that are made of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import MappingProxyType

import pytest

from tpdpdash.telemetry.profile_file import (
    DeepProfile,
    ProfileEvent,
    kept_profiles,
    profile_path,
    profiles_dir,
    read_profile,
    write_profile,
)
from tpdpdash.telemetry.profile_kinds import kind_of
from tpdpdash.telemetry.profile_table import profile_table


def span(name: str, start: float, duration: float, **fields: object) -> ProfileEvent:
    """An operator of the main thread."""
    given = {"category": "cpu_op", "lane": 1, "start_us": start, "duration_us": duration, **fields}
    return ProfileEvent(name=name, **given)  # type: ignore[arg-type]


def of(*spans: ProfileEvent, step_s: float = 1e-3) -> DeepProfile:
    """A profile of these events."""
    return DeepProfile(
        rank=3, step=20, t=1000.0, step_s=step_s, recorded_events=len(spans), kept_events=len(spans),
        lanes=MappingProxyType({0: "phases", 1: "main thread"}), events=spans,
    )  # fmt: skip


def test_a_file_is_read_as_it_was_written_and_perfetto_can_open_it(tmp_path: Path) -> None:
    about = {"rank": 3, "step": 20, "t": 1000.0, "step_s": 0.5, "recorded_events": 9, "kept_events": 2}
    wrote = (span('odd "name" µ', 1.5, 2.25, id=7), span("k", 2.0, 1.0, category="kernel", lane=1007, launched_by=7))
    path = profile_path(tmp_path, 3, 20)
    assert write_profile(path, about, {1: "main thread", 1007: "stream 7"}, wrote) == path.stat().st_size
    assert path.name == "rank-00003.step-20.json.gz"
    assert path.stat().st_mode & 0o077 == 0
    profile = read_profile(path)
    assert profile.events == wrote
    assert (profile.lanes, profile.kept_events) == ({1: "main thread", 1007: "stream 7"}, 2)
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert {event["ph"] for event in document["traceEvents"]} == {"M", "X"}


@pytest.mark.parametrize(
    "data",
    [b"", b"no gzip", gzip.compress(b"{"), gzip.compress(b"[]"), gzip.compress(b'{"otherData":{},"traceEvents":[]}'),
     gzip.compress(b'{"otherData":{"rank":0}}')[:-9], gzip.compress(b"[" * 100_000),
     *(gzip.compress(b'{"otherData":{"rank":%b,"step":1,"t":%b,"step_s":1,"recorded_events":0,"kept_events":0},'
                     b'"traceEvents":[]}' % each) for each in ((b"1e999", b"1"), (b"1", b"1e999"), (b"1", b"NaN")))],
)  # fmt: skip
def test_a_damaged_file_is_a_value_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.step-1.json.gz"
    path.write_bytes(data)
    with pytest.raises((ValueError, OSError)):
        read_profile(path)


def test_only_profiles_are_listed_the_newest_first(tmp_path: Path) -> None:
    folder = profiles_dir(tmp_path)
    folder.mkdir()
    for name in ("rank-00001.step-20.json.gz", "rank-00000.step-20.json.gz", "rank-00000.step-100.json.gz",
                 ".rank-00000.step-9.json.gz.abc", "notes.txt"):  # fmt: skip
        (folder / name).write_bytes(b"1")
    (folder / "rank-00009.step-1.json.gz").symlink_to("/etc/passwd")
    assert [(kept.step, kept.rank) for kept in kept_profiles(tmp_path)] == [(100, 0), (20, 0), (20, 1)]


def test_own_time_is_a_span_less_those_inside_it_thread_by_thread() -> None:
    shown = profile_table(
        of(
            span("forward", 0, 600, category="phase", lane=0),
            span("dp", 600, 400, category="phase", lane=0),
            span("aten::linear", 10, 100),
            span("aten::addmm", 20, 80),
            span("aten::gelu", 200, 50),
            span("gloo:all_reduce", 650, 300, category="user_annotation", lane=2),
            span("c10d::allreduce_", 640, 20),
        )
    )
    own = {row.name: (row.kind, round(row.self_s * 1e6), row.phase) for row in shown.operators}
    assert own == {
        "gloo:all_reduce": ("communication", 300, "dp"),
        "aten::addmm": ("gemm", 80, "forward"),
        "aten::gelu": ("elementwise", 50, "forward"),
        "aten::linear": ("other", 20, "forward"),
        "c10d::allreduce_": ("communication", 20, "dp"),
    }
    assert [row.name for row in shown.operators][:2] == ["gloo:all_reduce", "aten::addmm"]
    forward, dp = shown.phases
    assert (forward.phase, round(forward.wall_s * 1e6), round(forward.rest_s * 1e6)) == ("forward", 600, 450)
    assert (dp.phase, round(dp.kind_s["communication"] * 1e6), round(dp.rest_s * 1e6)) == ("dp", 310, 90)
    assert shown.operators[0].share == pytest.approx(0.3)
    assert shown.idle_s is None


def test_a_phase_is_its_main_thread_and_a_message_beside_an_operator_costs_nothing() -> None:
    shown = profile_table(
        of(
            span("forward", 0, 100, category="phase", lane=0),
            span("tp", 100, 300, category="phase", lane=0),
            span("forward", 400, 100, category="phase", lane=0),
            span("_Scatter", 50, 400),  # Python that waits: neither its phases nor the table hold its own time
            span("aten::copy_", 120, 60),
            span("gloo:all_gather", 90, 200, category="user_annotation", lane=2),
            span("gloo:all_gather", 250, 60, category="user_annotation", lane=3),
        )
    )
    tp, forward = shown.phases
    found = {kind: round(spent * 1e6) for kind, spent in tp.kind_s.items() if spent}
    assert found == {"elementwise": 60, "communication": 150}  # 100 to 310, less the copy
    assert round(tp.rest_s * 1e6) == 90
    assert sum(tp.kind_s.values()) + tp.rest_s == pytest.approx(tp.wall_s)
    assert round(forward.kind_s["communication"] * 1e6) == 10
    assert "_Scatter" not in {row.name for row in shown.operators}


def test_on_a_gpu_kernels_count_for_the_operator_and_the_phase_that_launched_them() -> None:
    shown = profile_table(
        of(
            span("forward", 0, 100, category="phase", lane=0),
            span("backward", 100, 900, category="phase", lane=0),
            span("aten::mm", 10, 5, id=4),
            span("aten::add", 20, 5, id=5),
            span("sm90_xmma_gemm_bf16<float>(int)", 300, 200, category="kernel", lane=1007, launched_by=4),
            span("void at::native::vectorized_elementwise_kernel<4>", 500, 100, category="kernel", lane=1007,
                 launched_by=5),
            span("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 550, 250, category="kernel", lane=1020),
        )
    )  # fmt: skip
    assert shown.on_device
    assert [(row.name, row.kind, round(row.self_s * 1e6), row.phase) for row in shown.operators] == [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication", 250, "backward"),
        ("aten::mm", "gemm", 200, "forward"),
        ("aten::add", "elementwise", 100, "forward"),
    ]
    assert shown.idle_s == pytest.approx(500e-6)  # kernels run from 300 to 800 of 1,000


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "gemm"), ("aten::bmm", "gemm"), ("aten::_scaled_mm", "gemm"), ("aten::_grouped_mm", "gemm"),
        ("aten::_scaled_grouped_mm", "gemm"), ("aten::_int_mm", "gemm"), ("aten::view_as_complex", "other"),
        ("aten::flatten", "other"), ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("aten::_scaled_dot_product_flash_attention", "attention"), ("aten::_flash_attention_backward", "attention"),
        ("aten::native_layer_norm", "elementwise"), ("aten::_fused_adamw_", "elementwise"),
        ("aten::copy_", "elementwise"),
        ("aten::view", "other"), ("AddmmBackward0", "other"), ("cudaLaunchKernel", "other"),
        ("nccl:all_reduce", "communication"), ("_c10d_functional::all_gather_into_tensor", "communication"),
    ],
)  # fmt: skip
def test_operators_are_told_apart_by_kind_of_work(name: str, kind: str) -> None:
    assert kind_of(name) == kind
