"""Watch in every state of a run: the right sentence, never a traceback, never a live page that is not live."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import patch

import pytest
from fake_runs import FAILURE, JOB, fake_run, status
from screens import open_page, texts

from tpdpdash import start_token as token
from tpdpdash.cluster.detection import Detection, HostMemory
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.job import read_job
from tpdpdash.run.folder import write_json

HOST = HostMemory(total_bytes=23 * 10**9, available_bytes=20 * 10**9, cores=2)
NOTHING = Detection(devices=(), driver_version=None, problem=None, host=HOST)
DEAD = {"supervisor_pid": 4242, "supervisor_start_time": 1.0}


def test_without_a_run_it_points_to_launch() -> None:
    at = open_page("watch")
    assert not at.exception
    assert "No run yet." in texts(at)
    assert [link.proto.label for link in at.get("page_link") if "Launch" in link.proto.label]


def test_a_steady_run_says_so_and_shows_every_chart(runs_root: Path) -> None:
    fake_run(runs_root)
    at = open_page("watch")
    assert not at.exception
    assert "All 8 ranks keep pace." in texts(at)
    assert len(at.get("vega_lite_chart")) == 6
    assert [metric.label for metric in at.metric] == [
        "Step time", "Tokens/s, all ranks", "Loss", "Memory, worst rank", "Steps",
    ]  # fmt: skip
    shown = "".join(html.proto.body for html in at.get("html"))
    assert "unattributed" in shown
    assert "other" in shown


def test_more_ranks_than_cores_is_said(runs_root: Path) -> None:
    fake_run(runs_root)
    with patch("tpdpdash.cluster.nvml.detect_devices", return_value=NOTHING):
        at = open_page("watch")
    assert "8 ranks share 2 cores" in texts(at)


def test_a_slow_rank_is_named_with_how_much(runs_root: Path) -> None:
    fake_run(runs_root, steps=60, slow_rank=5)
    at = open_page("watch")
    assert "Rank 5 is slow." in texts(at)
    assert "longer than the median of its stage" in texts(at)


def test_a_hung_run_names_the_rank_that_is_behind(runs_root: Path) -> None:
    fake_run(runs_root, pause_s=95, behind_rank=6)
    shown = texts(open_page("watch"))
    assert "No step for" in shown
    assert "**Rank 6** is in forward and has entered fewer collectives than the others." in shown


def test_before_the_first_step_the_phases_stand_with_their_ranks(runs_root: Path) -> None:
    fake_run(runs_root, steps=0, events=("importing", "connecting"), silent_ranks=(6, 7), phase="connecting")
    at = open_page("watch")
    assert not at.exception
    assert "6 of 8 ranks report" in texts(at)
    assert not at.get("vega_lite_chart")


def test_a_failed_run_names_the_first_cause_and_shows_the_log_as_text(runs_root: Path) -> None:
    failure = FAILURE.__class__(code="rank_raised", rank=3, error="ValueError: <b>boom</b>", traceback="line\n<script>")
    fake_run(runs_root, "failed", steps=12, first_failure=failure, ended=time.time())
    at = open_page("watch")
    assert not at.exception
    assert "Failed at step 12: rank 3: ValueError: <b>boom</b>" in texts(at)
    assert "\\<b\\>" in at.error[0].value
    assert at.code[0].value == "line\n<script>"


def test_the_predicted_step_stands_above_the_measured_one(runs_root: Path) -> None:
    folder = fake_run(runs_root, "finished", steps=12, ended=time.time())
    text = JOB.replace("hidden_size = 64", "hidden_size = 320").replace("head_dim = 16", "head_dim = 80")
    folder.job.write_text(text.replace("ffn_hidden_size = 128", "ffn_hidden_size = 960"))
    estimate = estimate_job(read_job(folder.job).resolved())
    write_json(folder.prediction, estimate.to_json())
    at = open_page("watch")
    assert not at.exception
    assert "There is no prediction" not in texts(at)
    assert "Measured: step 12. Predicted: " in texts(at)


def test_a_killed_rank_is_told_by_its_signal(runs_root: Path) -> None:
    fake_run(runs_root, "failed", steps=12, first_failure=FAILURE, ended=time.time())
    assert "rank 3 was killed (SIGKILL)" in texts(open_page("watch"))


def test_b84_a_run_whose_supervisor_is_gone_is_lost_not_running(runs_root: Path) -> None:
    fake_run(runs_root, "running", steps=12, **DEAD)
    at = open_page("watch")
    assert "Lost: its supervisor is gone" in texts(at).replace("**", "")
    assert "up to step 12" in texts(at)
    assert not [button for button in at.button if "Stop" in button.label]


def test_b85_a_damaged_folder_is_shown_as_damaged(runs_root: Path) -> None:
    folder = fake_run(runs_root)
    folder.status.write_text('{"id":"a","pid":12')
    at = open_page("watch")
    assert not at.exception
    assert "folder is damaged" in texts(at)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [("finished", "Finished at step 15"), ("stopped", "Stopped by you at step 15"), ("stopping", "Stopping:")],
)
def test_the_end_is_told(state: str, sentence: str, runs_root: Path) -> None:
    fake_run(runs_root, state, ended=time.time(), stop_requested_by="dashboard")
    at = open_page("watch")
    assert not at.exception
    assert sentence in texts(at).replace("**", "")


def test_r132_a_new_tab_sees_the_running_job(runs_root: Path) -> None:
    folder = fake_run(runs_root)
    at = open_page("watch")
    assert "keep pace" in texts(at)
    again = open_page("watch", run=folder.run_id)
    assert "keep pace" in texts(again)


def test_a_rank_that_fell_silent_is_named(runs_root: Path) -> None:
    fake_run(runs_root, silent_ranks=(6,))
    assert "7 of 8 ranks report" in texts(open_page("watch"))


def test_a_run_that_is_not_there_is_a_sentence(runs_root: Path) -> None:
    fake_run(runs_root)
    at = open_page("watch", run="../../etc")
    assert not at.exception
    assert at.error


def test_without_the_token_stop_is_disabled_and_says_why(runs_root: Path) -> None:
    fake_run(runs_root)
    at = open_page("watch")
    (stop,) = [button for button in at.button if button.label == "Stop the run"]
    assert stop.disabled
    assert "Only the holder of the start token" in texts(at)


def test_r130_stop_asks_the_run_to_end_at_once(runs_root: Path) -> None:
    folder = fake_run(runs_root)
    at = open_page("watch", token=token.start_token())
    (stop,) = [button for button in at.button if button.label == "Stop the run"]
    stop.click().run()
    assert folder.stop_request.is_file()
    write_json(folder.status, status("stopping").to_json())


def test_the_history_is_filtered_by_words(runs_root: Path) -> None:
    for i, name in enumerate(("llama-3-8b", "gpt2-xl", "gpt3-175b")):
        fake_run(runs_root, "finished", run_id=f"20261130-10150{i}-{name}-abcd", name=name, ended=time.time())
    at = open_page("watch")
    assert len(at.dataframe[-1].value) == 3
    at.text_input[0].set_value("gpt2").run()
    assert len(at.dataframe[-1].value) == 1
    at.text_input[0].set_value("nothing like it").run()
    assert "3 runs in all" in texts(at)


def test_r131_no_thread_of_the_screens_calls_streamlit() -> None:
    root = Path(__file__).parents[2]
    sources = [*root.glob("pages/*.py"), root / "app.py", *root.glob("tpdpdash/ui/*.py")]
    started = [
        path.name for path in sources if "threading.Thread" in path.read_text() or "run_in_executor" in path.read_text()
    ]
    assert started == []
    assert "import streamlit" not in (root / "tpdpdash/ui/live.py").read_text()
