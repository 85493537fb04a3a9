"""validate on copied rows of published runs, its JSON contract, and hostile rows among good ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tpdpdash.compare.table import parse_table
from tpdpdash.compare.targets import figures
from tpdpdash.compare.validate import validate, validate_table
from tpdpdash.units import GIB

GOLDEN = Path(__file__).parents[2] / "golden" / "compare"
HEADER = "source_id,hardware,num_gpus,num_layers,hidden,num_heads,seq_len,tp,global_batch,micro_batch,step_time_s"


@pytest.fixture(scope="module")
def runs():
    return validate(GOLDEN / "runs_excerpt.csv")


@pytest.fixture(scope="module")
def memory():
    return validate(GOLDEN / "memory_excerpt.csv")


def table(*rows):
    return validate_table(parse_table("\n".join((HEADER, *rows)).encode()))


def test_every_row_with_an_architecture_is_predicted(runs):
    assert runs.rows == len(runs.predictions) + len(runs.skipped)
    assert {skip.reason for skip in runs.skipped} == {"no_architecture"}
    assert all(p.step_s and p.step_s > 0 and p.peak_bytes > 0 for p in runs.predictions)


def test_the_parts_of_a_prediction_add_up_to_it(runs):
    for p in runs.predictions:
        assert sum(p.time_parts.values()) == pytest.approx(p.step_s)


def test_published_runs_are_predicted_within_a_factor_of_two(runs):
    """A mistake in reading rows (a batch, a unit, a degree) is far larger than any error of the cost model."""
    sizes = sorted(abs(p.error) for p in runs.predictions if p.error is not None)
    assert len(sizes) > 20
    assert sizes[int(0.8 * len(sizes))] < 0.5


def test_json_holds_the_contract(runs):
    document = json.loads(json.dumps(runs.to_json(), allow_nan=False))
    assert set(document) >= {
        "rows", "predicted", "skipped", "predictions", "by_source", "median_abs_error", "mean_of_source_medians",
    }  # fmt: skip
    assert document["rows"] == document["predicted"] + len(document["skipped"])
    assert set(document["skipped"][0]) >= {"row", "reason"}
    for entry in document["predictions"]:
        assert set(entry) >= {
            "row", "source_id", "step_s", "measured_step_s", "error", "peak_bytes", "measured_peak_bytes",
            "memory_error", "inferred",
        }  # fmt: skip
        if entry["measured_step_s"]:
            assert entry["error"] == pytest.approx(entry["step_s"] / entry["measured_step_s"] - 1)
    assert set(document["by_source"]["mbridge"]) >= {"n", "median_abs_error", "mean_abs_error", "spearman"}
    medians = [s["median_abs_error"] for s in document["by_source"].values() if s["n"]]
    assert document["mean_of_source_medians"] == pytest.approx(sum(medians) / len(medians))


def test_memory_is_scored_where_only_memory_was_measured(memory):
    document = memory.to_json()
    assert document["kind"] == "memory"
    assert document["by_source"]["simumax-b200"]["median_abs_error"] < 0.05
    assert all(entry["error"] is None for entry in document["predictions"])


def test_memory_is_predicted_as_it_was_read():
    header = HEADER + ",pp,peak_mem_gib_per_gpu,peak_scope,rank_view"
    rows = [
        f"a,A100-SXM4-80GB,16,32,4096,32,2048,1,64,1,,4,40,{scope},{view}"
        for scope, view in (
            ("model", "max"), ("allocated", "max"), ("reserved", "max"), ("device", "max"),
            ("allocated", "first"), ("allocated", "middle"), ("allocated", "last"),
        )
    ]  # fmt: skip
    found = validate_table(parse_table("\n".join((header, *rows)).encode())).predictions
    model, allocated, reserved, device, first, middle, last = (p.peak_bytes for p in found)
    assert model < allocated < reserved < device
    assert device - allocated == pytest.approx((1.0 + 4 * 0.4) * GIB)
    assert max(first, middle, last) == allocated
    assert len({first, middle, last}) == 3


def test_unknown_hardware_has_its_memory_predicted_and_no_time():
    known, unknown = table(
        "a,A100-SXM4-80GB,8,32,4096,32,2048,1,8,1,1.0", "a,Quantum-9000,8,32,4096,32,2048,1,8,1,1.0"
    ).predictions
    assert unknown.step_s is None
    assert unknown.error is None
    assert unknown.fits is None
    assert unknown.peak_bytes == pytest.approx(known.peak_bytes, rel=0.01)


def test_hostile_rows_are_skipped_and_the_others_predicted():
    found = table(
        "a,A100-SXM4-80GB,8,32,4096,32,2048,1,8,1,1.0",
        "a,A100-SXM4-80GB,8,32,4096,32,2048,1,8,1,0.0",
        "a,A100-SXM4-80GB,8,32,4096,32,2048,-1,8,1,1.0",
        "a,A100-SXM4-80GB,8,32,4096,32,2048,1,8,1,1.0,surplus",
        "a,A100-SXM4-80GB,8,,,,2048,1,8,1,1.0",
        "a,A100-SXM4-80GB,8",
    )
    assert [p.case.row for p in found.predictions] == [0]
    assert [(s.row, s.reason) for s in found.skipped] == [
        (1, "bad_value"), (2, "bad_value"), (3, "ragged_row"), (4, "no_architecture"), (5, "no_architecture"),
    ]  # fmt: skip
    json.dumps(found.to_json(), allow_nan=False)


def test_a_header_alone_is_an_empty_answer():
    document = table().to_json()
    assert document["rows"] == document["predicted"] == 0
    assert document["median_abs_error"] is None


def test_an_unstated_recompute_is_the_least_that_lets_the_run_fit():
    """175B with FSDP on 128 devices of 80 GB: its activations do not fit unless they are recomputed."""
    header = HEADER + ",recompute,zero_stage_or_fsdp"
    small = "a,H100-SXM5-80GB,8,12,768,12,1024,1,8,1,1.0,,3"
    large = "a,H100-SXM5-80GB,128,96,12288,96,2048,1,256,2,1.0,,3"
    found = validate_table(parse_table("\n".join((header, small, large)).encode())).predictions
    assert [p.case.layout.recompute for p in found] == ["none", "full"]
    assert all("recompute" in p.case.inferred for p in found)


def test_a_figure_is_met_when_it_reaches_what_was_asked(runs, memory):
    found = figures(runs, memory)
    korthikanti = next(figure for figure in found if "full recompute" in figure.what)
    assert korthikanti.n == 3
    assert korthikanti.is_met is (korthikanti.value <= 0.02)


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "tpdpdash", *arguments], capture_output=True, text=True, check=False)


def test_the_command_answers_with_a_table_or_json():
    words = command("validate", str(GOLDEN / "runs_excerpt.csv"))
    assert words.returncode == 0
    assert "korthikanti-2022" in words.stdout
    assert "worst rows" in words.stdout
    document = command("validate", str(GOLDEN / "memory_excerpt.csv"), "--json")
    assert document.returncode == 0
    assert json.loads(document.stdout)["kind"] == "memory"


def test_the_command_refuses_a_bad_file_with_a_line_a_fault(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("a,a\n1,2\n")
    refused = command("validate", str(path))
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 4


def test_a_row_that_contradicts_its_own_sharding_is_taken_as_sharded():
    """70 billion parameters whole on one device of 80 GB never ran: the run sharded them."""
    row = "1,Llama3-70B,H100-SXM5-80GB,8,64,80,8192,64,8,128,28672,1,128256,0,8192,1,1,64,1,1,full,1,64,bf16,10"
    header = (
        "source_id,model_name,hardware,gpus_per_node,num_gpus,num_layers,hidden,num_heads,num_kv_heads,head_dim,"
        "ffn_hidden,gated_ffn,vocab,tied_embeddings,seq_len,tp,pp,dp,cp,zero_stage_or_fsdp,recompute,micro_batch,"
        "global_batch,precision,step_time_s"
    )
    (found,) = validate_table(parse_table(f"{header}\n{row}".encode())).predictions
    assert found.fits
    assert found.case.layout.zero_stage == 3
    assert "zero_stage_or_fsdp" in found.case.inferred
