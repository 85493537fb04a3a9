"""Asking a run for a deep profile: what is refused, which step is taken, and what becomes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from made_telemetry import made, places

from tpdpdash.faults import InvalidInputError
from tpdpdash.report.profiles import progress_word
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.history import RunView
from tpdpdash.run.profile import (
    Progress,
    ask_for_profile,
    file_at_start,
    newest_step,
    next_step,
    open_profile,
    profile_progress,
)
from tpdpdash.run.status import RunStatus, State
from tpdpdash.telemetry.profile_file import profile_path
from tpdpdash.telemetry.profile_request import parse_request
from tpdpdash.telemetry.record import PROFILE_REQUEST
from tpdpdash.telemetry.snapshot import ProfileNote, Telemetry


def view_of(root: Path, state: State = "running", *, steps: int | None = 100) -> RunView:
    """A run of four ranks in this state, with its folder."""
    folder = RunFolder(root / "20261130-101500-test-abcd")
    folder.profile_request.parent.mkdir(parents=True, exist_ok=True)
    status = RunStatus(
        state=state, engine="local", host="a", boot_id="b", supervisor_pid=1, supervisor_start_time=1.0, created=1.0,
        name="test", layout="dp4", world_size=4, steps=steps,
    )  # fmt: skip
    return RunView(folder=folder, state=state, status=status)


def told(steps: int = 20, step_s: float = 1.0, *notes: ProfileNote) -> Telemetry:
    """Four ranks that have finished so many steps."""
    telemetry = made(places(dp=4), steps=max(1, steps), phase_s={"forward": step_s})
    if not steps:
        return replace(telemetry.last(0), heartbeats={})
    return replace(telemetry, profiles=notes)


def codes(refused: pytest.ExceptionInfo[InvalidInputError]) -> list[tuple[str, object]]:
    return [(fault.code, fault.value) for fault in refused.value.faults]


def note(rank: int, step: int, event: str, reason: str = "") -> ProfileNote:
    return ProfileNote(rank=rank, step=step, t=2e9, event=event, reason=reason)


def test_the_request_stands_in_the_folder_for_the_ranks(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    request = ask_for_profile(view, told(), ranks=[3, 0, 3], step=50, by="cli")
    assert (request.ranks, request.step, request.by) == ((0, 3), 50, "cli")
    assert parse_request(json.loads(view.folder.profile_request.read_text())) == request


def test_the_next_step_is_one_of_which_every_rank_will_have_heard() -> None:
    assert next_step(told(20, step_s=1.0), None) == 24  # a heartbeat a second, and three seconds of slack
    assert next_step(told(20, step_s=60.0), None) == 22
    assert next_step(told(20, step_s=0.01), None) == 321
    assert next_step(told(20, step_s=0.01), 30) == 30
    assert next_step(told(0), None) == 2  # the first step opens connections
    assert newest_step(told(0)) == 0


@pytest.mark.parametrize(
    "state", [state for state in get_args(State) if state not in ("running", "created", "starting")]
)
def test_a_run_that_is_over_or_ends_cannot_be_profiled(state: State, tmp_path: Path) -> None:
    view = view_of(tmp_path, state)
    with pytest.raises(InvalidInputError) as refused:
        ask_for_profile(view, told(), ranks=[0], step=None, by="cli")
    assert codes(refused) == [("profile_run_over", view.run_id)]
    assert not view.folder.profile_request.exists()


def test_every_fault_of_a_request_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as refused:
        ask_for_profile(view_of(tmp_path), told(20), ranks=[1, 4, 9], step=20, by="cli")
    assert codes(refused) == [("profile_rank_unknown", 4), ("profile_rank_unknown", 9), ("profile_step_past", 20)]
    with pytest.raises(InvalidInputError) as refused:
        ask_for_profile(view_of(tmp_path), told(20), ranks=[], step=101, by="cli")
    assert codes(refused) == [("profile_no_rank", None), ("out_of_range", 101)]
    with pytest.raises(InvalidInputError) as refused:
        ask_for_profile(view_of(tmp_path), told(20), ranks=[0], step=1, by="cli")
    assert codes(refused) == [("out_of_range", 1)], "not also that it is over"
    with pytest.raises(InvalidInputError) as refused:
        ask_for_profile(view_of(tmp_path, steps=20), told(20), ranks=[0], step=None, by="cli")
    assert [fault.code for fault in refused.value.faults] == ["profile_no_step_left"]


def test_no_more_ranks_than_a_run_can_wait_for() -> None:
    with pytest.raises(InvalidInputError) as refused:
        file_at_start((5, tuple(range(33))), world_size=64, steps=None)
    assert codes(refused) == [("profile_too_many_ranks", 33)]


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    view.folder.profile_request.parent.rmdir()
    with pytest.raises(InvalidInputError) as refused:
        ask_for_profile(view, told(), ranks=[0], step=None, by="cli")
    assert codes(refused) == [("profile_not_asked", view.run_id)]


def test_a_run_can_be_asked_when_it_starts() -> None:
    assert file_at_start(None, world_size=2, steps=20) == {}
    (text,) = file_at_start((20, (1, 0)), world_size=2, steps=20).values()
    assert list(file_at_start((20, (0,)), world_size=2, steps=20)) == [PROFILE_REQUEST]
    assert (parse_request(json.loads(text)).ranks, parse_request(json.loads(text)).step) == ((0, 1), 20)
    for step in (1, 21):
        with pytest.raises(InvalidInputError) as refused:
            file_at_start((step, (0,)), world_size=2, steps=20)
        assert [fault.field for fault in refused.value.faults] == ["--profile-step"]


def test_what_becomes_of_a_request_is_told_rank_by_rank(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    assert profile_progress(view, told()) == ()
    ask_for_profile(view, told(), ranks=[0, 1, 2, 3], step=30, by="cli")
    ready = profile_path(view.folder.path, 0, 30)
    ready.parent.mkdir()
    ready.write_bytes(b"1")
    before = note(3, 10, "profiled")  # of a former request
    telemetry = told(
        20, 1.0, note(0, 30, "profiled"), note(1, 31, "profiling"), note(2, 30, "profile_failed", "full"), before
    )
    found = profile_progress(view, telemetry)
    assert [(each.rank, each.step, each.progress) for each in found] == [
        (0, 30, "ready"), (1, 31, "running"), (2, 30, "failed"), (3, 30, "asked"),
    ]  # fmt: skip
    assert (found[0].path, found[2].reason) == (ready, "full")
    over = profile_progress(replace(view, state="finished"), telemetry)
    assert [each.progress for each in over] == ["ready", "missed", "failed", "missed"]
    assert {each.progress for each in (*found, *over)} == set(get_args(Progress)) - {"replaced"}


def test_whoever_asked_hears_of_that_request_though_another_took_its_place(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    mine = ask_for_profile(view, told(), ranks=[0, 1], step=30, by="cli")
    ask_for_profile(view, told(), ranks=[2], step=40, by="dashboard")
    telemetry = told(31, 1.0, note(0, 30, "profiling"))
    found = profile_progress(view, telemetry, mine)
    assert [(each.rank, each.step, each.progress) for each in found] == [(0, 30, "running"), (1, 30, "replaced")]
    assert "a later request" in progress_word(found[1])
    assert [(each.rank, each.progress) for each in profile_progress(view, telemetry)] == [(2, "asked")]


def test_a_damaged_profile_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.step-2.json.gz"
    path.write_bytes(b"nothing")
    for wrong in (path, tmp_path / "gone"):
        with pytest.raises(InvalidInputError) as refused:
            open_profile(wrong)
        assert codes(refused) == [("profile_unreadable", wrong.name)]
