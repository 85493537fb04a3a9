"""Configs that wrap a language model (vision, audio): the part that describes the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.model.section import Section

DECODER_KEYS = ("text_config", "llm_config", "language_config")
_TOWER_KEYS = ("vision_config", "audio_config", "vision_tower")
"""Keys of what stands beside the language model."""

DEFAULT_DECODERS: Mapping[str, str] = MappingProxyType(
    {
        "llava": "llama",
        "llava_next": "llama",
        "llava_next_video": "llama",
        "llava_onevision": "qwen2",
        "vipllava": "llama",
        "video_llava": "llama",
        "mistral3": "mistral",
        "paligemma": "gemma",
        "gemma3": "gemma3_text",
        "qwen2_vl": "qwen2_vl_text",
        "qwen2_5_vl": "qwen2_5_vl_text",
        "qwen3_vl": "qwen3_vl_text",
        "qwen3_vl_moe": "qwen3_vl_moe_text",
        "llama4": "llama4_text",
        "idefics2": "mistral",
        "idefics3": "llama",
        "smolvlm": "llama",
        "aya_vision": "cohere2",
        "cohere2_vision": "cohere2",
        "internvl": "qwen2",
    }
)
"""The decoder of a wrapper whose nested config names none: Hugging Face config classes, transformers v5.24."""


def _nested(config: Mapping[str, object]) -> tuple[str, object] | None:
    for key in DECODER_KEYS:
        if config.get(key) is not None:
            return key, config[key]
    return None


def decoder_section(config: Mapping[str, object], file: str) -> tuple[Section, list[Fault]]:
    """The object that describes the decoder, and a notice where that is a part of the whole model only."""
    found = _nested(config)
    if found is None:
        section = Section(table=config, file=file)
        towers = [key for key in _TOWER_KEYS if config.get(key)]
        return section, [_left_out(section.label(key), config) for key in towers]
    key, inner = found
    if not isinstance(inner, Mapping):
        raise InvalidInputError([Fault(code="not_table", field=f"{file}: {key}", value=inner)])
    deeper = _nested(inner)
    if deeper is not None:
        raise InvalidInputError([Fault(code="nested_config", field=f"{file}: {key}.{deeper[0]}")])
    table = dict(inner)
    wrapper = config.get("model_type")
    if table.get("model_type") is None and isinstance(wrapper, str) and wrapper in DEFAULT_DECODERS:
        table["model_type"] = DEFAULT_DECODERS[wrapper]
    elif table.get("model_type") is None:
        raise InvalidInputError([Fault(code="missing", field=f"{file}: {key}.model_type")])
    if "tie_word_embeddings" in config:
        table["tie_word_embeddings"] = config["tie_word_embeddings"]
    section = Section(table=table, file=file, prefix=f"{key}.")
    return section, [_left_out(f"{file}: {key}", config)]


def _left_out(label: str, config: Mapping[str, object]) -> Fault:
    return Fault(code="language_model_only", field=label, value=config.get("model_type"))
