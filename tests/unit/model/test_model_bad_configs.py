"""Broken and hostile configs: each test names its row of tests/golden/model/bad_inputs.jsonl or reports.jsonl."""

import base64
import json
import sys
import tracemalloc
from pathlib import Path

import pytest

from tpdpdash.faults import InvalidInputError
from tpdpdash.model.config import ReadModel, read_config, read_config_file, read_config_table
from tpdpdash.model.config_json import MAX_CONFIG_BYTES
from tpdpdash.model.counts import parameter_counts
from tpdpdash.text import fault_lines

GOLDEN = Path(__file__).parents[2] / "golden" / "model"
ROWS = {row["id"]: row for row in map(json.loads, (GOLDEN / "bad_inputs.jsonl").read_text("utf-8").splitlines())}
REPORTS = {row["id"]: row for row in map(json.loads, (GOLDEN / "reports.jsonl").read_text("utf-8").splitlines())}
LLAMA_2_7B = 6_738_415_616
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}


def row_bytes(row_id: str) -> bytes:
    row = ROWS[row_id]
    if "base64" in row:
        return base64.b64decode(row["base64"])
    if "gen" in row:
        made = row["gen"]
        body = made["repeat"] * made["times"]
        text = made["template"].replace(made["at"], body) if "template" in made else f"{made['prefix']}{body}"
        return (text + made.get("suffix", "")).encode()
    return row["text"].encode("utf-8", "surrogatepass")


def refused(data: bytes) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInputError) as caught:
        read_config(data, "config.json")
    assert all(len(line) < 400 for line in fault_lines(caught.value.faults))
    return [(fault.code, fault.field) for fault in caught.value.faults]


def read_llama(**changes: object) -> ReadModel:
    return read_config(json.dumps({**LLAMA, **changes}).encode(), "config.json")


@pytest.mark.parametrize(
    ("row_id", "code", "field"),
    [
        ("b01", "not_json", "config.json"),
        ("b07", "not_whole_number", "config.json: hidden_size"),
        ("b08", "not_whole_number", "config.json: vocab_size"),
        ("b09", "not_whole_number", "config.json: hidden_size"),
        ("b10", "out_of_range", "config.json: num_hidden_layers"),
        ("b11", "out_of_range", "config.json: vocab_size"),
        ("b15", "out_of_range", "config.json: num_key_value_heads"),
        ("b18", "not_whole_number", "config.json: num_hidden_layers"),
        ("b20", "missing", "config.json: num_attention_heads"),
        ("b25", "nested_config", "config.json: text_config.text_config"),
        ("b35", "unknown_architecture", "config.json: model_type"),
        ("b38", "file_is_pickle", "config.json"),
        ("b39", "file_is_html", "config.json"),
        ("b41", "out_of_range", "config.json: first_k_dense_replace"),
        ("b42", "not_json", "config.json"),
    ],
)
def test_a_broken_config_is_refused_with_one_fault_that_names_the_key(row_id: str, code: str, field: str) -> None:
    assert refused(row_bytes(row_id)) == [(code, field)]


@pytest.mark.parametrize(("row_id", "line", "column"), [("b01", 1, 91), ("b42", 2, 3)])
def test_a_fault_of_syntax_names_line_and_column(row_id: str, line: int, column: int) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_config(row_bytes(row_id), "config.json")
    assert (caught.value.faults[0].values["line"], caught.value.faults[0].values["column"]) == (line, column)


@pytest.mark.parametrize("row_id", ["b04", "b05", "b29", "b31", "b32", "b33", "b36"])
def test_an_odd_but_good_config_is_read(row_id: str) -> None:
    model = read_config(row_bytes(row_id), "config.json")
    assert parameter_counts(model.spec).total == LLAMA_2_7B
    assert model.spec.name.isprintable()
    assert ("decoder_assumed" in {notice.code for notice in model.notices}) == (row_id == "b36")


