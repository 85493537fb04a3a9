"""Watch in every state of a run: the right sentence, never a traceback, never a live page that is not live."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from fake_runs import FAILURE, JOB, fake_run, status
from screens import open_page, texts
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Button, UnknownElement

from tpdpdash import start_token as token
from tpdpdash.cluster.detection import Detection, HostMemory
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.job import read_job
from tpdpdash.run.archive import archive_run
from tpdpdash.run.folder import RunFolder, write_json
from tpdpdash.telemetry.record import RecordWriter, rank_file

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
    assert len(at.get("vega_lite_chart")) == 7
    assert [metric.label for metric in at.metric] == [
        "Step time", "Tokens/s, all ranks", "Loss", "Memory, worst rank", "Steps",
    ]  # fmt: skip
    shown = "".join(html.proto.body for html in at.get("html"))
    assert "unattributed" in shown
    assert "other" in shown


def test_a_plain_scripts_run_is_watched_without_a_job_a_layout_or_a_prediction(runs_root: Path) -> None:
    folder = fake_run(runs_root, layout="", rehearsal=False)
    folder.job.unlink()
    folder.asked.unlink()
    at = open_page("watch")
    assert not at.exception
    assert "All 8 ranks keep pace." in texts(at)
    assert "llama-3-8b · 8 ranks" in texts(at)


def test_of_a_run_that_is_over_no_detailed_step_is_awaited(runs_root: Path) -> None:
    folder = fake_run(runs_root, layout="", rehearsal=False)
    for file in folder.telemetry.glob("rank-*.jsonl"):
        kept = [line for line in file.read_text().splitlines(keepends=True) if '"timeline"' not in line]
        file.write_text("".join(kept))
    assert "none has come yet" in texts(open_page("watch"))
    write_json(folder.status, status("finished", ended=time.time(), exit_code=0).to_json())
    told = texts(open_page("watch"))
    assert "No step of this run was recorded in detail" in told
    assert "none has come yet" not in told


def test_more_ranks_than_cores_is_said(runs_root: Path) -> None:
    fake_run(runs_root)
    with patch("tpdpdash.job.detect_devices", return_value=NOTHING):
        at = open_page("watch")
    assert "8 ranks share 2 cores" in texts(at)


def test_a_slow_rank_is_named_with_how_much(runs_root: Path) -> None:
    fake_run(runs_root, steps=60, slow_rank=5)
    at = open_page("watch")
    assert "Rank 5 is slow." in texts(at)
    assert "than that of the other ranks of its stage, most of it in backward." in texts(at)
    assert "The others wait" in texts(at)


def test_a_hung_run_names_the_rank_that_is_behind(runs_root: Path) -> None:
    fake_run(runs_root, pause_s=95, behind_rank=6)
    shown = texts(open_page("watch"))
    assert "No step for" in shown
    assert "rank 6 is in forward and does not go on." in shown
    assert "Its DP group (ranks 4, 6) waits in dp all_reduce." in shown


def test_before_the_first_step_the_phases_stand_with_their_ranks(runs_root: Path) -> None:
    fake_run(runs_root, steps=0, events=("importing", "connecting"), silent_ranks=(6, 7), phase="connecting")
    at = open_page("watch")
    assert not at.exception
    assert "6 of 8 ranks report" in texts(at)
    assert not at.get("vega_lite_chart")


def test_r117_ranks_that_never_came_are_named_with_what_to_do(runs_root: Path) -> None:
    """The others wait for them in the rendezvous; on several machines the command of each is where it says."""
    fake_run(runs_root, steps=0, events=("importing",), silent_ranks=(1,), phase="starting")
    assert "Waiting for rank 1**: 7 of 8 ranks report" in texts(open_page("watch"))
    second = "20261130-101501-llama-3-8b-abcd"
    fake_run(runs_root, run_id=second, steps=0, events=(), silent_ranks=tuple(range(4, 8)), engine="hosts")
    shown = texts(open_page("watch", run=second))
    assert "Waiting for ranks 4, 5, 6, 7**: 4 of 8 ranks report" in shown
    assert f"{second}/elsewhere.sh" in shown


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


def test_a_prediction_with_an_error_is_a_band_around_the_dashed_line(runs_root: Path) -> None:
    folder = fake_run(runs_root, "finished", steps=12, ended=time.time())
    write_json(folder.prediction, {"time": {"step_s": 2.0, "error_frac": 0.2}})
    at = open_page("watch")
    assert not at.exception
    assert "dashed: predicted 2.00 ± 0.40 s" in texts(at)


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


def test_a_paused_page_still_watches_for_the_end_of_its_run(runs_root: Path) -> None:
    """Else a run that is stopped while its charts stand still would be shown as stopping for ever."""
    folder = fake_run(runs_root)
    at = open_page("watch")
    every: list[object] = []

    def untimed(func: Callable[..., object] | None = None, *, run_every: object = None) -> object:
        every.append(run_every)
        return func if func is not None else lambda wrapped: wrapped

    with patch("streamlit.fragment", untimed):
        button(at, "Pause charts").click().run()
        assert not at.exception
        assert "Charts paused at step" in texts(at)
        assert every == [5.0, None, 1.0], "the history, the charts, and the watch on the state"
        every.clear()
        write_json(folder.status, status("stopped", ended=time.time(), stop_requested_by="dashboard").to_json())
        at.run()
    assert "Stopped by you" in texts(at)
    assert 1.0 not in every


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


def button(at: AppTest, label: str) -> Button:
    (found,) = [each for each in at.button if each.label == label]
    return found


def test_a_run_that_is_over_is_deleted_by_the_holder_of_the_token_only(runs_root: Path) -> None:
    gone = fake_run(runs_root, "finished", run_id="20261130-101501-gpt2-xl-abcd", ended=time.time())
    kept = fake_run(runs_root, "finished", ended=time.time())
    assert button(open_page("watch", run=gone.run_id), "Delete the run").disabled
    at = open_page("watch", token=token.start_token(), run=gone.run_id)
    button(at, "Delete the run").click().run()
    assert not at.exception
    assert (gone.path.exists(), kept.path.exists()) == (False, True)
    assert f"Deleted: {gone.run_id}" in texts(at)
    assert "Finished at step 15" in texts(at).replace("**", ""), "the newest run is shown next"


def test_a_run_is_archived_and_the_page_says_where(runs_root: Path) -> None:
    folder = fake_run(runs_root, "failed", ended=time.time(), first_failure=FAILURE)
    at = open_page("watch", token=token.start_token())
    button(at, "Archive the run").click().run()
    assert not at.exception
    assert not folder.path.exists()
    assert "Archived, " in texts(at)
    assert "No run yet." in texts(at)


def test_an_archived_run_is_restored_from_the_runs_by_the_holder_of_the_token_only(runs_root: Path) -> None:
    fake_run(runs_root, "finished", ended=time.time())
    folder = fake_run(runs_root, "failed", run_id="20261130-101501-gpt2-xl-abcd", ended=time.time())
    assert "Restore the run" not in {each.label for each in open_page("watch").button}, "nothing is archived yet"
    archive_run(folder)
    assert button(open_page("watch"), "Restore the run").disabled
    at = open_page("watch", token=token.start_token())
    button(at, "Restore the run").click().run()
    assert not at.exception
    assert folder.status.is_file()
    assert f"Restored: {folder.run_id}" in texts(at)
    assert at.query_params["run"] == folder.run_id, "it is the run that is shown"


def test_the_last_run_that_was_archived_can_be_had_back(runs_root: Path) -> None:
    folder = fake_run(runs_root, "finished", ended=time.time())
    archive_run(folder)
    at = open_page("watch", token=token.start_token())
    button(at, "Restore the run").click().run()
    assert not at.exception
    assert folder.status.is_file()


def test_a_live_run_has_no_button_that_deletes_it(runs_root: Path) -> None:
    fake_run(runs_root)
    at = open_page("watch", token=token.start_token())
    assert not {"Delete the run", "Archive the run"} & {each.label for each in at.button}


def test_a_long_history_is_opened_page_by_page(runs_root: Path) -> None:
    for i in range(52):
        folder = RunFolder(runs_root / f"20261130-1015{i:02d}-gpt2-xl-abcd")
        folder.path.mkdir(parents=True)
        write_json(folder.status, status("finished", name="gpt2-xl", ended=time.time()).to_json())
    at = open_page("watch")
    assert len(at.dataframe[-1].value) == 50
    at.number_input(key="runs-page").set_value(2).run()
    assert list(at.dataframe[-1].value["Run"]) == [f"20261130-1015{i:02d}-gpt2-xl-abcd" for i in (1, 0)]


def rows_of(chart: UnknownElement) -> list[dict[str, object]]:
    """What a chart is drawn from: each row is a mark."""
    sent = [chart.proto.data.data, *(each.data.data for each in chart.proto.datasets)]
    return [row for data in sent if data for row in pa.ipc.open_stream(data).read_all().to_pylist()]


def test_a_thousand_ranks_are_one_image_a_band_and_the_worst_ranks(runs_root: Path) -> None:
    folder = fake_run(runs_root, steps=0)
    shutil.rmtree(folder.telemetry)
    for rank in range(1024):
        writer = RecordWriter(rank_file(folder.path, rank), rank)
        who = {"pid": 1 + rank, "start_time": 1.0, "host": f"n{rank // 8}", "world_size": 1024, "local_rank": rank % 8}
        writer.write("hello", {**who, "coords": {"tp": rank % 8, "dp": rank // 8, "pp": 0}, "device": "cuda:0"})
        for number in (1, 2, 3):
            forward = 1.5 if rank == 700 else 1.0
            writer.write("step", {"step": number, "step_s": 1.6, "phase_s": {"forward": forward, "dp": 1.6 - forward}})
        writer.close()
    write_json(folder.status, status("running", world_size=1024, layout="tp8-dp128", last_step=3).to_json())
    at = open_page("watch")
    assert not at.exception
    shown = texts(at)
    assert "1,024 ranks as 256 rows; each row shows its slowest rank." in shown
    assert "showing 31 of 1,024" in shown
    rows = [row for chart in at.get("vega_lite_chart") for row in rows_of(chart)]
    assert any("rank 700" in str(row) for row in rows), "the slow one is among them"
    assert len(rows) < 600
