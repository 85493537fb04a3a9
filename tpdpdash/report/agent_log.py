"""torchrun's own log for people: its answer to the SIGTERM of a stop is a traceback, which is no failure: folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tpdpdash.text import t

TRACEBACK = "Traceback (most recent call last):"
SIGNALLED = "torch.distributed.elastic.multiprocessing.api.SignalException:"
MAX_TRACEBACK_LINES = 400
"""A longer block is passed on as it is."""


def folded(lines: Iterable[str]) -> Iterator[str]:
    """The lines with each traceback of a received signal as one line; all others as they are."""
    held: list[str] = []
    for line in lines:
        if not held and line.rstrip() != TRACEBACK:
            yield line
            continue
        held.append(line)
        if len(held) > 1 and line.startswith(SIGNALLED):
            yield t("torchrun was told to end ({n} lines of its traceback are folded)", n=len(held)) + "\n"
            held = []
        elif len(held) > MAX_TRACEBACK_LINES or (len(held) > 1 and not line.startswith((" ", "\n"))):
            yield from held
            held = []
    yield from held
