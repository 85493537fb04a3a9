"""torchrun's traceback of a stop is folded; other tracebacks stay."""

from tpdpdash.report.agent_log import MAX_TRACEBACK_LINES, SIGNALLED, TRACEBACK, folded

STOPPED = (
    f'warning\n{TRACEBACK}\n  File "run.py", line 1\n    main()\n\n    raise\n{SIGNALLED} Process 7 got signal: 15\n'
)
FAILED = f'{TRACEBACK}\n  File "run.py", line 1\nValueError: boom\nafter\n'


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def test_the_traceback_of_a_signal_is_one_line() -> None:
    assert list(folded(lines(STOPPED))) == [
        "warning\n",
        "torchrun was told to end (6 lines of its traceback are folded)\n",
    ]


def test_every_other_traceback_stays_as_it_is() -> None:
    assert list(folded(lines(FAILED))) == lines(FAILED)
    cut_short = f"{TRACEBACK}\n  File"
    assert list(folded(lines(cut_short))) == lines(cut_short)
    endless = f"{TRACEBACK}\n" + "  File\n" * (2 * MAX_TRACEBACK_LINES)
    assert list(folded(lines(endless))) == lines(endless)
