"""What the tests of schedules share."""

from __future__ import annotations

import numpy as np

from tpdpdash.layout.layout import SCHEDULES
from tpdpdash.schedule.closed_form import pipeline_seconds


def closed(
    schedule: str, forward: list[float], backward: list[float], m: int, v: int = 1, g: int = 0, x: float = 0.0
) -> float:
    """The closed form of one pipeline: forward and backward seconds by stage, m microbatches, v chunks, groups of g."""
    f, b = np.array([forward]), np.array([backward])
    seconds = pipeline_seconds(
        schedule=SCHEDULES.index(schedule),
        forward_s=f,
        backward_s=b,
        stage_mask=np.ones_like(f, np.bool_),
        num_microbatches=m,
        num_model_chunks=v,
        group=g or len(forward),
        transfer_s=x,
    )
    return float(seconds[0])
