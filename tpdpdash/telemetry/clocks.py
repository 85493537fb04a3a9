"""Wall clocks of several machines on one axis."""

from __future__ import annotations

import warnings

import numpy as np

from tpdpdash.telemetry.snapshot import Floats, Telemetry


def clock_ahead_s(telemetry: Telemetry) -> Floats:
    """(R,) seconds by which the clock of a rank's machine runs ahead of that of the first rank's; 0 where unknown.

    Ranks end a step together: each waits for the gradients, or their norm, of all others. So a machine whose ranks end
    every step later by the same seconds has a clock that is ahead by as much. The median over the steps that are kept
    leaves out single late steps; what remains unknown is the time by which the last exchange ends apart.
    """
    ahead = np.zeros(telemetry.world_size)
    hosts: dict[str, list[int]] = {}
    for rank, info in sorted(telemetry.ranks.items()):
        hosts.setdefault(info.host, []).append(rank)
    if len(hosts) < 2:
        return ahead
    ends = telemetry.t + telemetry.step_s
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns of what NaN already says
        first, *others = (np.nanmedian(ends[ranks], axis=0) for ranks in hosts.values())
        for ranks, end in zip(list(hosts.values())[1:], others, strict=True):
            found = float(np.nanmedian(end - first)) if len(end) else float("nan")
            ahead[ranks] = found if np.isfinite(found) else 0.0
    return ahead
