"""Launch: checks and changes before anything starts; one start however often it is pressed; none without the token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_run
from screens import open_page, texts
from streamlit.testing.v1 import AppTest

from tpdpdash import start_token as token
from tpdpdash.ui import access, services

CHOSEN = {"model": "llama-3-8b", "device": "H100-SXM5-80GB", "layout": "tp2-pp2-dp2", "nodes": "1", "gpus": "8"}


def start_button(at: AppTest) -> Any:
    """The page's Start."""
    (found,) = [button for button in at.button if button.label.startswith("Start")]
    return found


def test_a_rehearsal_lists_checks_and_every_change_before_the_start() -> None:
    at = open_page("launch", token=token.start_token(), **CHOSEN)
    assert not at.exception
    assert "Ready to rehearse: 8 CPU ranks over gloo, 20 steps." in texts(at)
    assert "TP 2 × PP 2 × DP 2 = 8 ranks" in texts(at)
    changes = at.table[1].value
    asked = dict(zip(changes.iloc[:, 0], changes["Asked"], strict=True))
    assert asked["Layers"] == ":gray[32]"
    assert asked["Vocabulary"] == ":gray[128,256]"
    assert "shrunken" in changes["Rehearsed"].iloc[0]
    assert not start_button(at).disabled


@pytest.mark.parametrize(
    ("layout", "said"),
    [("tp2-pp2-dp2", "The same groups, schedule and messages"), ("tp1-pp1-dp8-z2", "not as asked: ZeRO")],
)
def test_a_rehearsal_says_what_of_the_layout_it_keeps(layout: str, said: str) -> None:
    at = open_page("launch", token=token.start_token(), **{**CHOSEN, "layout": layout})
    assert said in texts(at)


def test_without_the_token_start_is_disabled_and_says_why() -> None:
    at = open_page("launch", **CHOSEN)
    assert start_button(at).disabled
    assert access.not_allowed() in texts(at)


def test_without_a_choice_the_best_layout_of_the_plan_is_offered() -> None:
    at = open_page("launch", model="llama-3-8b")
    assert not at.exception
    assert "this is the best one of Plan" in texts(at)


def test_what_cannot_run_is_refused_with_the_nearest_legal_value() -> None:
    at = open_page("launch", **{**CHOSEN, "layout": "tp3-pp1-dp1", "gpus": "3"})
    assert not at.exception
    assert at.error
    assert "nearest" in texts(at)


def test_a_layout_that_is_none_in_the_address_is_a_sentence() -> None:
    at = open_page("launch", **{**CHOSEN, "layout": "tp2-<b>"})
    assert not at.exception
    assert at.error


def test_two_presses_start_one_run(runs_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []

    def start(_job: Any, *, request_id: str, **_: Any) -> Any:
        requests.append(request_id)
        return fake_run(runs_root, "starting", steps=0, events=())

    monkeypatch.setattr(services, "start", start)
    at = open_page("launch", token=token.start_token(), **CHOSEN)
    start_button(at).click().run()
    assert not at.exception
    assert start_button(at).disabled
    assert len(requests) == 1
    assert "Starting" in [heading.value for heading in at.subheader]


def test_recent_runs_are_listed(runs_root: Path) -> None:
    fake_run(runs_root, "finished")
    at = open_page("launch", **CHOSEN)
    assert at.dataframe[-1].value.iloc[0]["State"] == "finished"
    assert "1 of 1" in texts(at)
