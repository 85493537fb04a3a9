"""What all commands share: the application, their common arguments, how an answer and a notice are told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tpdpdash.faults import Fault, InvalidInputError

DONE, FAILED, BAD_INPUT = 0, 1, 2
UsageError: Any = typer.BadParameter.__base__
"""What typer raises for every wrong option and argument; it has no public name for it."""

app = typer.Typer(
    help="Plan, launch and watch parallel training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="The answer as JSON on stdout.")]
JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="A Job file (TOML).")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or a beginning of it that is unambiguous.")]


def answer(as_json: bool, document: object, lines: list[str]) -> None:
    """Print the answer: JSON as the contract has it, or lines for people."""
    print(json.dumps(document, allow_nan=False) if as_json else "\n".join(lines))


def tell(lines: list[str]) -> None:
    """Progress and notices go to stderr."""
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def ranks_of(text: str, field: str) -> tuple[int, ...]:
    """Ranks of an option: "0,3". Raises InvalidInputError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise InvalidInputError([Fault(code="profile_ranks_unreadable", field=field, value=text)])
    return tuple(map(int, words))
