"""Follow a run to its end: what changed since the last look, for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tpdpdash.run.folder import RunFolder
from tpdpdash.run.history import RunView, read_state

POLL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look at a run at which something had changed."""

    view: RunView
    """The run as judged at that moment."""
    elapsed_s: float
    """Since following began."""

    @property
    def is_over(self) -> bool:
        """Whether this was the last look."""
        return self.view.is_over


def follow(folder: RunFolder) -> Iterator[Progress]:
    """Yield whenever state, phase, ranks by phase or last step have changed; ends with the run."""
    began = time.monotonic()
    before: object = None
    while True:
        view = read_state(folder)
        now = _visible(view)
        if now != before:
            before = now
            yield Progress(view=view, elapsed_s=time.monotonic() - began)
        if view.is_over:
            return
        time.sleep(POLL_S)


def _visible(view: RunView) -> object:
    status = view.status
    if status is None:
        return view.state, view.damage
    return view.state, status.phase, dict(status.ranks_by_phase), status.last_step, status.scheduler
