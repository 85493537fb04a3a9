"""How a step trains, in the one Job: from Plan's inputs into its file and back."""

from __future__ import annotations

import tomllib

import pytest
from screens import open_page, param, texts
from streamlit.testing.v1 import AppTest

from tpdpdash.faults import InvalidInputError
from tpdpdash.job import parse_job, write_job
from tpdpdash.layout.layout import Layout
from tpdpdash.ui import state
from tpdpdash.ui.job_state import JobState, from_params, to_params
from tpdpdash.ui.job_upload import view_of_job
from tpdpdash.ui.training_code import training_code

SMALL = {"model": "llama-3-8b", "device": "H100-SXM5-80GB", "nodes": "1", "seq": "4096", "batch": "64"}
RARE = {
    "tf32": True, "fp8_attention": True, "optimizer": "muon", "optimizer_offload_fraction": 0.5, "mtp_num_layers": 1,
    "packed_seq_len": 1024, "expert_dispatcher": "flex", "fp8_dispatch": True, "cp_comm_type": "a2a",
    "launch_blocking": True,
}  # fmt: skip


def open_plan(**params: str) -> AppTest:
    """The screen at this address."""
    return open_page("plan", **(SMALL | params))


def keys(at: AppTest) -> set[str]:
    """The keys that the page asks for."""
    return {str(widget.key) for kind in (at.selectbox, at.number_input, at.toggle) for widget in kind}


def test_prediction_modules_can_be_given_to_any_mixture_of_experts() -> None:
    assert "training-mtp_num_layers" not in keys(open_plan())
    assert "training-mtp_num_layers" in keys(open_plan(model="mixtral-8x7b", nodes="4"))


def test_a_setting_that_lost_its_meaning_stays_to_be_taken_back_and_is_told() -> None:
    at = open_plan(training="tf32:true")
    assert "training-tf32" in keys(at)
    assert "training.tf32 is true, which changes nothing here" in texts(at)


def test_what_is_set_stands_beside_its_button() -> None:
    at = open_plan()
    speed = at.metric[0].value
    at.get_by_key("training-launch_blocking").set_value(True).run()
    assert at.metric[0].value != speed
    at.get_by_key("training-packed_seq_len").set_value(512).run()
    assert not at.exception
    assert "Waiting launches on · Packed sequences 512" in texts(at)


def test_optimizer_states_in_host_memory_are_a_pin_that_the_chosen_layout_keeps() -> None:
    at = open_plan()
    at.get_by_key("view-offload_optimizer").set_value(True).run()
    assert not at.exception
    assert "Optimizer in host memory on" in texts(at)
    code = param(at, "layout")
    assert "offopt" in code
    assert state.chosen_job(JobState(layout=code)).pins.offload_optimizer is True  # type: ignore[union-attr]


def test_a_layout_with_states_in_host_memory_comes_back_from_its_code() -> None:
    code = state.layout_code(Layout(dp=8, dp_shard_size=8, offload_optimizer=True, offload_activations=True))
    assert code == "tp1-pp1-dp8-offopt-offact"
    assert state.pins_of_code(code)["offload_optimizer"] is True
    assert state.pins_of_code(code)["offload_activations"] is True


@pytest.mark.parametrize("wrong", [{"offload_optimizer": "si"}, {"training": "optimizer_offload_fraction:7"}])
def test_what_no_input_can_mean_is_a_sentence(wrong: dict[str, str]) -> None:
    at = open_plan(**wrong)
    assert not at.exception
    assert next(iter(wrong.values())).rpartition(":")[2] in texts(at)


@pytest.mark.parametrize("held", [True, False, None])
def test_a_pin_that_is_yes_or_no_goes_through_the_address(held: bool | None) -> None:
    view = JobState(offload_optimizer=held)
    assert from_params(to_params(view)) == (view, ())


def test_a_page_comes_back_from_the_job_file_that_it_wrote() -> None:
    view = JobState(
        model="mixtral-8x7b", nodes=4, price=2.5, failures=0.001, restart=60.0, checkpoint=5.0, every=100, steps=50,
        network=50.0, tp=2, pp=2, ep=8, zero_stage=1, recompute="full", offload_optimizer=True, precision="fp8",
    )  # fmt: skip
    asked = state.job(view).training
    written = write_job(state.job(JobState(**{**_fields(view), "training": training_code(RARE)})))
    taken, notes = view_of_job(written.encode(), "job.toml")
    assert notes == ()
    assert JobState(**{**_fields(taken), "training": ""}) == view
    trained = state.job(taken).training
    assert all(getattr(trained, key) == value for key, value in RARE.items())
    assert trained.seq_len == asked.seq_len


def _fields(view: JobState) -> dict[str, object]:
    return {name: getattr(view, name) for name in JobState.__dataclass_fields__}


def test_a_model_of_single_fields_is_kept_for_the_page() -> None:
    text = '[model]\npreset = "llama-3-8b"\nnum_layers = 16\n[training]\nseq_len = 4096\nglobal_batch_size = 64\n'
    view, notes = view_of_job(f'{text}[cluster]\ndevice = "H100-SXM5-80GB"\nnodes = 1\n'.encode(), "job.toml")
    assert notes == ()
    assert state.job(view).model == parse_job(text).model


def test_what_the_page_has_no_input_for_is_told_with_the_value_that_counts() -> None:
    text = write_job(state.job(JobState())).replace("[training]", '[training]\nlora_targets = ["wq"]')
    view, notes = view_of_job(f"{text}tp = 2\nsequence_parallel = false\n".encode(), "job.toml")
    assert view == JobState(tp=2)
    assert [(note.field, note.value) for note in notes] == [
        ("training.lora_targets", ("wq",)), ("layout.sequence_parallel", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('[model]\nconfig = "/etc/passwd"\n', "upload_names_file"),
        ("[model\n", "not_toml"),
        ('[model]\npreset = "lama-3-8b"\n', "unknown_choice"),
    ],
)
def test_a_job_file_that_cannot_be_taken_is_refused_by_name(text: str, code: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        view_of_job(text.encode(), "job.toml")
    assert code in [fault.code for fault in refused.value.faults]


def test_a_dropped_job_file_becomes_the_page_or_leaves_it_as_it_was() -> None:
    at = open_plan()
    text = write_job(state.job(JobState(model="mixtral-8x7b", nodes=4, training="mtp_num_layers:1")))
    at.file_uploader[0].upload("job.toml", text.encode(), "application/toml").run()
    assert not at.exception
    told = (param(at, "model"), param(at, "nodes"), param(at, "training"))
    assert told == ("mixtral-8x7b", "4", "mtp_num_layers:1")
    at.file_uploader[0].upload("job.toml", text.replace("mixtral", "mixtrel").encode(), "application/toml").run()
    assert "Nothing was changed: the model is still mixtral-8x7b." in texts(at)


def test_the_page_offers_its_job_as_a_file() -> None:
    at = open_plan(training="packed_seq_len:512")
    (button,) = [b for b in at.get("download_button") if b.proto.label == "job.toml of this page"]
    assert button.proto.url
    told = tomllib.loads(write_job(state.job(JobState(training="packed_seq_len:512"))))
    assert told["training"]["packed_seq_len"] == 512
