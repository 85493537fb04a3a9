"""`tpdpdash …`: every command. stdout carries the answer only; exit 0 done, 1 failed or does not fit, 2 bad input."""

from __future__ import annotations

import sys

# Each registers its commands: `--help` lists them in this order.
# isort: off
from tpdpdash.cli import facts, plans, start, history, profile, calibrate, dashboard  # noqa: F401

# isort: on
from tpdpdash.cli.shell import BAD_INPUT, UsageError, app, tell
from tpdpdash.faults import InvalidInputError
from tpdpdash.text import fault_lines


def main() -> None:
    """Entry of the console script and of `python -m tpdpdash`."""
    try:
        sys.exit(app(standalone_mode=False))
    except InvalidInputError as invalid:
        tell(fault_lines(invalid.faults))
    except UsageError as wrong:  # typer would draw a box of many lines
        tell([line for line in [" ".join(wrong.format_message().split())] if line])
    sys.exit(BAD_INPUT)
