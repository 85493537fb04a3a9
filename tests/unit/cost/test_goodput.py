"""Goodput: what checkpoints and failures take of a long run."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from strategies import cluster_of, dense_model, training_of

from tpdpdash.cost.goodput import goodput_frac
from tpdpdash.cost.throughput import budget
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.layout.resolve import resolve_layout

DAY = 86400.0


def goodput(
    devices: float = 1000.0, step_s: float = 10.0, failures: float = 0.0, restart: float = 0.0, **training
) -> float:
    cluster = cluster_of(failures_per_device_day=failures, restart_s=restart)
    found = goodput_frac(cluster, training_of(**training), np.array([devices]), np.array([step_s]))
    return float(found[0])


def test_without_rates_all_the_time_counts():
    assert goodput() == 1.0
    assert goodput(checkpoint_s=30.0) == 1.0, "no failures, no interval: none is written"
    assert goodput(restart=600.0) == 1.0


def test_checkpoints_alone_take_their_share():
    assert goodput(checkpoint_s=50.0, checkpoint_interval_steps=10) == pytest.approx(100 / 150)


def test_rare_failures_cost_half_an_interval_and_a_restart_each():
    """First order: (R + (τ + δ) / 2) / M beside δ / (τ + δ)."""
    failures, devices, interval, stop, restart = 1e-6, 1000.0, 100, 20.0, 300.0
    between = DAY / (failures * devices)
    found = goodput(devices, 10.0, failures, restart, checkpoint_s=stop, checkpoint_interval_steps=interval)
    work = 10.0 * interval
    first_order = work / (work + stop) * (1 - (restart + (work + stop) / 2) / between)
    assert found == pytest.approx(first_order, rel=1e-6)


def test_the_formula_is_the_mean_of_runs_that_fail_at_random():
    """A run of work, checkpoint, work … where each failure loses the interval and restarts."""
    between, work, stop, restart = 2000.0, 500.0, 50.0, 100.0
    chance = random.Random(7)
    done = spent = 0.0
    while done < 4000 * work:
        fails = chance.expovariate(1 / between)
        if fails >= work + stop:
            done, spent = done + work, spent + work + stop
            continue
        spent += fails
        while (again := chance.expovariate(1 / between)) < restart:
            spent += again
        spent += restart
    failures = DAY / between / 100
    found = goodput(100.0, 50.0, failures, restart, checkpoint_s=stop, checkpoint_interval_steps=10)
    assert found == pytest.approx(done / spent, rel=0.02)


def test_the_interval_that_is_not_given_loses_least():
    rates = {"failures": 1e-3, "restart": 300.0, "checkpoint_s": 30.0}
    best = goodput(**rates)
    others = [goodput(**rates, checkpoint_interval_steps=steps) for steps in (2, 10, 500, 5000)]
    assert best > max(others)


def test_more_devices_and_more_failures_leave_less():
    by_devices = [goodput(devices, failures=5e-4, restart=600.0, checkpoint_s=30.0) for devices in (1e2, 1e3, 1e4, 1e5)]
    assert by_devices == sorted(by_devices, reverse=True)
    assert all(0 < share < 1 for share in by_devices)
    assert goodput(failures=1e-3, restart=600.0) < goodput(failures=1e-4, restart=600.0)


def test_a_cluster_that_fails_more_often_than_it_can_restart_makes_no_progress():
    assert goodput(1e6, failures=1000.0, restart=86400.0) == 0.0


def test_days_hours_energy_and_cost_grow_by_what_is_lost():
    layouts = LayoutColumns.from_layouts([resolve_layout(LayoutPins(dp=16), dense_model(), training_of(), None)])
    step_s = np.array([10.0])

    def spent(**rates):
        cluster = cluster_of(price_per_device_hour=2.0, **rates)
        training = training_of(tokens=1e12, checkpoint_s=30.0, checkpoint_interval_steps=20)
        return budget(cluster, training, layouts, step_s)

    calm, rough = spent(), spent(failures_per_device_day=0.01, restart_s=600.0)
    share = float(rough.goodput_frac[0] / calm.goodput_frac[0])
    for name in ("days", "device_hours", "energy_kwh", "cost"):
        assert float(getattr(calm, name)[0] / getattr(rough, name)[0]) == pytest.approx(share)
    assert float(calm.days[0]) == pytest.approx(1e12 / (64 * 1024) * 10.0 / (200 / 230) / DAY)
    assert math.isinf(float(spent(failures_per_device_day=1000.0, restart_s=86400.0).days[0]))
