"""What the supervisor makes of the ranks' telemetry and error files."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from tpdpdash.run.failure import first_failure
from tpdpdash.run.folder import RunFolder, new_run_folder
from tpdpdash.run.ranks import Ranks
from tpdpdash.telemetry.process import start_time_s
from tpdpdash.telemetry.record import RecordWriter, rank_file


def tell(folder: RunFolder, rank: int, *records: tuple[str, dict[str, object]]) -> None:
    writer = RecordWriter(rank_file(folder.path, rank), rank)
    for kind, fields in records:
        writer.write(kind, fields)
    writer.close()


def hello(pid: int = 2**22 - 1, start_time: float = 1.0) -> tuple[str, dict[str, object]]:
    who = {
        "pid": pid,
        "start_time": start_time,
        "host": socket.gethostname(),
        "world_size": 2,
        "local_rank": 0,
        "coords": {},
    }
    return "hello", who


def event(name: str, **more: object) -> tuple[str, dict[str, object]]:
    return "event", {"name": name, **more}


STEP = ("step", {"step": 1, "step_s": 0.5, "phase_s": {"forward": 0.4}})


def test_the_phase_of_a_run_is_that_of_its_slowest_rank(runs_root: Path) -> None:
    folder = new_run_folder(runs_root, "x")
    ranks = Ranks(folder, 2)
    tell(folder, 0, hello(), event("importing"))
    ranks.update()
    assert (ranks.phase, ranks.by_phase()) == ("starting", {"starting": 1, "importing": 1})
    tell(folder, 1, hello(), event("importing"), event("connecting"))
    ranks.update()
    assert (ranks.have_all_reported, ranks.phase) == (True, "importing")
    tell(folder, 0, event("building"), event("first_step"), STEP)
    tell(folder, 1, event("building"), event("checkpoint"))
    ranks.update()
    assert (ranks.phase, ranks.by_phase(), ranks.last_step) == ("building", {"building": 1, "running": 1}, 1)


def test_a_hello_that_names_a_process_of_another_program_is_never_watched_or_signalled(runs_root: Path) -> None:
    """This test's own pid and start time are right, but it does not carry the run's id."""
    folder = new_run_folder(runs_root, "x")
    tell(folder, 0, hello(os.getpid(), start_time_s(os.getpid()) or 0.0))
    tell(folder, 1, hello())
    ranks = Ranks(folder, 2)
    ranks.update()
    assert ([rank.process for rank in ranks.by_rank.values()], ranks.death_watches()) == ([None, None], [])


def test_a_hello_of_a_process_that_is_gone_does_not_bury_a_rank_that_lives(runs_root: Path) -> None:
    """A helper of a rank that starts a probe too, and ends."""
    folder = new_run_folder(runs_root, "x")
    environment = {**os.environ, "TPDPDASH_RUN_ID": folder.run_id}
    script = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(script, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tell(folder, 0, hello(process.pid, start_time_s(process.pid) or 0.0), hello())
        ranks = Ranks(folder, 1)
        ranks.update()
        assert (ranks.by_rank[0].died_t, len(ranks.death_watches())) == (None, 1)


def test_a_rank_that_died_before_the_first_look_is_dead_though_nobody_has_reaped_it(runs_root: Path) -> None:
    folder = new_run_folder(runs_root, "x")
    environment = {**os.environ, "TPDPDASH_RUN_ID": folder.run_id}
    with subprocess.Popen([sys.executable, "-c", ""], env=environment) as process:
        started = start_time_s(process.pid) or 0.0
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        tell(folder, 0, hello(process.pid, started))
        ranks = Ranks(folder, 1)
        ranks.update()
        assert (ranks.by_rank[0].died_t is None, ranks.death_watches()) == (False, [])


def test_a_process_of_another_machine_is_neither_watched_nor_called_dead(runs_root: Path) -> None:
    folder = new_run_folder(runs_root, "x")
    tell(folder, 0, ("hello", {**hello()[1], "host": "elsewhere"}), STEP)
    ranks = Ranks(folder, 1)
    ranks.update()
    (end,) = ranks.ends()
    assert (ranks.death_watches(), end.died_t, ranks.have_all_reported) == ([], None, True)


def test_reports_of_several_machines_are_put_together_by_the_ranks_of_the_run(runs_root: Path) -> None:
    """The short line numbers ranks within its machine: local rank 0 of the second machine is rank 2."""
    folder = new_run_folder(runs_root, "x")
    folder.agent_log.write_text("srun: error: n1: task 1: Exited with exit code 1\n")
    (folder.logs / "agent-0.log").write_text("")
    report = "  rank      : 2 (local_rank: 0)\n  exitcode  : -9 (pid: 102)\n"
    (folder.logs / "agent-1.log").write_text(f"failed (exitcode: -9) local_rank: 0 (pid: 102)\n{report}")
    assert [end.exit_code for end in Ranks(folder, 4, nodes=2).ends()] == [None, None, -9, None]


def test_bad_lines_are_counted_and_the_rest_is_used(runs_root: Path) -> None:
    folder = new_run_folder(runs_root, "x")
    rank_file(folder.path, 0).write_bytes(b"{half\n\0\n")
    tell(folder, 0, hello(), STEP)
    ranks = Ranks(folder, 1)
    ranks.update()
    assert (dict(ranks.bad_lines), ranks.last_step) == ({"not_json": 2}, 1)


def test_an_end_is_put_together_from_report_error_file_and_stderr(runs_root: Path) -> None:
    folder = new_run_folder(runs_root, "x")
    folder.agent_log.write_text(
        "".join(
            f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {100 + rank})\n"
            for rank, code in enumerate((1, 1, 1, -11))
        )
    )
    outputs = folder.logs / "id_x" / "attempt_0"
    for rank in range(4):
        (outputs / str(rank)).mkdir(parents=True)
    tell(folder, 0, hello(), event("error", error="ValueError: told", traceback="told at once"))
    message = {"message": "KeyError: 1", "extraInfo": {"py_callstack": "the stack", "timestamp": "1796036661"}}
    (outputs / "1" / "error.json").write_text(json.dumps({"message": message}))
    (outputs / "2" / "stderr.log").write_text("Traceback (most recent call last):\n  File 'x'\nTypeError: printed\n")
    profiled = "USDT:2026-11-30 20:56:03 7:7 SyncActivityProfilerHandler.cpp:52] profiler_start\n"
    (outputs / "3" / "stderr.log").write_text(f"{profiled}Fatal Python error: Segmentation fault\n")
    ranks = Ranks(folder, 4)
    ranks.update()
    told, recorded, printed, crashed = ranks.ends()
    assert (told.error, told.traceback) == ("ValueError: told", "told at once")
    assert (recorded.error, recorded.traceback, recorded.error_t) == ("KeyError: 1", "the stack", 1796036662.0)
    assert printed.error == "TypeError: printed"
    assert (crashed.error, crashed.signal_name) == (None, "SIGSEGV")
    assert crashed.traceback == "Fatal Python error: Segmentation fault"


def test_a_damaged_error_file_does_not_hide_the_stderr(runs_root: Path) -> None:
    folder = new_run_folder(runs_root, "x")
    folder.agent_log.write_text("  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 100)\n")
    outputs = folder.logs / "id_x" / "attempt_0" / "0"
    outputs.mkdir(parents=True)
    (outputs / "error.json").write_text('{"message": {"mess')
    (outputs / "stderr.log").write_text("Traceback (most recent call last):\n  File 'x'\nTypeError: printed\n")
    (end,) = Ranks(folder, 1).ends()
    assert end.error == "TypeError: printed"


def test_a_death_is_noted_although_the_telemetry_was_deleted(runs_root: Path) -> None:
    """Else the supervisor would be woken by the death again and again."""
    folder = new_run_folder(runs_root, "x")
    script = [sys.executable, "-c", "print(flush=True); input()"]
    environment = {**os.environ, "TPDPDASH_RUN_ID": folder.run_id}
    with subprocess.Popen(script, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tell(folder, 0, hello(process.pid, start_time_s(process.pid) or 0.0))
        ranks = Ranks(folder, 1)
        ranks.update()
        assert len(ranks.death_watches()) == 1
        shutil.rmtree(folder.telemetry)
        process.kill()
        process.wait()
        ranks.update()
    assert set(ranks.unreadable) == {"telemetry", "rank-00000.jsonl"}
    assert ranks.death_watches() == []
    assert ranks.by_rank[0].died_t is not None


def test_a_rank_that_left_in_peace_is_named_though_its_death_is_seen_with_that_of_the_rank_that_missed_it(
    runs_root: Path,
) -> None:
    """A busy machine's supervisor looks seldom."""
    folder = new_run_folder(runs_root, "x")
    environment = {**os.environ, "TPDPDASH_RUN_ID": folder.run_id}
    script = [sys.executable, "-c", "print(flush=True); input()"]
    ranks, processes = Ranks(folder, 2), []
    for rank in (0, 1):
        process = subprocess.Popen(script, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        tell(folder, rank, hello(process.pid, start_time_s(process.pid) or 0.0))
    ranks.update()
    for process in processes:
        process.communicate(b"\n")
    ranks.update()
    folder.agent_log.write_text("  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 100)\n")
    outputs = folder.logs / "id_x" / "attempt_0" / "0"
    outputs.mkdir(parents=True)
    lost = "Traceback (most recent call last):\n  File 'x'\nRuntimeError: Connection closed by peer\n"
    (outputs / "stderr.log").write_text(lost)
    failure = first_failure(ranks.ends(), agent_exit=1)
    assert failure is not None
    assert (failure.code, failure.rank) == ("rank_left_early", 1)


def test_one_file_that_cannot_be_read_hides_no_other(runs_root: Path) -> None:
    folder = new_run_folder(runs_root, "x")
    rank_file(folder.path, 0).mkdir()
    tell(folder, 1, hello(), STEP)
    ranks = Ranks(folder, 2)
    ranks.update()
    assert (set(ranks.unreadable), ranks.last_step) == ({"rank-00000.jsonl"}, 1)
