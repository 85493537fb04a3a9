"""The first cause: a rank's own failure before the failures that follow from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tpdpdash.run.failure import SILENT_S, RankEnd, failure_fault, first_failure, signal_name
from tpdpdash.run.rank_logs import reported_exits, told_error, traceback_in, watchdog_error
from tpdpdash.run.ranks import tail_text
from tpdpdash.text import fault_text

CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:35093"
RESET = "DistBackendError: NCCL error: remote process exited or there was a network error"


def test_a_killed_rank_goes_before_the_peers_whose_connection_closed_even_if_they_are_seen_earlier() -> None:
    ends = [
        RankEnd(rank=0, exit_code=1, error=CLOSED, error_t=10.0),
        RankEnd(rank=1, exit_code=-9, died_t=10.1),
        RankEnd(rank=2, exit_code=-15, died_t=11.0, was_ended_by_agent=True),
    ]
    failure = first_failure(ends, agent_exit=1)
    assert failure is not None
    assert (failure.code, failure.rank, failure.signal) == ("rank_killed", 1, "SIGKILL")
    assert failure.others == ((0, CLOSED), (2, "SIGTERM"))


def test_of_two_exceptions_of_their_own_the_earlier_is_first() -> None:
    ends = [
        RankEnd(rank=0, exit_code=1, error="ValueError: late", error_t=12.0),
        RankEnd(rank=1, exit_code=1, error=RESET, error_t=9.0),
        RankEnd(rank=2, exit_code=1, error="ValueError: early", error_t=10.0),
    ]
    failure = first_failure(ends, agent_exit=1)
    assert failure is not None
    assert (failure.code, failure.rank, failure.error) == ("rank_raised", 2, "ValueError: early")


def test_a_killed_rank_whose_death_nobody_saw_goes_before_those_that_the_agent_ended() -> None:
    """Killed before it had said who it is: its time is not known."""
    ends = [RankEnd(rank=0, exit_code=-15, died_t=10.1, was_ended_by_agent=True), RankEnd(rank=1, exit_code=-9)]
    failure = first_failure(ends, agent_exit=1)
    assert failure is not None
    assert (failure.code, failure.rank) == ("rank_killed", 1)


def test_a_rank_that_somebody_ended_by_sigterm_is_first_unless_it_was_the_agent() -> None:
    ends = [RankEnd(rank=0, exit_code=1, error=CLOSED, error_t=10.1), RankEnd(rank=1, exit_code=-15, died_t=10.0)]
    failure = first_failure(ends, agent_exit=1)
    assert failure is not None
    assert (failure.code, failure.rank, failure.signal) == ("rank_signalled", 1, "SIGTERM")


def test_a_rank_that_the_agent_had_to_kill_is_not_the_cause() -> None:
    ends = [
        RankEnd(rank=0, exit_code=-9, died_t=20.0, was_ended_by_agent=True),
        RankEnd(rank=1, exit_code=1, error="RuntimeError: Timed out waiting 10000ms for recv", error_t=10.0),
    ]
    failure = first_failure(ends, agent_exit=1)
    assert failure is not None
    assert failure.rank == 1


WRAPPED = (
    "Traceback (most recent call last):\n  File 'collectives.py'\n    work.wait()\n"
    "RuntimeError: [/__w/pytorch/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 60000ms for send\n\n"
    "The above exception was the direct cause of the following exception:\n\n"
    "Traceback (most recent call last):\n  File '_backward.py'\n    raise RuntimeError(exc_msg) from e\n"
    "RuntimeError: \n        Failed to run stage backward:\n        Stage output: ('Tensor(torch.Size([64])',)\n"
)
"""What a pipeline of torch.distributed.pipelining leaves of a collective that timed out."""


def test_the_cause_of_an_exception_that_was_raised_from_another_is_told_first_and_in_one_line() -> None:
    wrapper = "RuntimeError: \n        Failed to run stage backward:\n        Stage output: ('Tensor"
    assert told_error(wrapper, WRAPPED) == (
        "RuntimeError: Timed out waiting 60000ms for send "
        "(RuntimeError: Failed to run stage backward: Stage output: ('Tensor)"
    )
    chain = WRAPPED.replace("Traceback", f"{WRAPPED}\nTraceback", 1).replace("60000ms", "1ms", 1)
    assert told_error("ValueError: x", chain).startswith("RuntimeError: Timed out waiting 60000ms")
    handled = WRAPPED.replace("The above exception was the direct cause of the following", "During handling of")
    assert told_error("ValueError: a\n  b", handled) == "ValueError: a b"


def test_a_peer_whose_pipeline_wraps_a_lost_connection_is_not_the_cause() -> None:
    ends = [
        RankEnd(rank=0, exit_code=1, error=told_error("RuntimeError: Failed to run stage", WRAPPED), error_t=9.0),
        RankEnd(rank=1, exit_code=1, error="ValueError: boom", error_t=10.0),
    ]
    failure = first_failure(ends, agent_exit=1)
    assert failure is not None
    assert (failure.code, failure.rank) == ("rank_raised", 1)


def test_a_rank_that_fell_silent_is_the_cause_where_the_others_only_waited_in_vain() -> None:
    waited = RankEnd(rank=0, exit_code=1, error="RuntimeError: Timed out waiting 60000ms", error_t=90.0, last_t=90.0)
    held = RankEnd(rank=1, exit_code=-9, died_t=120.0, last_t=30.0, was_ended_by_agent=True)
    failure = first_failure([waited, held], agent_exit=1)
    assert failure is not None
    assert (failure.code, failure.rank) == ("rank_silent", 1)
    assert "rank 1 fell silent" in fault_text(failure_fault(failure))
    spoke = replace(held, last_t=90.0 - SILENT_S)
    raised = replace(waited, error="ValueError: boom")
    for ends, code in (([waited, spoke], "rank_lost_peers"), ([raised, held], "rank_raised")):
        failure = first_failure(ends, agent_exit=1)
        assert failure is not None
        assert (failure.code, failure.rank) == (code, 0)


WATCHDOG = (
    "[rank1]:[E1201 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600011 milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)


def test_ranks_that_nccls_watchdog_aborted_are_not_the_cause_and_who_kept_them_waiting_is() -> None:
    error = watchdog_error(WATCHDOG)
    assert error is not None
    assert error.startswith("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12")
    aborted = RankEnd(rank=0, exit_code=-6, error=error, traceback=WATCHDOG, died_t=700.0, last_t=700.0)
    held = RankEnd(rank=1, exit_code=-9, died_t=720.0, last_t=99.0, was_ended_by_agent=True)
    raised = RankEnd(rank=1, exit_code=1, error="ValueError: boom", error_t=705.0)
    crashed = replace(raised, exit_code=-11, error=None)
    for other, code in ((held, "rank_silent"), (raised, "rank_raised"), (crashed, "rank_crashed")):
        failure = first_failure([aborted, other], agent_exit=1)
        assert failure is not None
        assert (failure.code, failure.rank) == (code, 1)
    failure = first_failure([aborted, replace(aborted, rank=1, died_t=701.0)], agent_exit=1)
    assert failure is not None
    assert (failure.code, failure.rank) == ("rank_lost_peers", 0)
    assert watchdog_error("double free or corruption (out)\nAborted") is None
    own = first_failure([replace(aborted, error=None)], agent_exit=1)
    assert own is not None
    assert own.code == "rank_crashed"


def test_a_rank_that_left_in_peace_too_early_is_named_and_not_the_peers_that_missed_it() -> None:
    ends = [RankEnd(rank=0, exit_code=1, error=CLOSED, error_t=10.2), RankEnd(rank=1, died_t=10.0)]
    failure = first_failure(ends, agent_exit=1)
    assert failure is not None
    assert (failure.code, failure.rank, failure.others) == ("rank_left_early", 1, ((0, CLOSED),))
    assert failure.exit_code is None, "no agent told one: it may be another machine's"


def test_a_killed_agent_is_the_cause_unless_a_rank_had_raised_before() -> None:
    died = [RankEnd(rank=0, died_t=10.1), RankEnd(rank=1, died_t=10.1)]
    failure = first_failure(died, agent_exit=-9, agent_died_t=10.0)
    assert failure is not None
    assert (failure.code, failure.signal) == ("agent_killed", "SIGKILL")
    raised = [RankEnd(rank=0, error="ValueError: boom", error_t=9.0), *died[1:]]
    failure = first_failure(raised, agent_exit=-9, agent_died_t=10.0)
    assert failure is not None
    assert (failure.code, failure.rank) == ("rank_raised", 0)


@pytest.mark.parametrize(("number", "name"), [(15, "SIGTERM"), (2, "SIGINT"), (1, "SIGHUP")])
def test_an_agent_that_caught_a_signal_is_the_cause_and_not_the_ranks_that_it_interrupted(
    number: int, name: str
) -> None:
    """torch 2.13's agent exits with 1 then; on SIGINT its ranks raise KeyboardInterrupt a moment before."""
    log = (
        "W1130 api.py:1028] Sending process 17367 closing signal SIGINT\nTraceback (most recent call last):\n"
        '    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)\n'
        f"torch.distributed.elastic.multiprocessing.api.SignalException: Process 17360 got signal: {number}\n"
    )
    interrupted = [RankEnd(rank=rank, exit_code=1, error="KeyboardInterrupt", error_t=9.9) for rank in (0, 1)]
    for ends in (interrupted, [RankEnd(rank=0, died_t=9.9)]):
        failure = first_failure(ends, agent_exit=1, agent_died_t=10.0, agent_log=log)
        assert failure is not None
        assert (failure.code, failure.rank, failure.signal) == ("agent_killed", None, name)
    raised = RankEnd(rank=0, error="ValueError: boom", error_t=9.0)
    failure = first_failure([raised], agent_exit=1, agent_died_t=10.0, agent_log=log)
    assert failure is not None
    assert (failure.code, failure.rank) == ("rank_raised", 0)


