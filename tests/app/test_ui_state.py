"""The view in the address: every layout survives the way through its code, every field the way through parameters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from screens import APP, open_page, texts
from streamlit.testing.v1 import AppTest

from tpdpdash.faults import InvalidInputError
from tpdpdash.job import pins_of
from tpdpdash.layout.layout import Layout
from tpdpdash.ui import job_state, state

degrees = some.sampled_from([1, 2, 3, 4, 8, 16, 96])


@given(
    tp=degrees, pp=degrees, dp=degrees, chunks=some.integers(1, 8), micro=some.integers(1, 8), zero=some.integers(0, 3),
    recompute=some.sampled_from(["none", "selective", "full"]), sequence_parallel=some.booleans(),
)  # fmt: skip
def test_a_searched_layout_comes_back_from_its_code(
    tp: int, pp: int, dp: int, chunks: int, micro: int, zero: int, recompute: str, sequence_parallel: bool
) -> None:
    schedule = "none" if pp == 1 else "interleaved" if chunks > 1 else "1f1b"
    layout = Layout(
        tp=tp, pp=pp, dp=dp, etp=tp, num_model_chunks=chunks, micro_batch_size=micro, zero_stage=zero,
        recompute=recompute, sequence_parallel=sequence_parallel, schedule=schedule, dp_shard_size=dp,
    )  # type: ignore[arg-type] # fmt: skip
    pins = state.pins_of_code(state.layout_code(layout))
    given_pins = {"sequence_parallel": tp > 1, "recompute": "none", "num_model_chunks": 1, "micro_batch_size": 1}
    for key, value in {**given_pins, "zero_stage": 1, **pins}.items():
        assert getattr(pins_of(layout), key) == value


@pytest.mark.parametrize("code", ["", "tp", "tp-2", "x4", "tp2-rm", "tp99999999999", "tp2--pp2", "<b>"])
def test_a_code_that_is_none_is_refused_by_name(code: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        state.pins_of_code(code)
    assert refused.value.faults[0].code == "unknown_layout_code"


def test_the_address_is_the_whole_view_and_keeps_only_what_differs() -> None:
    view, _ = job_state.from_params({"model": "gpt2-xl", "nodes": "4", "tokens": "1e12", "tp": "8", "price": "2.5"})
    assert (view.model, view.nodes, view.tokens, view.tp, view.price) == ("gpt2-xl", 4, 1e12, 8, 2.5)
    assert job_state.to_params(view) == {"model": "gpt2-xl", "nodes": "4", "tokens": "1e+12", "tp": "8", "price": "2.5"}
    assert job_state.to_params(job_state.JobState()) == {"model": "llama-3-8b"}


def test_a_field_that_cannot_be_read_has_its_default_and_it_is_said() -> None:
    view, faults = job_state.from_params({"nodes": "many", "tokens": "x", "seq": "1024"})
    assert view == job_state.JobState(seq=1024)
    assert [(fault.field, fault.value) for fault in faults] == [("nodes", "many"), ("tokens", "x")]
    at = open_page("plan", seq="81x", model="gpt2")
    assert "seq=81x in the address cannot be read: 8192 is taken instead" in texts(at)
    assert "cannot be read" in texts(at.run()), "it stays until the view is changed"
    assert "cannot be read" not in texts(at.number_input(key="view-seq").set_value(1024).run())


def test_a_screen_keeps_the_view_of_the_one_before() -> None:
    at = open_page("cluster", device="A100-SXM4-80GB", nodes="16", show="described")
    assert at.selectbox[0].value == "A100-SXM4-80GB"
    at.query_params.clear()  # as a browser does when another screen is opened
    at.switch_page("pages/launch.py").run()
    assert at.query_params["device"] == "A100-SXM4-80GB"
    assert at.query_params["nodes"] == "16"


def test_a_bad_preset_in_the_address_is_a_sentence_not_a_traceback() -> None:
    at = open_page("launch", model="lama-3-8b")
    assert not at.exception
    assert "llama-3-8b" in texts(at)


@pytest.mark.parametrize(("chosen", "title"), [({}, "Cluster"), ({"model": "gpt2-xl", "seq": "1024"}, "Plan")])
def test_the_bare_address_opens_cluster_until_something_is_chosen(chosen: dict[str, str], title: str) -> None:
    at = AppTest.from_file(str(APP), default_timeout=120)
    for key, value in chosen.items():
        at.query_params[key] = value
    at.run()
    assert not at.exception
    assert at.title[0].value == title
