"""Curves that are fitted to made samples come back as they were made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpdpdash.checked_runs import CheckedRun, checked_runs
from tpdpdash.compare.calibration import Figures, at_limits, cluster_file, fitted_figures, stretch_of
from tpdpdash.compare.calibration_curves import GemmCurve, fitted_attention, fitted_gemm
from tpdpdash.compare.calibration_host import HostSample, fitted_host, layer_samples, nonnegative
from tpdpdash.compare.calibration_links import fitted_messages
from tpdpdash.cost.collectives import transfer_s
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.faults import InvalidInputError
from tpdpdash.telemetry.measurements import (
    Measurement,
    Measurements,
    busy_counts,
    num_steps,
    read_measurements,
    write_measurements,
)

SHAPES = ((64, 64, 64), (128, 256, 512), (512, 64, 512), (512, 1024, 1024), (2048, 4096, 4096), (64, 2048, 64))
LAYERS = ((64, 256, 4, 128), (256, 688, 4, 128), (512, 1376, 8, 256))
CURVE = GemmCurve(peak_flops_per_s=1e11, cap=0.9, half_k=32.0, half_area=4096.0)
ATTENTION, BANDWIDTH, LAUNCH, STREAMED = 0.3, 8e9, 9e-6, 24e9


def products(curve: GemmCurve = CURVE, busy: int = 1, slower: float = 1.0):
    return [
        Measurement(what="gemm", sizes=shape, busy=busy, seconds=slower * curve.seconds(*shape)) for shape in SHAPES
    ]


def attention():
    forward_s = 2 * 128 * 128 * 4 * 64 / (1e11 * ATTENTION)
    passes = {"attention_forward": forward_s, "attention_backward": forward_s * 2.5 / 0.85}
    return [Measurement(what=what, sizes=(128, 4, 64), busy=1, seconds=s) for what, s in passes.items()]


def updates(busy: int = 1, slower: float = 1.0):
    return [
        Measurement(what="update", sizes=(n,), busy=busy, seconds=slower * 96 * n / STREAMED) for n in (10**6, 10**7)
    ]


def layers():
    blank = [
        Measurement(what=what, sizes=shape, busy=1, seconds=1.0)
        for shape in LAYERS
        for what in ("layer_forward", "layer_both")
    ]
    seconds = [s.known_s + s.moved / BANDWIDTH + s.launches * LAUNCH for s in layer_samples(blank, CURVE, ATTENTION)]
    return [replace(each, seconds=s) for each, s in zip(blank, seconds, strict=True)]


def messages(rate: float = 2e9, latency_s: float = 100e-6, size: int = 2, message_s: float = 0.0):
    share, hops = (size - 1) / size, size * latency_s
    made = []
    for n in (4096, 1 << 17, 1 << 22):
        reduce_s = transfer_s(2 * share * n, rate) + 2 * min(share * hops, latency_s * (size - 1).bit_length())
        gather_s = transfer_s(share * n, rate) + share * hops
        found = {
            "all_reduce": reduce_s + message_s,
            "reduce_scatter": reduce_s + message_s,
            "all_gather": gather_s + message_s,
            "send": n / rate + 2 * latency_s,
        }
        made += [Measurement(what=what, sizes=(n,), busy=size, seconds=s) for what, s in found.items()]
    return made


def everything():
    busy = [*products(busy=2, slower=1.25), *updates(busy=2, slower=2.0)]
    taken = (*products(), *attention(), *layers(), *updates(), *busy, *messages())
    return Measurements(is_cpu=True, world_size=2, taken=taken)


def test_the_curve_of_products_is_found_again():
    found = fitted_gemm(products())
    for shape in (*SHAPES, (300, 300, 300)):
        assert found.seconds(*shape) == pytest.approx(CURVE.seconds(*shape), rel=0.05)
    assert found.half_k == pytest.approx(CURVE.half_k, rel=0.3)
    assert found.half_area == pytest.approx(CURVE.half_area, rel=0.3)
    assert found.cap <= 1.0


def test_one_disturbed_product_does_not_move_the_curve():
    made = products()
    made[1] = replace(made[1], seconds=3 * made[1].seconds)
    assert fitted_gemm(made).seconds(512, 1024, 1024) == pytest.approx(CURVE.seconds(512, 1024, 1024), rel=0.1)


def test_the_share_that_attention_reaches_is_found_again():
    assert fitted_attention(attention(), 1e11) == pytest.approx(ATTENTION)


def test_bandwidth_and_launches_are_told_apart():
    samples = [HostSample(seconds=1e-3 + m / 5e9 + k * 7e-6, known_s=1e-3, moved=m, launches=k) for m, k in
               ((1e6, 36), (5e6, 36), (5e6, 108), (4e7, 108))]  # fmt: skip
    assert fitted_host(samples) == pytest.approx((5e9, 7e-6))


def test_neither_bandwidth_nor_launches_become_negative():
    import numpy as np

    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert nonnegative(matrix, np.array([3.0, 2.0, 1.0])) == (2.0, 0.0)
    assert nonnegative(matrix, np.array([0.5, 1.5, 2.5]))[0] == 0.0
    assert nonnegative(matrix, np.array([-1.0, -1.0, -1.0])) == (0.0, 0.0)


@pytest.mark.parametrize("size", [2, 4])
def test_bandwidth_and_latency_of_messages_are_found_again(size):
    curve = fitted_messages(messages(size=size), over_gloo=True)
    assert curve.bytes_per_s == pytest.approx(2e9, rel=0.08)
    assert curve.latency_s == pytest.approx(100e-6, rel=0.08)
    assert curve.misfit < 0.03


@pytest.mark.parametrize("size", [2, 4])
def test_what_a_collective_takes_besides_its_hops_is_found_again(size):
    curve = fitted_messages(messages(size=size, message_s=600e-6), over_gloo=True)
    assert curve.message_s == pytest.approx(600e-6, rel=0.1)
    assert curve.latency_s == pytest.approx(100e-6, rel=0.15)
    assert fitted_messages(messages(size=size, message_s=600e-6), over_gloo=False).message_s == 0.0


def test_all_figures_of_a_made_machine_come_back():
    found = fitted_figures(everything())
    assert found.device["peak_fp32_tflops"] * found.device["gemm_efficiency"] == pytest.approx(0.09, rel=0.05)
    assert found.device["memory_gb_per_s"] == pytest.approx(24.0)
    assert found.device["memory_gb_per_s"] * found.device["memory_efficiency"] == pytest.approx(8.0, rel=0.2)
    assert found.device["launch_us"] == pytest.approx(9.0, rel=0.2)
    assert found.links["scale_up_gb_per_s"] == pytest.approx(2.0, rel=0.05)
    assert [each.ranks for each in found.speeds] == [1, 2]
    assert found.speeds[1].compute_frac == pytest.approx(0.8)
    assert found.speeds[1].memory_frac == pytest.approx(0.5)
    assert max(found.misfit.values()) < 0.05


def test_gpus_share_nothing_and_tell_copies_and_launches_themselves():
    taken = [replace(each, precision="bf16") for each in products()]
    taken += [*attention(), Measurement(what="copy", sizes=(1 << 28,), busy=1, seconds=2 * (1 << 28) / 2e12)]
    taken += [Measurement(what="launch", sizes=(), busy=1, seconds=4e-6)]
    found = fitted_figures(Measurements(is_cpu=False, world_size=1, taken=tuple(taken)))
    assert found.speeds == ()
    assert found.links == {}
    assert found.device["memory_gb_per_s"] == pytest.approx(2000)
    assert found.device["launch_us"] == pytest.approx(4)
    assert "peak_bf16_tflops" in found.device


def test_a_gpus_products_in_fp32_are_its_peak_in_full_fp32_and_leave_the_one_of_tf32():
    """The worker leaves torch.backends.cuda.matmul.allow_tf32 at false."""
    halves = [replace(each, precision="bf16", seconds=each.seconds / 8) for each in products()]
    found = fitted_figures(Measurements(is_cpu=False, world_size=1, taken=(*products(), *halves, *attention())))
    assert found.device["peak_fp32_simt_tflops"] == pytest.approx(found.device["peak_bf16_tflops"] / 8)
    assert "peak_fp32_tflops" not in found.device


@pytest.mark.parametrize("kept", ["gemm", "attention_forward", "update"])
def test_too_few_measurements_are_no_figures(kept):
    taken = tuple(each for each in everything().taken if each.what == kept)
    with pytest.raises(InvalidInputError) as refused:
        fitted_figures(Measurements(is_cpu=True, world_size=2, taken=taken))
    assert refused.value.faults[0].code == "too_few_measurements"


def test_short_runs_stand_beside_what_the_figures_say_of_them(tmp_path):
    run = checked_runs()[1]
    step = Measurement(what="step", sizes=run.sizes, busy=2, seconds=0.6)
    made = everything()
    write_measurements(tmp_path, replace(made, taken=(*made.taken, step)))
    file, _ = cluster_file(tmp_path, run_id="r1", device="CPU", cores=2, date="2026-11-30 17:41")
    (check,) = file.checks
    assert (check.layout, check.hidden_size, check.ranks, check.measured_s) == ("tp2", 256, 2, 0.6)
    assert check.predicted_s == pytest.approx(estimate_job(run.job(cores=2, measured=file)).step_s, rel=1e-3)
    assert check.miss_frac == pytest.approx(0.6 / check.predicted_s - 1)


def test_every_layout_is_checked_at_two_sizes_on_two_ranks_at_most():
    found = checked_runs()
    assert [run.layout_name for run in found] == 2 * ["tp1", "tp2", "pp2", "dp2"]
    assert {run.num_ranks for run in found} == {1, 2}
    assert all(CheckedRun.of(run.sizes) == run for run in found)


def test_a_run_folder_becomes_a_cluster_file(tmp_path):
    write_measurements(tmp_path, everything())
    assert read_measurements(tmp_path) == everything()
    file, figures = cluster_file(tmp_path, run_id="r1", device="CPU", cores=2, date="2026-11-30 17:41")
    assert isinstance(figures, Figures)
    assert (file.run, file.device, file.cores) == ("r1", "CPU", 2)
    assert file.figures["memory_gb_per_s"] == 24.0
    assert file.speeds[1].compute_frac == 0.8


@pytest.mark.parametrize(
    "text", ["", "{}", '{"v": 7}', '{"v": 1, "is_cpu": true, "world_size": 1, "taken": [{}]}', "[]", "[" * 100_000]
)
def test_a_run_without_usable_measurements_is_refused(tmp_path, text):
    (tmp_path / "measurements.json").write_text(text)
    with pytest.raises(InvalidInputError) as refused:
        cluster_file(tmp_path, run_id="r1", device="CPU", cores=2, date="d")
    assert refused.value.faults[0].code == "no_measurements"


def test_figures_stay_within_what_the_file_may_hold():
    assert at_limits({"a": 2.0, "b": 0.123456}, {"a": (0, 1), "b": (0, 1)}) == {"a": 1.0, "b": 0.1235}


@pytest.mark.parametrize(
    ("ranks", "is_cpu", "counts"),
    [(1, True, (1,)), (2, True, (1, 2)), (6, True, (1, 2, 4, 6)), (8, True, (1, 2, 4, 8)), (8, False, (1,))],
)
def test_ranks_that_share_cores_are_measured_alone_and_together(ranks, is_cpu, counts):
    assert busy_counts(ranks, is_cpu=is_cpu) == counts
    assert num_steps(ranks, is_cpu=is_cpu) == len(counts) + (2 if is_cpu else 1)


def test_the_load_of_the_machine_is_told():
    taken = tuple(replace(each, stretch=3.0) for each in products())
    assert stretch_of(Measurements(is_cpu=True, world_size=1, taken=taken)) == 3.0