def test_a_run_that_ended_well_has_no_cause() -> None:
    assert first_failure([RankEnd(rank=0, died_t=3.0), RankEnd(rank=1)], agent_exit=0) is None


@pytest.mark.parametrize(
    ("log", "code", "says"),
    [
        pytest.param(
            "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 0 (pid: 62498) "
            "of binary: python",
            "rank_killed",
            ("rank 0", "SIGKILL", "host memory"),
            id="r114",
        ),
        pytest.param(
            "torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -11) local_rank: 0 (pid: 6421) of "
            "binary: python\n  exitcode  : -11 (pid: 6421)\n  error_file: <N/A>\n"
            "  traceback : Signal 11 (SIGSEGV) received by PID 6421",
            "rank_crashed",
            ("rank 0", "SIGSEGV"),
            id="r115",
        ),
        pytest.param(
            "[W socket.cpp:401] [c10d] The server socket has failed to bind to 0.0.0.0:47531 (errno: 98 - Address "
            "already in use).\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "agent_failed",
            ("47531",),
            id="r110",
        ),
    ],
)
def test_what_the_agent_reported_is_explained(log: str, code: str, says: tuple[str, ...]) -> None:
    exits, ended = reported_exits(log)
    ends = [RankEnd(rank=0, exit_code=exits.get(0), was_ended_by_agent=0 in ended)]
    failure = first_failure(ends, agent_exit=1, agent_log=log)
    assert failure is not None
    assert failure.code == code
    sentence = fault_text(failure_fault(failure))
    assert [part for part in says if part not in sentence] == []
    assert failure.rank == (None if code == "agent_failed" else 0)


