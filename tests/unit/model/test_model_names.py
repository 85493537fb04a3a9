"""Names of presets, jobs and runs: rows b43, b45, b47, b48 of bad_inputs.jsonl."""

import json
from pathlib import Path

import pytest

from tpdpdash.faults import InvalidInputError
from tpdpdash.model.names import MAX_NAME_BYTES, check_name
from tpdpdash.text import fault_lines

GOLDEN = Path(__file__).parents[2] / "golden" / "model"
ROWS = {row["id"]: row for row in map(json.loads, (GOLDEN / "bad_inputs.jsonl").read_text("utf-8").splitlines())}


def refusal(name: object) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        check_name(name, "job.name")
    assert all(fault.field == "job.name" for fault in caught.value.faults)
    assert fault_lines(caught.value.faults)
    return [fault.code for fault in caught.value.faults]


@pytest.mark.parametrize("name", [ROWS["b43"]["data"], *ROWS["b45"]["data"], *ROWS["b47"]["data"]], ids=repr)
def test_b43_b45_b47_a_hostile_name_is_refused_with_a_reason(name: str) -> None:
    assert refusal(name)


def test_b49_a_line_break_in_a_name_that_ends_up_in_a_script_is_refused() -> None:
    assert refusal("gpu\n#SBATCH --wrap=id") == ["name_characters"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", "name_empty"),
        ("a" * 101, "name_too_long"),
        ("語" * 67, "name_too_long"),
        ("a/b", "name_characters"),
        ("a\0", "name_characters"),
        ("a b", "name_characters"),
        ("a\N{RIGHT-TO-LEFT OVERRIDE}b", "name_characters"),
        ("\ud800", "name_characters"),
        (".", "name_edges"),
        ("..", "name_edges"),
        (".hidden", "name_edges"),
        ("-rf", "name_edges"),
        ("run.", "name_edges"),
        ("con", "name_reserved"),
        ("LPT1.json", "name_reserved"),
        (3, "not_text"),
        (None, "not_text"),
    ],
)
def test_each_reason_has_its_code(name: object, code: str) -> None:
    assert refusal(name) == [code]


def test_b48_two_spellings_of_one_name_become_one() -> None:
    first, second = ROWS["b48"]["data"]
    assert check_name("e\N{COMBINING ACUTE ACCENT}val", "name") == check_name(
        "\N{LATIN SMALL LETTER E WITH ACUTE}val", "name"
    )
    assert check_name(first, "name") == check_name(second, "name")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "a", "a" * 100, "run_7", "模型-1", "console", "7"])
def test_ordinary_names_stay_as_they_are(name: str) -> None:
    assert check_name(name, "name") == name
    assert len(name.encode()) <= MAX_NAME_BYTES
