"""The command line as a program sees it: stdout the answer, stderr one line a fault, exit status 0, 1 or 2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

GPT3 = """
[model]
preset = "gpt3-175b"
[cluster]
device = "A100-SXM4-80GB"
nodes = 128
[training]
seq_len = 2048
global_batch_size = 1536
tokens = 300e9
[layout]
tp = 8
"""


@pytest.fixture
def job(tmp_path):
    """Write a Job file."""

    def write(text: str) -> str:
        path = tmp_path / "job.toml"
        path.write_text(text)
        return str(path)

    return write


def test_groups_are_those_of_the_sixteen_device_example(tpdpdash):
    answer = tpdpdash("groups", "--world-size", "16", "--tp", "2", "--json")
    assert answer.status == 0
    assert answer.document["tp"] == [[r, r + 1] for r in range(0, 16, 2)]
    assert answer.document["dp"] == [list(range(0, 16, 2)), list(range(1, 16, 2))]


def test_groups_for_people_name_the_order(tpdpdash):
    answer = tpdpdash("groups", "--world-size", "8", "--tp", "4", "--cp", "2")
    assert "tp-cp-ep-dp-pp" in answer.out
    assert "cp: [0,4] [1,5] [2,6] [3,7]" in answer.out


def test_a_world_that_does_not_divide_is_one_line_on_stderr(tpdpdash):
    answer = tpdpdash("groups", "--world-size", "16", "--tp", "3", "--json")
    assert (answer.status, answer.out) == (2, "")
    assert len(answer.err.splitlines()) == 1
    assert "--tp is 3" in answer.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--world-size", "sixteen"], "--world-size"),
        (["--world-size", "16", "--tp", "1.5"], "--tp"),
        (["--world-size", "16", "--dp", "8"], "--dp"),
        (["--world-size", "0"], "--world-size is 0"),
        (["--world-size", "16", "--tp", "0"], "--tp is 0"),
        (["--world-size", "16", "--tp", "2", "--order", "dp-pp"], "--order"),
        (["--world-size", "16", "--order", "DP"], "nearest: dp"),
        (["--world-size", "16", "--order", ""], "--order is empty"),
        ([], "--world-size"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(tpdpdash, arguments, named):
    answer = tpdpdash("groups", *arguments, "--json")
    assert (answer.status, answer.out) == (2, "")
    assert named in answer.err.splitlines()[0]
    assert all("\u2500" not in line and not line.startswith("Usage") for line in answer.err.splitlines())


def test_a_wrong_command_and_a_missing_argument_are_one_line(tpdpdash):
    for arguments, named in ((["nope"], "nope"), (["plan"], "JOB"), (["plan", "a.toml", "--top", "0"], "--top")):
        answer = tpdpdash(*arguments)
        assert (answer.status, answer.out) == (2, "")
        assert len(answer.err.splitlines()) == 1
        assert named in answer.err


def test_a_path_longer_than_the_file_system_allows_is_bad_input(tpdpdash, job):
    long = "x" * 300
    for answer in (
        tpdpdash("model", f"{long}.json"),
        tpdpdash("estimate", f"{long}.toml"),
        tpdpdash("estimate", job(GPT3.replace('preset = "gpt3-175b"', f'config = "{long}.json"'))),
    ):
        assert (answer.status, answer.out) == (2, "")
        assert len(answer.err.splitlines()) == 1


def test_model_gives_exact_counts(tpdpdash):
    document = tpdpdash("model", "llama-3-8b", "--json").document
    assert document["parameters"] == 8_030_261_248
    assert document["embedding_parameters"] == 525_336_576
    assert document["active_parameters"] == 8_030_261_248
    assert document["supported"] is True


def test_an_unsupported_model_says_so_and_is_bad_input(tpdpdash, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vit", "hidden_size": 768}')
    answer = tpdpdash("model", str(tmp_path), "--json")
    assert answer.status == 2
    assert answer.document["supported"] is False
    assert answer.document["parameters"] is None
    assert "vit" in answer.err


@pytest.mark.parametrize("name", ["../../etc/passwd", "llama-3-8c", "", "a\nb"])
def test_a_name_that_is_no_model_is_bad_input(tpdpdash, name):
    answer = tpdpdash("model", name, "--json")
    assert (answer.status, answer.out) == (2, "")
    assert len(answer.err.splitlines()) == 1


def test_estimate_follows_the_contract(tpdpdash, job):
    answer = tpdpdash("estimate", job(GPT3 + "pp = 8\n"), "--json")
    assert answer.status == 0
    document = answer.document
    assert document["fits"] is True
    assert document["reasons"] == []
    assert document["layout"]["dp"] == 16
    assert document["layout"]["layers_per_stage"] == [12] * 8
    stages = document["memory"]["stages"]
    assert [stage["stage"] for stage in stages] == list(range(8))
    for stage in stages:
        parts = [value for key, value in stage.items() if key.endswith("_bytes") and key != "total_bytes"]
        assert sum(parts) == pytest.approx(stage["total_bytes"])
    assert document["memory"]["peak_bytes"] == pytest.approx(max(stage["total_bytes"] for stage in stages))
    time = document["time"]
    assert sum(time["parts"].values()) == pytest.approx(time["step_s"], rel=1e-12)
    assert 0 < time["error_frac"] < 1
    assert document["memory"]["error_frac"] > 0
    assert document["memory"]["tight"] in (True, False)
    assert document["budget"]["days"] > 0
    assert document["budget"]["cost"] is None, "no price was given"


def test_an_estimate_that_does_not_fit_is_exit_1_with_its_reason(tpdpdash, job):
    answer = tpdpdash("estimate", job(GPT3.replace("nodes = 128", "nodes = 1") + "pp = 1\n"), "--json")
    assert answer.status == 1
    assert answer.document["fits"] is False
    assert answer.document["reasons"] == ["out_of_memory"]


def test_an_illegal_layout_names_every_fault_and_the_nearest_values(tpdpdash, job):
    answer = tpdpdash("estimate", job(GPT3.replace("tp = 8", "tp = 64\npp = 16\nmicro_batch_size = 7")), "--json")
    assert (answer.status, answer.out) == (2, "")
    assert any(line.startswith("layout.tp is 64") for line in answer.err.splitlines())
    assert any("global_batch_size" in line for line in answer.err.splitlines())


def test_the_job_of_the_readme_is_legal_and_fits(tpdpdash, job):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    answer = tpdpdash("estimate", job(readme.split("```toml\n")[1].split("```")[0]), "--json")
    assert answer.status == 0


def test_plan_lists_feasible_layouts_best_first(tpdpdash, job):
    answer = tpdpdash("plan", job(GPT3), "--top", "7", "--json")
    assert answer.status == 0
    document = answer.document
    assert len(document["layouts"]) == 7
    speeds = [layout["throughput"]["tokens_per_s"] for layout in document["layouts"]]
    assert speeds == sorted(speeds, reverse=True)
    assert all(layout["fits"] and layout["layout"]["tp"] == 8 for layout in document["layouts"])
    search = document["search"]
    assert search["considered"] == search["feasible"] + sum(document["refused"].values())


def test_a_key_that_changes_nothing_is_told_before_the_search_and_with_the_layout(tpdpdash, job):
    text = GPT3.replace("tokens = 300e9", 'tf32 = true\ncp_comm_type = "a2a"') + "pp = 8\n"
    planned, priced = tpdpdash("plan", job(text), "--top", "1"), tpdpdash("estimate", job(text))
    assert [key in planned.err for key in ("training.tf32", "training.cp_comm_type")] == [True, False]
    assert all(key in priced.err for key in ("training.tf32", "training.cp_comm_type"))


def test_a_plan_names_the_simplest_layout_near_the_fastest_however_few_are_listed(tpdpdash, job):
    whole = tpdpdash("plan", job(GPT3), "--top", "150", "--json").document
    few = tpdpdash("plan", job(GPT3), "--top", "1", "--json").document
    listed = whole["layouts"]
    pick, near = whole["search"]["pick"], whole["search"]["near"]
    assert 1 <= pick < near < 150
    assert listed[pick]["time"]["step_s"] <= 1.005 * listed[0]["time"]["step_s"] < listed[near]["time"]["step_s"]
    assert few["search"]["pick"] == 1
    assert few["layouts"] == [listed[0], listed[pick]]
    assert few["margins"][1] == whole["margins"][pick]
    words = tpdpdash("plan", job(GPT3), "--top", "1").out
    assert f"Run layout {pick + 1}: the simplest of {near} within 0.5 % of the fastest." in words


def test_a_plan_in_which_nothing_fits_is_exit_1_with_an_empty_list(tpdpdash, job):
    answer = tpdpdash("plan", job(GPT3.replace("nodes = 128", "nodes = 1")), "--json")
    assert answer.status == 1
    assert answer.document["layouts"] == []
    assert answer.document["search"]["feasible"] == 0
    assert answer.document["refused"]["out_of_memory"] > 0


def test_the_ranking_says_errors_and_where_each_layout_loses(tpdpdash, job):
    text = GPT3.replace("nodes = 128", "nodes = 16").replace("1536", "192")
    document = tpdpdash("plan", job(text), "--json", "--top", "3").document
    lines = tpdpdash("plan", job(text), "--top", "3").out.splitlines()
    head = next(line for line in lines if "against the first" in line)
    first, second = lines[lines.index(head) + 1 : lines.index(head) + 3]
    assert first.endswith("best")
    assert document["margins"][1]["where"].removesuffix("_s") in second
    assert " ± " in first
    assert any("measured runs" in line for line in lines)


def test_stated_failures_and_checkpoints_lengthen_days_and_are_told(tpdpdash, job):
    plain = tpdpdash("estimate", job(GPT3 + "pp = 8\n"), "--json").document["budget"]
    rates = GPT3.replace(
        "[training]", "failures_per_device_day = 0.0005\nrestart_s = 600.0\n[training]\ncheckpoint_s = 30.0"
    )
    found = tpdpdash("estimate", job(rates + "pp = 8\n"), "--json").document["budget"]
    assert plain["goodput_frac"] == 1
    assert 0.8 < found["goodput_frac"] < 1
    assert found["days"] == pytest.approx(plain["days"] / found["goodput_frac"])
    assert "Goodput" in tpdpdash("estimate", job(rates + "pp = 8\n")).out


def test_lines_for_people_come_from_the_same_figures(tpdpdash, job):
    text = GPT3 + "pp = 8\n"
    figures = tpdpdash("estimate", job(text), "--json").document
    lines = tpdpdash("estimate", job(text)).out
    mfu, error = round(100 * figures["throughput"]["mfu"], 1), figures["time"]["error_frac"]
    assert f"MFU {mfu:.1f} ± {mfu * error:.1f} %" in lines, "the error of the figure as it is shown"
    assert f"{figures['time']['error_from']['rows']} measured runs" in lines
    assert "TP 8 × CP 1 × PP 8 × DP 16 = 1024" in lines


RUN_REFUSALS = [
    ("--engine slurm --share-devices JOB", "--share-devices: under Slurm it is Slurm that says"),
    ("--engine slurm --share-devices -- train.py", "--share-devices: under Slurm it is Slurm that says"),
    ("--nodes 2 -- train.py", "--nodes cannot be given together with --engine local"),
    ("--partition gpu -- train.py", "--partition cannot be given together with --engine local"),
    ("--engine hosts -- train.py", "--nodes is 1: --engine hosts needs the number of machines"),
    ("--engine slrum -- train.py", "nearest: slurm"),
    ("--rehearse -- train.py", "run: a script after -- runs as it is: --rehearse belongs to a Job"),
    ("JOB -- train.py", "belongs to a Job"),
    ("--nodes 2 JOB", "run takes a JOB, or [--nproc N] [--nodes N] -- SCRIPT [ARGS]"),
    ("--nproc 2 JOB", "run takes a JOB, or [--nproc N] [--nodes N] -- SCRIPT [ARGS]"),
]


@pytest.mark.parametrize(("words", "said"), RUN_REFUSALS)
def test_options_of_run_that_mean_nothing_together_are_one_line_and_start_nothing(
    tpdpdash, job, tmp_path, runs_root, monkeypatch, words, said
):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    answer = tpdpdash("run", *words.replace("JOB", job(GPT3)).split())
    assert (answer.status, answer.out, len(answer.err.splitlines())) == (2, "", 1)
    assert said in answer.err
    assert not runs_root.exists()


def test_the_module_is_the_console_script():
    command = [sys.executable, "-m", "tpdpdash", "groups", "--world-size", "2", "--tp", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["tp"] == [[0, 1]]
    assert done.stderr == ""


def test_devices_answers_on_any_machine(tpdpdash):
    document = tpdpdash("devices", "--json").document
    assert document["host"]["cores"] >= 1
    assert isinstance(document["devices"], list)
