"""Presets and what a person means by MODEL."""

import json
from pathlib import Path

import pytest

from tpdpdash.faults import InvalidInputError
from tpdpdash.model import resolve
from tpdpdash.model.counts import parameter_counts
from tpdpdash.model.presets import preset, preset_names, preset_source
from tpdpdash.model.resolve import resolve_model
from tpdpdash.units import GIB

GOLDEN = Path(__file__).parents[2] / "golden" / "model"
REPORTS = {row["id"]: row for row in map(json.loads, (GOLDEN / "reports.jsonl").read_text("utf-8").splitlines())}
LLAMA_CONFIG = GOLDEN / "hf_configs" / "llama-2-7b.json"

PUBLISHED = {
    # tests/golden/model/param_counts.csv (transformers on the meta device)
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "llama-4-scout": 107_769_861_120,
    "llama-4-maverick": 400_711_848_960,
    # safetensors totals that the hub shows for these models
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_its_published_parameters(name: str) -> None:
    assert parameter_counts(preset(name)).total == PUBLISHED[name]


@pytest.mark.parametrize(("name", "billions"), [("22b", 22), ("175b", 175), ("530b", 530), ("1t", 1008)])
def test_the_models_of_korthikanti_2022_have_their_nominal_sizes(name: str, billions: int) -> None:
    assert parameter_counts(preset(f"megatron-{name}")).total / 1e9 == pytest.approx(billions, rel=0.005)


def test_gpt3_has_175_billion_parameters() -> None:
    assert parameter_counts(preset("gpt3-175b")).total == pytest.approx(175e9, rel=0.003)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_lower_case_has_a_source_and_carries_its_name(name: str) -> None:
    spec = preset(name)
    assert name == name.lower()
    assert preset_source(name).startswith(("https://", "Brown 2020", "Korthikanti 2022"))
    assert (spec.name, spec.source) == (name, f"preset:{name}")


def test_kimi_k2_has_the_sizes_that_its_card_names() -> None:
    counts = parameter_counts(preset("kimi-k2"))  # 1T parameters, 32B activated: huggingface.co/moonshotai/Kimi-K2-Base
    experts = 60 * 384 * 3 * 7168 * 2048
    assert experts < counts.total < 1.04e12
    assert counts.active == pytest.approx(32e9, rel=0.04)


def test_the_presets_that_the_design_names_are_there() -> None:
    named = {"gpt2-xl", "gpt3-175b", "llama-3-8b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3", "kimi-k2"}
    named |= {"qwen3-235b-a22b"}
    assert named <= set(preset_names())


def test_r032_weights_of_llama_70b_in_two_bytes_are_141_gb_and_131_gib() -> None:
    expected = REPORTS["r032"]["input"]["expect"]
    weights_bytes = 2 * parameter_counts(preset(REPORTS["r032"]["input"]["model"]["preset"])).total
    assert weights_bytes / 1e9 == pytest.approx(expected["weights_gb_bf16"], abs=0.05)
    assert weights_bytes / GIB == pytest.approx(expected["weights_gib_bf16"], abs=0.005)


def test_a_misspelt_preset_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(InvalidInputError) as caught:
        preset("lama-3-8b")
    (fault,) = caught.value.faults
    assert (fault.code, fault.field) == ("unknown_choice", "model.preset")
    assert fault.values["nearest"][0] == "llama-3-8b"


def test_capital_letters_in_a_preset_do_not_matter() -> None:
    assert resolve_model("Llama-3-8B").spec.name == "llama-3-8b"


@pytest.mark.parametrize(
    "text", ["../../etc/passwd", "/etc/passwd", "a\\b", "a; touch x/y", "", ".", "..", "\0", "x" * 300]
)
def test_b43_what_is_neither_name_nor_config_is_refused_and_not_opened(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "read_config_file", lambda path: pytest.fail(f"opened {path}"))
    monkeypatch.setattr(resolve, "fetch_config", lambda name: pytest.fail(f"fetched {name}"))
    with pytest.raises(InvalidInputError):
        resolve_model(text)


def test_a_path_or_its_folder_is_read_relative_to_a_base(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_bytes(LLAMA_CONFIG.read_bytes())
    by_folder = resolve_model("tiny", base_dir=tmp_path).spec
    by_path = resolve_model("tiny/config.json", base_dir=tmp_path).spec
    assert by_folder == by_path == resolve_model(str(tmp_path / "tiny")).spec
    assert by_path.name == "tiny"


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        resolve_model("gone.json", base_dir=tmp_path)
    assert caught.value.faults[0].code == "file_missing"


def test_a_hub_id_is_fetched_and_carries_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "fetch_config", lambda _: LLAMA_CONFIG.read_bytes())
    spec = resolve_model("meta-llama/Llama-2-7b-hf").spec
    assert (spec.name, spec.source) == ("meta-llama/Llama-2-7b-hf", "hub:meta-llama/Llama-2-7b-hf")
