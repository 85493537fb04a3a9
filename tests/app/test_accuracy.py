"""How far to trust this: published runs beside their predictions, the worst by name, targets met and missed."""

from __future__ import annotations

import json

import pytest
from screens import open_page, param, specs, texts
from streamlit.testing.v1 import AppTest

from tpdpdash.compare.targets import packaged_figures
from tpdpdash.cost.residuals import packaged_residuals


def open_accuracy(**params: str) -> AppTest:
    return open_page("accuracy", **params)


def tables(at: AppTest):
    """(targets, worst rows, by source, by device)."""
    return [frame.value for frame in at.dataframe]


def test_the_answer_is_the_typical_error_and_whether_bars_hold() -> None:
    at = open_accuracy()
    assert not at.exception
    answer = at.info[0].value
    assert f"{len(packaged_residuals().time):,} published runs" in answer
    assert "typical error of step time" in answer
    assert "Error bars made without a source hold" in answer
    assert packaged_residuals().commit in answer


def test_every_run_is_a_dot_on_logarithmic_axes() -> None:
    at = open_accuracy()
    (spec,) = specs(at)
    document = json.loads(spec)
    assert '"type": "log"' in spec.replace('"type":"log"', '"type": "log"')
    assert "typical error" in document["description"]


def test_the_worst_rows_are_named() -> None:
    _, worst, *_ = tables(open_accuracy())
    expected = max(packaged_residuals().time, key=lambda run: abs(run.error))
    assert worst["Row"].iloc[0] == expected.row
    assert worst["Source"].iloc[0] == expected.source
    assert len(worst) == 12


def test_targets_are_told_whether_met_or_missed() -> None:
    at = open_accuracy()
    targets, *_ = tables(at)
    asked = [figure for figure in packaged_figures() if figure.target is not None]
    assert len(targets) == len(asked)
    assert list(targets[""]) == ["met" if figure.is_met else "missed" for figure in asked]
    assert any(caption.value.startswith("Regret: by how much") for caption in at.caption)


def test_errors_stand_by_source_and_by_device() -> None:
    *_, by_source, by_device = tables(open_accuracy())
    assert by_source["Runs"].sum() == by_device["Runs"].sum() == len(packaged_residuals().time)
    assert set(by_source["Source"]) == {run.source for run in packaged_residuals().time}


@pytest.mark.parametrize("what", ["Step time", "Peak memory"])
def test_a_source_and_a_device_narrow_what_is_told(what: str) -> None:
    found = packaged_residuals().of("time" if what == "Step time" else "memory")
    at = open_accuracy(source="simumax-b200", hardware="B200-SXM-180GB", what=what)
    assert not at.exception
    own = [run for run in found if run.source == "simumax-b200"]
    assert f"Half of {len(own)} runs of simumax" in texts(at)
    assert list(tables(at)[2]["Source"]) == ["simumax-b200"]


def test_filters_that_leave_nothing_say_so_and_can_be_cleared() -> None:
    at = open_accuracy(source="korthikanti-2022", hardware="B200-SXM-180GB")
    assert not at.exception
    assert "No run of korthikanti" in texts(at)
    at.button[0].click().run()
    assert not at.exception
    assert "published runs" in at.info[0].value


def test_choosing_a_source_stands_in_the_address() -> None:
    at = open_accuracy()
    at.get_by_key("choice-source").set_value("internevo").run()
    assert param(at, "source") == "internevo"


@pytest.mark.parametrize("screen", ["plan", "learn"])
def test_it_is_reached_from_plan_and_learn(screen: str) -> None:
    at = open_page(screen)
    links = [link.proto.page for link in at.get("page_link")]
    assert any("accuracy" in page for page in links)
