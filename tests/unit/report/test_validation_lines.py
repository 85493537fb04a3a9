"""What `validate` says to a person."""

from __future__ import annotations

from pathlib import Path

from tpdpdash.compare.validate import validate
from tpdpdash.report.scores import validation_lines

HEAD = "model_name,hardware,num_gpus,tp,seq_len,global_batch,micro_batch,precision,framework,step_time_s\n"


def lines_of(tmp_path: Path, rows: str) -> str:
    file = tmp_path / "mine.csv"
    file.write_text(HEAD + rows)
    return "\n".join(validation_lines(validate(file)))


def test_what_rows_did_not_state_is_listed_by_the_number_of_rows(tmp_path: Path) -> None:
    said = lines_of(
        tmp_path, "llama-3-8b,A100,8,2,2048,16,1,bf16,NeMo,1.0\nllama-3-8b,H100 PCIe,8,2,2048,16,1,bf16,NeMo,1.0\n"
    )
    assert "2 rows, 2 predicted, 0 skipped." in said
    (inferred,) = [line for line in said.splitlines() if line.startswith("Inferred")]
    assert "num_layers (2)" in inferred
    assert "more" in inferred


def test_hardware_that_was_taken_for_its_usual_board_is_among_them(tmp_path: Path) -> None:
    stated = "llama-3-8b,A100,8,2,2048,16,1,bf16,NeMo,1.0\n"
    assert "hardware" in str(validate_inferred(tmp_path, stated))
    assert "hardware" not in str(validate_inferred(tmp_path, stated.replace("A100", "A100-SXM4-80GB")))


def validate_inferred(tmp_path: Path, rows: str) -> tuple[str, ...]:
    file = tmp_path / "mine.csv"
    file.write_text(HEAD + rows)
    return validate(file).predictions[0].case.inferred