def test_b22_a_key_that_stands_twice_is_said_and_the_last_one_counts() -> None:
    model = read_config(row_bytes("b22"), "config.json")
    assert model.spec.hidden_size == 1024
    assert [(n.code, n.field) for n in model.notices] == [("duplicate_key", "config.json: hidden_size")]


def test_b26_a_huge_upload_is_refused_by_its_size_before_parsing() -> None:
    data = row_bytes("b26")
    tracemalloc.start()
    assert refused(data) == [("file_too_large", "config.json")]
    assert tracemalloc.get_traced_memory()[1] < MAX_CONFIG_BYTES
    tracemalloc.stop()


def test_b26_a_huge_file_is_refused_by_its_size_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(InvalidInputError) as caught:
        read_config_file(path)
    assert caught.value.faults[0].values == {"size": 100 * 2**20, "limit": MAX_CONFIG_BYTES}


def test_b34_code_that_a_config_points_to_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    (tmp_path / "config.json").write_bytes(row_bytes("b34"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInputError) as caught:
        read_config_file(tmp_path / "config.json")
    assert [fault.code for fault in caught.value.faults] == ["unknown_architecture", "remote_code_ignored"]
    assert "evil" not in sys.modules


def test_b34_a_known_architecture_with_remote_code_is_read_and_the_code_is_mentioned() -> None:
    model = read_llama(auto_map={"AutoConfig": "evil.EvilConfig"})
    assert [notice.code for notice in model.notices] == ["remote_code_ignored"]


@pytest.mark.parametrize("kv_heads", REPORTS["r046"]["numbers"]["kv"])
def test_r046_key_value_heads_that_do_not_divide_the_heads_are_refused(kv_heads: int) -> None:
    config = {**REPORTS["r046"]["input"]["model"]["config"], "num_key_value_heads": kv_heads}
    with pytest.raises(InvalidInputError) as caught:
        read_config_table(config, "config.json")
    (fault,) = caught.value.faults
    assert fault.field == "config.json: num_key_value_heads"
    assert fault.values["nearest"] in ([4, 8], 1)


def test_all_faults_are_named_at_once() -> None:
    faults = refused(json.dumps({**LLAMA, "hidden_size": "4096", "vocab_size": -1, "intermediate_size": 1.5}).encode())
    assert set(faults) == {
        ("not_whole_number", "config.json: hidden_size"),
        ("out_of_range", "config.json: vocab_size"),
        ("not_whole_number", "config.json: intermediate_size"),
    }


def test_sizes_that_are_absent_or_null_are_missing_and_never_guessed() -> None:
    assert set(refused(b'{"model_type": "llama", "hidden_size": null}')) == {
        ("missing", f"config.json: {key}") for key in LLAMA if key != "model_type"
    }


def test_null_key_value_heads_mean_as_many_as_heads() -> None:
    assert read_llama(num_key_value_heads=None).spec.num_kv_heads == 32


@pytest.mark.parametrize(
    ("experts", "code"),
    [(False, "not_whole_number"), (None, "missing"), (0.0, "not_whole_number"), (-1, "out_of_range")],
)
def test_experts_that_are_no_number_do_not_make_a_model_dense(experts: object, code: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_llama(model_type="mixtral", num_key_value_heads=8, num_local_experts=experts)
    assert (code, "config.json: num_local_experts") in {(fault.code, fault.field) for fault in caught.value.faults}


def test_a_null_rank_means_that_queries_are_not_compressed() -> None:
    config = json.loads((GOLDEN / "hf_configs" / "deepseek-v2-lite.json").read_text("utf-8"))
    assert config["q_lora_rank"] is None
    assert read_config_table(config, "config.json").spec.q_lora_rank == 0


def test_a_class_default_that_is_used_is_said() -> None:
    model = read_config_table({**LLAMA, "model_type": "mistral"}, "config.json")
    assert model.spec.num_kv_heads == 8
    assert [(n.code, n.field, n.value) for n in model.notices] == [
        ("default_assumed", "config.json: num_key_value_heads", 8)
    ]


def test_heads_that_do_not_divide_the_width_are_refused_unless_the_head_has_a_width_of_its_own() -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_llama(num_attention_heads=33)
    assert caught.value.faults[0].code == "not_divisible"
    assert read_llama(num_attention_heads=33, head_dim=128).spec.head_dim == 128


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "file_empty"),
        (b" \n", "file_empty"),
        (b"[]", "not_table"),
        (b'"llama"', "not_table"),
        (b"null", "not_table"),
        (b'{"a": "\xff"}', "not_utf8"),
        (b"[" * 100_000, "nested_too_deep"),
        (b'{"a":' * 100_000, "nested_too_deep"),
        (b"PK\x03\x04rest", "file_is_zip"),
        (b"GGUF\x03\x00\x00\x00", "file_is_gguf"),
        (b"\x1f\x8b\x08", "file_is_gzip"),
        (b"version https://git-lfs.github.com/spec/v1", "file_is_git_lfs"),
        (b"<?xml version='1.0'?>", "file_is_xml"),
        ((64).to_bytes(8, "little") + b'{"__metadata__":{}}', "file_is_safetensors"),
    ],
)
def test_bytes_that_are_no_config_say_what_they_are(data: bytes, code: str) -> None:
    assert [found for found, _ in refused(data)] == [code]


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": "false"},
        {"attention_bias": 1},
        {"model_type": 7},
        {"model_type": ["llama"]},
        {"text_config": 3},
        {"layer_types": ["full_attention", "linear_attention"]},
        {"is_encoder_decoder": True},
        {"hidden_size": 4096, "n_embd": 2048},
        {"hidden_size": "9" * 300},
        {"model_type": "x" * 1_000_000},
    ],
    ids=str,
)
def test_what_cannot_be_right_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_llama(**changes)
    assert all(len(line) < 400 for line in fault_lines(caught.value.faults))