def test_the_agents_report_gives_every_ranks_exit_code_and_whom_the_agent_ended() -> None:
    """Form of torch 2.13's log and ChildFailedError (torch/distributed/elastic/multiprocessing)."""
    log = (
        "W1130 api.py:1028] Sending process 17367 closing signal SIGTERM\n"
        "W1130 api.py:1028] Sending process 17368 closing signal SIGTERM\n"
        "W1130 api.py:1047] Unable to shutdown process 17368 via SIGTERM, forcefully exiting via SIGKILL\n"
        "E1130 api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 17369) of binary: python\n"
        "Failures:\n[1]:\n  time      : 2026-11-30_13:20:41\n  host      : localhost\n"
        "  rank      : 0 (local_rank: 0)\n  exitcode  : -9 (pid: 17368)\n  error_file: <N/A>\n"
        "[2]:\n  rank      : 2 (local_rank: 2)\n  exitcode  : -15 (pid: 17367)  (SIGTERM)\n"
        "[3]:\n  rank      : 3 (local_rank: 3)\n  exitcode  : -15 (pid: 17366)  (SIGTERM)\n"
        "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 17369) \n"
    )
    assert reported_exits(log) == ({0: -9, 1: 1, 2: -15, 3: -15}, {0, 2})


@pytest.mark.parametrize(
    ("exit_code", "name"),
    [(-9, "SIGKILL"), (137, "SIGKILL"), (-11, "SIGSEGV"), (0, None), (1, None), (256, None), (None, None)],
    ids=["b88-minus-9", "shell", "r115", "ok", "plain", "b88-256", "b88-empty"],
)
def test_a_signal_is_named_only_where_the_exit_code_is_one(exit_code: int | None, name: str | None) -> None:
    assert signal_name(exit_code) == name


def test_the_last_traceback_of_a_log_is_found_with_its_last_line() -> None:
    log = (
        "noise\nTraceback (most recent call last):\n  File 'a'\nKeyError: 1\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File 'b'\n    boom()\nValueError: boom\nmore noise\n"
    )
    assert traceback_in(log) == (
        "ValueError: boom",
        "Traceback (most recent call last):\n  File 'b'\n    boom()\nValueError: boom",
    )
    assert traceback_in("nothing here") is None


def test_where_the_agent_could_write_nothing_the_rank_that_ended_first_is_named() -> None:
    ends = [RankEnd(rank=0, died_t=12.0), RankEnd(rank=1, died_t=11.0), RankEnd(rank=2)]
    failure = first_failure(ends, agent_exit=1, agent_log="\n")
    assert (failure.code, failure.rank) == ("rank_gone", 1)
    assert "disk full" in fault_text(failure_fault(failure))
    assert first_failure(ends, agent_exit=1, agent_log="OSError: no such interface").code == "agent_failed"


def test_r125_a_line_that_torchrun_repeats_for_hours_is_bounded_in_memory_and_on_the_page(tmp_path: Path) -> None:
    line = "[W] has failed to send a keep-alive heartbeat to the rendezvous due to an error of type X\n"
    log = tmp_path / "agent.log"
    log.write_text(line * 100_000)
    tail = tail_text(log)
    assert len(tail) <= 256 << 10
    failure = first_failure([], agent_exit=1, agent_log=tail)
    assert failure.code == "agent_failed"
    assert failure.traceback is not None
    assert len(failure.traceback.splitlines()) <= 40
