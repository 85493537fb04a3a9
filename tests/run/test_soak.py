"""Random kills of random members of a run, at random moments of its start, its life and its stop.

TPDPDASH_SOAK_KILLS: how many (500); TPDPDASH_SOAK_SEED: to see a failure again. After each: no orphan, the right state,
a folder that can be read.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from live_runs import SCRIPT, SLACK, light_agent, member_name, wait_for

from tpdpdash.faults import InvalidInputError
from tpdpdash.run.folder import RunFolder, run_ids
from tpdpdash.run.history import RunView, read_state
from tpdpdash.run.processes import ProcessId, processes_of_run, send_signal
from tpdpdash.run.request import RunRequest, start_request
from tpdpdash.run.stop import stop_run
from tpdpdash.telemetry.reader import RunReader

NUM_KILLS = int(os.environ.get("TPDPDASH_SOAK_KILLS", "500"))
SEED = int(os.environ.get("TPDPDASH_SOAK_SEED", str(time.time_ns() % 10**6)))
TORCHRUN_SHARE = 10
"""One kill in so many is of a run under torchrun, which takes seconds to come up."""
RANKS = (sys.executable, str(SCRIPT), "100000", "0.02")
MOMENTS = ("start", "life", "stop")
START_S = {"light": 0.8, "torchrun": 6.0}
"""For about so long a run comes up."""
GONE_S = 2.0 * SLACK
OVER_S = 10.0 * SLACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """What was killed, and when."""

    member: str
    """supervisor, agent, rank0, rank1; none where everything had ended before."""
    moment: str
    """One of MOMENTS."""


def is_about_to_exec(pid: int) -> bool:
    """Whether it still looks like its parent: what it will be cannot be told. Raises OSError when it is gone."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    parent = stat[stat.rindex(")") + 2 :].split()[1]
    return Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{parent}/cmdline").read_bytes()


def kill_one(run_id: str, chance: random.Random, moment: str) -> Kill:
    """kill -9 a member of the run by chance."""
    members: dict[str, ProcessId] = {}
    for process in processes_of_run(run_id):
        with suppress(OSError):  # gone already
            if not is_about_to_exec(process.pid):
                members[member_name(process.pid)] = process
    if not members:
        return Kill(member="none", moment=moment)
    name = chance.choice(sorted(members))
    hit = send_signal(members[name], signal.SIGKILL)
    return Kill(member=name if hit else "none", moment=moment)


def request_of(agent: str) -> RunRequest:
    """Two ranks that step for ever."""
    in_place_of_torchrun = light_agent(2, RANKS) if agent == "light" else None
    return RunRequest(name="soak", world_size=2, rank_argv=RANKS, agent_argv=in_place_of_torchrun)


@contextmanager
def in_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool


def kill_in_start(root: Path, agent: str, chance: random.Random) -> tuple[Kill, RunFolder | None]:
    """Kill while the start is still under way, or just after; None where the start was refused."""
    before = set(run_ids(root)) if root.exists() else set()
    pause = chance.uniform(0.0, START_S[agent])
    with in_thread() as pool:
        starting: Future[RunFolder] = pool.submit(start_request, request_of(agent), root=root)
        wait_for(lambda: (root.exists() and set(run_ids(root)) - before) or starting.done(), OVER_S)
        new = set(run_ids(root)) - before
        time.sleep(pause)
        kill = kill_one(new.pop(), chance, "start") if new else Kill(member="none", moment="start")
        try:
            return kill, starting.result(timeout=OVER_S)
        except InvalidInputError:
            return kill, None


def until_running(folder: RunFolder) -> None:
    wait_for(lambda: (view := read_state(folder)).is_over or (view.status and view.status.phase == "running"), 60)


def kill_in_life(folder: RunFolder, chance: random.Random) -> Kill:
    until_running(folder)
    time.sleep(chance.uniform(0.0, 0.3))
    return kill_one(folder.run_id, chance, "life")


def kill_in_stop(folder: RunFolder, chance: random.Random) -> Kill:
    """Kill while somebody else stops it: stop returns with everything gone all the same."""
    until_running(folder)
    with in_thread() as pool:
        stopping = pool.submit(stop_run, folder, by="test")
        time.sleep(chance.uniform(0.0, 0.5))
        kill = kill_one(folder.run_id, chance, "stop")
        assert stopping.result(timeout=60).could_not_kill == ()
    return kill


def check_state(view: RunView, kill: Kill) -> None:
    """The state is the one that the kill calls for, and names what was killed."""
    assert view.status is not None
    failure = view.status.first_failure
    if kill.moment == "stop" or kill.member == "none":  # the end and the kill may come in either order
        assert view.state in ("stopped", "failed", "lost")
    elif kill.member == "supervisor":
        assert view.state == "lost"
    elif kill.member == "agent":
        assert (view.state, failure and failure.code) == ("failed", "agent_killed")
    else:
        rank = int(kill.member.removeprefix("rank"))
        assert view.state == "failed"
        assert (failure.code, failure.rank, failure.signal) == ("rank_killed", rank, "SIGKILL")


def check_folder(folder: RunFolder, kill: Kill) -> None:
    """Whatever was written can be read, and no line is torn but a last one."""
    reader = RunReader(folder.path, 2)
    reader.refresh()
    assert reader.snapshot().bad_lines == {}
    if kill.member != "supervisor":  # which may leave the half-written copy of what it was about to replace
        assert not [path.name for path in folder.path.rglob(".*") if path.is_file()]


def one_kill(root: Path, agent: str, chance: random.Random) -> Kill:
    """Start, kill, and look at what is left."""
    moment = chance.choice(MOMENTS)
    if moment == "start":
        before = run_ids(root)
        kill, started = kill_in_start(root, agent, chance)
        if started is None:
            assert (kill.member, run_ids(root)) == ("supervisor", before), "a start that was refused leaves nothing"
            return kill
        folder = started
        if kill.member == "none":  # nothing was there yet
            stop_run(folder, by="test")
    else:
        folder = start_request(request_of(agent), root=root)
        kill = kill_in_life(folder, chance) if moment == "life" else kill_in_stop(folder, chance)
    wait_for(lambda: read_state(folder).is_over, OVER_S)
    wait_for(lambda: not processes_of_run(folder.run_id), GONE_S)
    check_state(read_state(folder), kill)
    check_folder(folder, kill)
    return kill


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("agent", ["light", "torchrun"])
def test_random_kills_leave_no_orphan_no_wrong_state_and_no_unreadable_folder(runs_root: Path, agent: str) -> None:
    share = max(1, NUM_KILLS // TORCHRUN_SHARE)
    number = share if agent == "torchrun" else NUM_KILLS - share
    done: Counter[Kill] = Counter()
    for kill in range(number):
        seed = f"{SEED}-{agent}-{kill}"
        try:
            done[one_kill(runs_root, agent, random.Random(seed))] += 1
        except BaseException:
            print(f"kill {kill} of {number}, TPDPDASH_SOAK_SEED={SEED}")
            raise
    assert sum(done.values()) == number
    assert len(run_ids(runs_root)) <= number
    told = {f"{kill.moment}/{kill.member}": count for kill, count in sorted(done.items(), key=lambda i: str(i[0]))}
    print(f"{number} kills, TPDPDASH_SOAK_SEED={SEED}: {told}")
    assert threading.active_count() < 10
