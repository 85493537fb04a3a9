"""Watch's deep profile: the holder of the token asks, anyone sees what became of it and what it says."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from fake_runs import fake_run, status
from screens import open_page, texts
from streamlit.testing.v1 import AppTest

from tpdpdash import start_token as token
from tpdpdash.run.folder import RunFolder, write_json
from tpdpdash.telemetry.profile_file import ProfileEvent, profile_path, write_profile
from tpdpdash.telemetry.profile_request import ProfileRequest, parse_request
from tpdpdash.telemetry.record import RecordWriter, rank_file

ABOUT = {"t": 1000.0, "step_s": 0.5, "recorded_events": 90, "kept_events": 4}


def button(at: AppTest) -> object:
    (found,) = [each for each in at.button if each.label == "Profile the next step"]
    return found


def tell(folder: RunFolder, rank: int, name: str, step: int, **said: object) -> None:
    """An event as the rank writes it."""
    writer = RecordWriter(rank_file(folder.path, rank), rank)
    writer.write("event", {"name": name, "step": step, **said})
    writer.close()


def asked(folder: RunFolder, *ranks: int, step: int = 17) -> None:
    """A request that stands in the folder."""
    request = ProfileRequest(ranks=ranks, step=step, by="dashboard", t=time.time())
    write_json(folder.profile_request, request.to_json())


def profiled(folder: RunFolder, rank: int, step: int = 17) -> None:
    """A profile that a rank has written."""

    def span(name: str, category: str, lane: int, start: float, duration: float) -> ProfileEvent:
        return ProfileEvent(name=name, category=category, lane=lane, start_us=start, duration_us=duration)

    events = (
        span("forward", "phase", 0, 0, 300_000),
        span("dp", "phase", 0, 300_000, 200_000),
        span("aten::addmm", "cpu_op", 1, 1_000, 100_000),
        span("gloo:all_reduce", "user_annotation", 2, 310_000, 150_000),
    )
    lanes = {0: "phases", 1: "main thread", 2: "messages, thread 2"}
    write_profile(profile_path(folder.path, rank, step), {**ABOUT, "rank": rank, "step": step}, lanes, events)
    tell(folder, rank, "profiling", step)
    tell(folder, rank, "profiled", step)


def test_the_holder_of_the_token_asks_for_the_next_step_of_chosen_ranks(runs_root: Path) -> None:
    folder = fake_run(runs_root)
    at = open_page("watch", token=token.start_token())
    at.multiselect(key="profile-ranks").set_value([0, 3]).run()
    button(at).click().run()
    assert not at.exception
    request = parse_request(json.loads(folder.profile_request.read_text()))
    assert (request.ranks, request.by) == ((0, 3), "dashboard")
    assert request.step > 15
    assert f"rank 3, step {request.step}: asked" in texts(at)


def test_without_the_token_the_button_is_disabled_and_says_why(runs_root: Path) -> None:
    folder = fake_run(runs_root)
    at = open_page("watch")
    assert button(at).disabled
    assert "Only the holder of the start token" in texts(at)
    assert not folder.profile_request.exists()


def test_a_slow_rank_is_the_one_that_is_proposed(runs_root: Path) -> None:
    fake_run(runs_root, steps=19, slow_rank=5)
    at = open_page("watch", token=token.start_token())
    assert at.multiselect(key="profile-ranks").value == [5]


def test_what_becomes_of_a_request_is_told_rank_by_rank(runs_root: Path) -> None:
    folder = fake_run(runs_root)
    asked(folder, 0, 1, 2)
    tell(folder, 1, "profiling", 17)
    tell(folder, 2, "profiling", 17)
    tell(folder, 2, "profile_failed", 17, error="OSError(28, 'No space left on device')")
    shown = texts(open_page("watch"))
    assert "rank 0, step 17: asked" in shown
    assert "rank 1, step 17: being taken and written" in shown
    assert "rank 2, step 17: failed: OSError(28, 'No space left on device')" in shown


def test_a_profile_is_two_tables_with_its_file(runs_root: Path) -> None:
    folder = fake_run(runs_root, steps=19)
    asked(folder, 0, 1)
    profiled(folder, 0)
    profiled(folder, 1)
    at = open_page("watch")
    assert not at.exception
    operators, phases = (frame.value for frame in at.dataframe if {"kind", "phase"} & {*frame.value.columns})
    assert operators.iloc[0].tolist() == ["gloo:all_reduce", "messages", "1", "150 ms", "30.0 %", "DP"]
    assert operators.iloc[1, :2].tolist() == ["aten::addmm", "GEMM"]
    phases = phases.set_index("phase")
    assert phases.loc["forward", ["on the host", "GEMM", "rest"]].tolist() == ["300 ms", "100 ms", "200 ms"]
    assert phases.loc["DP", ["messages", "rest"]].tolist() == ["150 ms", "50.0 ms"]
    shown = texts(at)
    assert "500 ms of the step" in shown
    assert "The longest 4 of 90 events are kept." in shown
    assert "Not in these figures: step 17, deep-profiled, and the step after." in shown
    assert any(each.proto.label == "Download" for each in at.get("download_button"))


def test_the_profile_that_is_looked_at_stands_in_the_address(runs_root: Path) -> None:
    folder = fake_run(runs_root, steps=19)
    profiled(folder, 0)
    profiled(folder, 1)
    at = open_page("watch", profile="rank 1, step 17")
    assert at.selectbox(key="choice-profile").value == "rank 1, step 17"


@pytest.mark.parametrize("has_profile", [True, False])
def test_a_run_that_is_over_shows_what_it_has_and_offers_nothing(has_profile: bool, runs_root: Path) -> None:
    folder = fake_run(runs_root, "finished", steps=19)
    write_json(folder.status, status("finished", last_step=19).to_json())
    if has_profile:
        profiled(folder, 0)
    at = open_page("watch", token=token.start_token())
    assert not at.exception
    assert ("Deep profile of one step" in texts(at)) is has_profile
    assert not [each for each in at.button if each.label == "Profile the next step"]


def test_a_damaged_profile_is_a_sentence(runs_root: Path) -> None:
    folder = fake_run(runs_root)
    path = profile_path(folder.path, 0, 12)
    path.parent.mkdir()
    path.write_bytes(b"nothing")
    at = open_page("watch")
    assert not at.exception
    assert "cannot be read" in texts(at)