def test_many_duplicate_keys_give_a_bounded_number_of_notices() -> None:
    body = ",".join(f'"k{n}":1,"k{n}":2' for n in range(1000))
    model = read_config(f"{json.dumps(LLAMA)[:-1]},{body}}}".encode(), "config.json")
    assert len(model.notices) == 20


def test_a_model_without_a_name_is_called_as_its_file_or_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    for name in ("config.json", "other.json"):
        (folder / name).write_text(json.dumps(LLAMA))
    assert read_config_file(folder / "config.json").spec.name == "my-llama"
    assert read_config_file(folder / "other.json").spec.name == "other"


def test_the_class_name_stands_in_for_an_absent_model_type() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    model = read_config_table({**config, "architectures": ["Qwen2ForCausalLM"]}, "config.json")
    assert model.spec.qkv_bias
    assert model.notices[0].code == "decoder_assumed"
    with pytest.raises(InvalidInputError):
        read_config_table({**config, "architectures": ["ViTForImageClassification"]}, "config.json")


HOSTILE = [None, True, -1, 0, 1.5, 10**30, float("nan"), float("inf"), "", "7", "\ud800", [], [None], {}, {"a": []}]


@pytest.mark.parametrize("path", sorted((GOLDEN / "hf_configs").glob("*.json")), ids=lambda path: path.stem)
def test_any_hostile_value_under_any_key_is_read_or_refused_with_faults_in_words(path: Path) -> None:
    config = json.loads(path.read_text("utf-8"))
    for key in config:
        for value in HOSTILE:
            try:
                model = read_config_table({**config, key: value}, "config.json")
            except InvalidInputError as error:
                lines = fault_lines(error.faults)
            else:
                lines = fault_lines(model.notices)
                assert parameter_counts(model.spec).total > 0
            assert all(line.isprintable() for line in lines)
