"""Launch: checks and changes before anything starts; one start however often it is pressed; none without the token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_run
from screens import open_page, texts
from streamlit.testing.v1 import AppTest

from tpdpdash import start_token as token
from tpdpdash.cluster.detection import DetectedDevice, Detection, HostMemory
from tpdpdash.faults import Fault
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.place import Place
from tpdpdash.run.slurm import SlurmPartition, SlurmSilentError
from tpdpdash.run.status import SchedulerJob
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
    assert "Predicted: " in texts(at)
    assert "No error is known" in texts(at), "nobody has published runs of the built-in worker on CPUs"
    changes = at.table[1].value
    asked = dict(zip(changes.iloc[:, 0], changes["Asked"], strict=True))
    assert asked["Layers"] == ":gray[32]"
    assert asked["Vocabulary"] == ":gray[128,256]"
    assert "shrunken" in changes["Rehearsed"].iloc[0]
    assert not start_button(at).disabled


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("tp2-pp2-dp2", "The same groups, schedule and messages"),
        ("tp1-pp1-dp8-z3", "The same groups, schedule and messages"),
        ("tp1-pp2-dp4-z2", "not as asked: ZeRO"),
    ],
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


def test_without_slurm_its_way_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> list[SlurmPartition]:
        raise SlurmSilentError("sinfo is not installed here")

    monkeypatch.setattr("tpdpdash.run.slurm.list_partitions", silent)
    monkeypatch.setattr("tpdpdash.run.slurm_preflight.list_partitions", silent)
    at = open_page("launch", token=token.start_token(), how="slurm", **CHOSEN)
    assert not at.exception
    assert "Slurm does not answer here: sinfo is not installed here" in texts(at)
    assert start_button(at).disabled


def test_a_job_is_sent_to_the_chosen_partition(runs_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SlurmPartition(
        name="gpu", is_default=True, is_up=True, num_nodes=2, cpus_per_node=64, gpus_per_node=8, hosts=("g1", "g2")
    )
    few = replace(gpu, name="few", is_default=False, gpus_per_node=4)
    monkeypatch.setattr("tpdpdash.run.slurm.list_partitions", lambda: [gpu, few])
    monkeypatch.setattr("tpdpdash.run.slurm_preflight.list_partitions", lambda: [gpu, few])
    address = {**CHOSEN, "nodes": "2", "layout": "tp2-pp4-dp2"}
    at = open_page("launch", token=token.start_token(), how="slurm", partition="few", **address)
    assert not at.exception
    assert "2 nodes with 8 GPUs each were asked for; partition few has 2 with 4" in texts(at)
    at.selectbox(key="choice-partition").set_value("gpu").run()
    assert "Ready to run: 16 H100-SXM5-80GB" in texts(at)
    assert "tpdpdash run job.toml --engine slurm --partition gpu" in at.code[0].value
    asked: dict[str, Any] = {}
    waiting = SchedulerJob(id="7", state="PENDING", partition="gpu", reason="Priority", position=2)

    def start(_job: Any, **options: Any) -> RunFolder:
        asked.update(options)
        return fake_run(runs_root, "created", steps=0, events=(), engine="slurm", scheduler=waiting)

    monkeypatch.setattr(services, "start", start)
    at.session_state["launch-share-devices"] = True  # ticked for this machine, before Slurm was chosen
    start_button(at).click().run()
    assert (asked["place"], asked["share_devices"]) == (Place(engine="slurm", partition="gpu"), False)
    assert "Job 7 waits in Slurm's queue" in texts(at)
    assert "place 2 in gpu" in texts(at)


def test_a_run_that_others_join_by_hand_shows_their_line(runs_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_job: Any, **_: Any) -> RunFolder:
        folder = fake_run(runs_root, "starting", steps=0, events=(), engine="hosts")
        folder.elsewhere.write_text("cd /shared && env A=b python -m torch.distributed.run\n")
        return folder

    host = HostMemory(total_bytes=2**41, available_bytes=2**40, cores=64)
    gpus = tuple(replace(H100, index=n, cuda_index=n, uuid=f"GPU-{n}") for n in range(8))
    found = Detection(devices=gpus, driver_version="580", problem=None, host=host, num_visible=8)
    monkeypatch.setattr("tpdpdash.job.detect_devices", lambda *_: found)
    monkeypatch.setattr("tpdpdash.run.claims.devices_in_use", lambda *_: ())
    monkeypatch.setattr(services, "start", start)
    address = {**CHOSEN, "nodes": "2", "layout": "tp2-pp4-dp2"}
    at = open_page("launch", token=token.start_token(), how="hosts", **address)
    assert not at.exception
    start_button(at).click().run()
    assert "cd /shared && env A=b python -m torch.distributed.run" in [code.value for code in at.code]


def test_recent_runs_are_listed(runs_root: Path) -> None:
    fake_run(runs_root, "finished")
    at = open_page("launch", **CHOSEN)
    assert at.dataframe[-1].value.iloc[0]["State"] == "finished"
    assert "1 of 1" in texts(at)


def test_a_layout_that_cannot_run_here_is_one_click_from_its_rehearsal() -> None:
    """ZeRO 3 under a pipeline: the built-in worker has none."""
    at = open_page("launch", token=token.start_token(), how="here", **{**CHOSEN, "layout": "tp1-pp2-dp4-z3"})
    assert "ZeRO 0 or 1 only" in texts(at)
    assert start_button(at).disabled
    (rehearse,) = [button for button in at.button if button.label == "Rehearse it small"]
    rehearse.click().run()
    assert not at.exception
    assert "Ready to rehearse" in texts(at)
    assert not start_button(at).disabled


TAKEN = Fault(code="devices_held_by_run", field="devices", value="GPU 0", values={"run": "20261130-131502-other-abcd"})
H100 = DetectedDevice(index=0, cuda_index=0, uuid="GPU-3ceb3ffd", name="NVIDIA H100 80GB HBM3", visible=True)


def test_gpus_that_a_run_holds_are_not_taken_unless_the_box_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostMemory(total_bytes=2**41, available_bytes=2**40, cores=64)
    gpus = tuple(replace(H100, index=n, cuda_index=n, uuid=f"GPU-{n}") for n in range(8))
    found = Detection(devices=gpus, driver_version="580", problem=None, host=host, num_visible=8)
    monkeypatch.setattr("tpdpdash.job.detect_devices", lambda *_: found)
    monkeypatch.setattr("tpdpdash.run.claims.devices_in_use", lambda *_: (TAKEN,))
    at = open_page("launch", token=token.start_token(), how="here", **CHOSEN)
    assert not at.exception
    assert start_button(at).disabled
    assert "It would not run: GPU 0: run 20261130-131502-other-abcd holds it" in texts(at).replace("*", "")
    (box,) = at.checkbox
    box.check().run()
    assert not start_button(at).disabled
    asked: dict[str, Any] = {}
    monkeypatch.setattr(services, "start", lambda _job, **options: asked.update(options) or RunFolder(Path("x")))
    start_button(at).click().run()
    assert asked["share_devices"] is True
