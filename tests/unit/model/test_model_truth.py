"""Parameter counts equal those of Hugging Face's own implementations: tests/golden/model says how they were made."""

import csv
import json
from pathlib import Path

import pytest

from tpdpdash.faults import InvalidInputError
from tpdpdash.model.config import ReadModel, read_config_file, read_config_table
from tpdpdash.model.counts import parameter_counts
from tpdpdash.model.families import families

GOLDEN = Path(__file__).parents[2] / "golden" / "model"
with (GOLDEN / "param_counts.csv").open(encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))
EXACT = [row for row in ROWS if row["expected"] == "exact"]
OTHER = [row for row in ROWS if row["expected"] != "exact"]
COUNTS = [json.loads(line) for line in (GOLDEN / "transformers_counts.jsonl").read_text("utf-8").splitlines()]
TIES = [json.loads(line) for line in (GOLDEN / "transformers_ties.jsonl").read_text("utf-8").splitlines()]
WRAPPED = {"llama-4-scout-multimodal", "llava-1.5-7b"}
REMOTE_ONLY = {"minicpm", "internlm2"}


def read_row(row: dict[str, str]) -> ReadModel:
    return read_config_file(GOLDEN / row["file"])


@pytest.mark.parametrize("row", EXACT, ids=lambda row: row["name"])
def test_a_real_config_is_counted_to_the_last_parameter(row: dict[str, str]) -> None:
    counts = parameter_counts(read_row(row).spec)
    assert counts.total == int(row["total_params"])
    assert counts.embedding == int(row["embedding_params"])
    assert counts.active == int(row["active_params_per_token"])
    assert counts.head == int(row["lm_head_params"])
    assert counts.position_embedding == int(row["pos_embedding_params"])
    assert counts.routed_experts == int(row["routed_expert_params"])


@pytest.mark.parametrize("row", [row for row in OTHER if row["name"] in WRAPPED], ids=lambda row: row["name"])
def test_of_a_multimodal_model_only_the_language_model_is_counted_and_that_is_said(row: dict[str, str]) -> None:
    model = read_row(row)
    assert parameter_counts(model.spec).total == int(row["text_only_params"])
    assert "language_model_only" in {notice.code for notice in model.notices}


@pytest.mark.parametrize("row", [row for row in OTHER if row["name"] not in WRAPPED], ids=lambda row: row["name"])
def test_what_is_no_decoder_of_attention_layers_is_refused(row: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_row(row)
    assert [fault.code for fault in caught.value.faults] == ["unknown_architecture"]


@pytest.mark.parametrize("case", COUNTS, ids=lambda case: case["config"]["model_type"])
def test_random_configs_of_every_family_are_counted_as_transformers_counts_them(case: dict[str, object]) -> None:
    counts = parameter_counts(read_config_table(case["config"], "config.json").spec)
    assert counts.total == case["total"]
    assert counts.embedding == case["embedding"]
    assert counts.head == case["head"]
    assert counts.routed_experts == case["routed"]
    assert counts.position_embedding == case["pos"]


def test_every_family_has_random_configs() -> None:
    counted = {families()[case["config"]["model_type"]].model_type for case in COUNTS}
    assert counted == {family.model_type for family in families().values()} - REMOTE_ONLY


@pytest.mark.parametrize("case", TIES, ids=lambda case: case["config"]["model_type"])
def test_a_wrapped_language_model_is_tied_as_transformers_ties_it(case: dict[str, object]) -> None:
    model = read_config_table(case["config"], "config.json")
    assert model.spec.tied_embeddings is case["tied"]
    own = case["config"]["text_config"].get("tie_word_embeddings", case["tied"])
    said = "wrapper_decides" in {notice.code for notice in model.notices}
    assert said is (own != case["tied"])
