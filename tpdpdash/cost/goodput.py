"""Goodput: the share of a long run's time that moves training on, beside checkpoints, failures and restarts."""

from __future__ import annotations

import numpy as np

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.cost.arrays import Floats, floats
from tpdpdash.training import Training
from tpdpdash.units import DAY_S

MOST_EXPONENT = 20.0
"""Failures within one checkpoint interval, or one restart, beyond which a run makes no progress: 2e-9 of its time."""


def goodput_frac(cluster: ClusterSpec, training: Training, devices: Floats, step_s: Floats) -> Floats:
    """Share (n,) of the time that is spent on steps that are kept; 1 without checkpoints and failures.

    T = M · exp(R / M) · (exp((τ + δ) / M) − 1) · work / τ for failures at random with a mean time M between them, a
    checkpoint of δ seconds after every τ seconds of work, and R seconds from a failure to the next step: Daly 2006, "A
    higher order estimate of the optimum checkpoint interval for restart dumps", doi:10.1016/j.future.2004.11.016, the
    complete model; without failures T = (τ + δ) · work / τ. M = 1 / (devices · rate): one device that fails stops all.

    devices: of each layout (n,); step_s: seconds of one step (n,). Left out: checkpoints written beside the steps,
    spare nodes, slow recovery of a whole cluster.
    """
    stop_s = training.checkpoint_s
    rate = cluster.failures_per_device_day * devices / DAY_S
    if not cluster.failures_per_device_day:
        if training.checkpoint_interval_steps is None:
            return np.ones_like(step_s)
        work_s = training.checkpoint_interval_steps * step_s
        return floats(work_s / (work_s + stop_s))
    between_s = 1 / rate
    work_s = _work_s(training, between_s, step_s)
    lost, restarts = (work_s + stop_s) / between_s, cluster.restart_s / between_s
    goes_on = np.maximum(lost, restarts) <= MOST_EXPONENT
    lost, restarts = np.where(goes_on, lost, 1.0), np.where(goes_on, restarts, 0.0)
    return np.where(goes_on, work_s / between_s * np.exp(-restarts) / np.expm1(lost), 0.0)


def _work_s(training: Training, between_s: Floats, step_s: Floats) -> Floats:
    """Seconds of work between two checkpoints (n,): as given in steps; else what loses least, √(2 · δ · M), and a step
    at least: Young 1974, "A first order approximation to the optimum checkpoint interval", doi:10.1145/361147.361115.
    """
    if training.checkpoint_interval_steps is not None:
        return floats(training.checkpoint_interval_steps * step_s)
    return np.maximum(np.sqrt(2 * training.checkpoint_s * between_s), step_s)
